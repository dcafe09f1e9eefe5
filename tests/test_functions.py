"""An agent's own functions, in whole calls: what they say, keep, and do. Both carriers."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.stage import Stage, make_carrier, staged, until

FUNCTIONS = '''
import time
from typing import Annotated

from gateway import Conversation


def start_function(conv: Conversation):
    if cheese := conv.memory.get("cheese_type"):
        conv.say(f"You previously picked {cheese}.")


def pick_cheese(conv: Conversation, cheese: Annotated[str, "its name"]) -> str:
    """Remember which cheese the caller likes."""
    conv.state["cheese_type"] = cheese
    conv.state["not_listed"] = "forgotten"
    return "noted"


def end_function(conv: Conversation):
    if conv.state.get("cheese_type") == "young brie":
        conv.state["cheese_type"] = "old brie"
    said = [text for speaker, text in conv.transcript if speaker == "caller"]
    with open("{folder}/ended", "a") as file:
        file.write(f"{' '.join(said)}\\n")
    conv.hang_up()  # too late for anything


async def shout(conv: Conversation) -> str:
    """Say something loud."""
    conv.say("Hello out there!")
    return "shouted"


def sleep_for_ever(conv: Conversation):
    """Blocks."""
    time.sleep(60)


def goodbye(conv: Conversation):
    """Hang up."""
    conv.hang_up()
'''

CONFIGURATION = """
[agents.maya]
prompt = "maya.md"
functions = "functions.py"
knowledge = "knowledge"
transfer_to = {{ sales = "+12025550177" }}
text_agent = "{webhook}"

[agents.maya.memory.repeat_caller]
state_keys = ["cheese_type"]
"""


def functions_in(folder: Path) -> str:
    return FUNCTIONS.replace("{folder}", str(folder))


class TextAgent:
    """The owner's webhook: takes errands."""

    def __init__(self) -> None:
        self.background_tasks: list[dict[str, Any]] = []
        self.app = Starlette(routes=[Route("/errands", self._take, methods=["POST"])])

    async def _take(self, request: Request) -> Response:
        self.background_tasks.append(await request.json())
        return Response(status_code=204)


@pytest.fixture
async def text_agent() -> TextAgent:
    return TextAgent()


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, text_agent: TextAgent) -> AsyncIterator[Stage]:
    async with serve_on_loopback(text_agent.app) as url:
        (tmp_path / "functions.py").write_text(functions_in(tmp_path))
        (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}")
        (tmp_path / "knowledge").mkdir()
        (tmp_path / "knowledge" / "hours.md").write_text("# Opening hours\n\nWe are closed on Mondays.\n")
        (tmp_path / "gateway.toml").write_text(CONFIGURATION.format(webhook=f"{url}/errands"))
        async with staged(tmp_path, make_carrier(carrier_name)) as made:
            yield made


async def test_agent_gets_its_functions(stage: Stage) -> None:
    _, conversation = await stage.dial()
    settings = await conversation.settings_received()
    functions = {function["name"]: function for function in settings["agent"]["think"]["functions"]}
    assert set(functions) == {
        "pick_cheese",
        "shout",
        "sleep_for_ever",
        "goodbye",
        "end_call",
        "transfer_call",
        "search_memory",
        "search_knowledge",
        "spawn_task",
        "message_agent",
    }
    assert functions["pick_cheese"]["parameters"]["properties"]["cheese"]["description"] == "its name"
    assert functions["transfer_call"]["parameters"]["properties"]["to"]["const"] == "sales"


async def test_end_function_runs_when_the_caller_hangs_up(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Goodbye.")
    await call.hang_up()
    await stage.idle()
    assert (tmp_path / "ended").read_text() == "Goodbye.\n"


@pytest.mark.parametrize("carrier_name", ["telnyx"])  # Twilio asks for another at once
async def test_end_function_of_a_call_that_ends_without_media(stage: Stage, tmp_path: Path) -> None:
    """The stream breaks, and the caller is gone before there is another: what it sets is kept all the same."""
    call, conversation = await stage.dial()
    await conversation.user_says("I like brie.")
    await conversation.call_functions([{"name": "pick_cheese", "arguments": '{"cheese": "young brie"}'}])
    call.opens_media = False
    await call.drop()
    await call.hang_up()
    await stage.idle()
    assert (tmp_path / "ended").read_text() == "I like brie.\n"
    _, conversation = await stage.dial()
    settings = await conversation.settings_received()
    assert settings["agent"]["greeting"].endswith("You previously picked old brie.")


async def test_state_comes_back_in_the_next_call(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("I like brie.")
    assert await conversation.call_functions([{"name": "pick_cheese", "arguments": '{"cheese": "brie"}'}]) == ["noted"]
    await call.hang_up()
    await stage.idle()
    _, conversation = await stage.dial()
    settings = await conversation.settings_received()
    assert settings["agent"]["greeting"].endswith("You previously picked brie.")


async def test_state_belongs_to_its_caller(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("I like brie.")
    await conversation.call_functions([{"name": "pick_cheese", "arguments": '{"cheese": "brie"}'}])
    await call.hang_up()
    await stage.idle()
    _, conversation = await stage.dial("+12025550188")
    assert "brie" not in json.dumps(await conversation.settings_received())


async def test_function_speaks_and_answers(stage: Stage) -> None:
    _, conversation = await stage.dial()
    assert await conversation.call_functions(["shout"]) == ["shouted"]
    assert (await conversation.message("InjectAgentMessage"))["message"] == "Hello out there!"


async def test_wrong_arguments_are_explained(stage: Stage) -> None:
    _, conversation = await stage.dial()
    [answer] = await conversation.call_functions([{"name": "pick_cheese", "arguments": '{"chese": "brie"}'}])
    assert "cheese: Field required" in json.loads(answer)["error"]


async def test_blocking_function_harms_no_sound(stage: Stage) -> None:
    call, conversation = await stage.dial()
    hanging = asyncio.create_task(conversation.call_functions(["sleep_for_ever"]))
    await stage.played(call, conversation)
    other, talk = await stage.dial("+12025550188")
    await talk.user_says("Can you hear me?")
    await stage.answer(other, talk, "Loud and clear.")
    hanging.cancel()
    await call.hang_up()
    await other.hang_up()


async def test_function_hangs_up(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("That was all.")
    await conversation.call_functions(["goodbye"])
    await call.over()
    assert call.ended_by == "gateway-rest"


async def test_knowledge_is_searched(stage: Stage) -> None:
    _, conversation = await stage.dial()

    async def found() -> str:
        [answer] = await conversation.call_functions(
            [{"name": "search_knowledge", "arguments": '{"query": "open on monday"}'}]
        )
        return answer

    answer = ""
    while "closed on Mondays" not in answer:  # the folder is read in the background
        answer = await found()
        await conversation.user_says("And?")
        await asyncio.sleep(0.05)
    assert "Opening hours" in answer


async def test_memory_is_searched(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("My red bike has a flat tyre, I want a new tube.")
    await call.hang_up()
    await stage.document()
    _, conversation = await stage.dial()
    [answer] = await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "flat tyre"}'}])
    assert "flat tyre" in answer
    [answer] = await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "elephants"}'}])
    assert answer == "Nothing was found."


async def test_work_is_handed_over(stage: Stage, text_agent: TextAgent) -> None:
    _, conversation = await stage.dial()
    await conversation.call_functions([{"name": "spawn_task", "arguments": '{"task": "Order a tube."}'}])
    await conversation.call_functions([{"name": "message_agent", "arguments": '{"message": "Ana was here."}'}])
    await until(lambda: len(text_agent.background_tasks) == 2)
    assert [(errand["kind"], errand["text"], errand["agent"]) for errand in text_agent.background_tasks] == [
        ("task", "Order a tube.", "maya"),
        ("message", "Ana was here.", "maya"),
    ]


async def test_changed_file_serves_the_next_call(
    stage: Stage, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway")
    call, _ = await stage.dial()
    await call.hang_up()
    (tmp_path / "functions.py").write_text(functions_in(tmp_path) + '\n\ndef dance():\n    """Dance."""\n')
    call, _ = await stage.dial()  # has them already, unless the file takes long to load
    await until(lambda: "functions reloaded" in caplog.messages)
    await call.hang_up()
    _, conversation = await stage.dial()
    functions = (await conversation.settings_received())["agent"]["think"]["functions"]
    assert "dance" in {function["name"] for function in functions}
    assert await conversation.call_functions(["dance"]) == ["done"]


async def test_caller_is_put_through(stage: Stage) -> None:
    stage.carrier.callee = "answers"
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Sales, please.")
    await conversation.call_functions([{"name": "transfer_call", "arguments": '{"to": "sales"}'}])
    await stage.answer(call, conversation, "I will put you through.")
    await call.until(lambda: call.put_through)
    assert "AGENT: I will put you through." in await stage.archive()
    await stage.idle()
    assert not call.ended_by


async def test_unanswered_transfer_returns_to_the_agent(stage: Stage) -> None:
    stage.carrier.callee = "busy"
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Sales, please.")
    await conversation.call_functions([{"name": "transfer_call", "arguments": '{"to": "sales"}'}])
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    settings = await again.configured()
    assert settings["agent"]["context"]["messages"][-1]["content"] == "Sales, please."
    assert (await again.message("InjectAgentMessage"))["message"] == "I'm sorry, I could not put you through."
    await again.user_says("Then goodbye.")
    await call.hang_up()
    archive = await stage.archive()
    assert archive.index("CALLER: Sales, please.\n") < archive.index("CALLER: Then goodbye.\n")
    await stage.idle()
    assert len(await stage.documents()) == 1


async def test_agent_can_not_dial_a_number_of_its_own(stage: Stage) -> None:
    _, conversation = await stage.dial()
    [answer] = await conversation.call_functions([{"name": "transfer_call", "arguments": '{"to": "+19005550100"}'}])
    assert "wrong arguments" in json.loads(answer)["error"]


AS_DOCUMENTED = """
def start_function(conv: Conversation):
  booking_day = conv.memory.get("booking_day")
  cheese_type = conv.memory.get("cheese_type")
  if booking_day and cheese_type:
    conv.say(f"You booked {cheese_type} for {booking_day}. Rebook?")

def book(conv: Conversation):
  conv.state["cheese_type"] = "brie"
  if "booking_day" not in conv.memory:
    conv.state["booking_day"] = "Friday"
  return f"{len(conv.memory)} {conv.memory.fields()}"
"""


async def test_documented_example_runs_as_printed(tmp_path: Path) -> None:
    """No import in the file, and the configuration as JSON."""
    (tmp_path / "functions.py").write_text(AS_DOCUMENTED)
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nfunctions = "functions.py"\n')
    repeat_caller = {"analytics_enabled": True, "state_keys": ["booking_day", "cheese_type"]}
    (tmp_path / "gateway.json").write_text(json.dumps({"memory": {"repeat_caller": repeat_caller}}))
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        call, conversation = await stage.dial()
        assert await conversation.call_functions([{"name": "book", "arguments": "{}"}]) == ["0 {}"]
        await conversation.user_says("Thank you.")
        await call.hang_up()
        await stage.idle()
        _, again = await stage.dial()
        assert "You booked brie for Friday. Rebook?" in (await again.settings_received())["agent"]["greeting"]
