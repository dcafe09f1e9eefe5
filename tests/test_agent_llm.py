"""Agents with their own language model in whole calls: the engine calls the gateway, which calls the model."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, ToolCall
from tests.stage import PUBLIC_URL, Stage, make_carrier, patient_client, staged, until, until_it

CONFIGURATION = """
[agents.maya]
prompt = "maya.md"
brain = {{ url = "{url}/v1", model = "llama3.2", api_key_env = "LLAMA_KEY" }}
functions = "functions.py"
"""

FUNCTIONS = """
import time
from pathlib import Path

FOLDER = Path(__file__).parent


def end_function():
    (FOLDER / "ending").touch()
    while (FOLDER / "not yet").exists():
        time.sleep(0.005)


def order_status(order: str) -> str:
    \"\"\"Where an order is.\"\"\"
    return f"order {order} is ready"
"""


@pytest.fixture
async def llm() -> AsyncIterator[FakeLlm]:
    async with FakeLlm() as made:
        yield made


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, llm: FakeLlm) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "gateway.toml").write_text(CONFIGURATION.format(url=llm.url))
    async with staged(tmp_path, make_carrier(carrier_name), LLAMA_KEY=llm.api_key) as made:
        yield made


async def _think(conversation: Any) -> dict[str, Any]:
    think: dict[str, Any] = (await conversation.settings_received())["agent"]["think"]
    return think


async def test_engine_gets_our_endpoint(stage: Stage) -> None:
    _, conversation = await stage.dial()
    think = await _think(conversation)
    assert think["endpoint"]["url"] == f"{PUBLIC_URL}/v1/chat/completions"
    assert think["endpoint"]["headers"]["authorization"].startswith("Bearer ")
    assert think["prompt"].startswith("You are Maya.")


async def test_answer_is_spoken_as_words(stage: Stage, llm: FakeLlm) -> None:
    llm.answers("We have **two** tables 😀 left.")
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Is there a table?")
    await stage.played(call, conversation)
    await call.hang_up()
    assert "AGENT: We have two tables left." in await stage.archive()
    [request] = llm.requests
    assert request.body["model"] == "llama3.2"
    assert request.body["messages"][-1] == {"role": "user", "content": "Is there a table?"}


async def test_function_is_called_by_the_brain(stage: Stage, llm: FakeLlm) -> None:
    llm.answers("Your order is ready.")
    llm.answers(Answer(tools=(ToolCall("order_status", '{"order": "A12"}'),)), when="Where is my order")
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Where is my order?")
    await llm.received(2)
    results = [message for message in llm.requests[1].body["messages"] if message["role"] == "tool"]
    assert [result["content"] for result in results] == ["order A12 is ready"]
    await stage.played(call, conversation)
    await call.hang_up()
    assert "AGENT: Your order is ready." in await stage.archive()


async def test_bearer_lives_as_long_as_its_call(stage: Stage, llm: FakeLlm) -> None:
    call, conversation = await stage.dial()
    endpoint = (await _think(conversation))["endpoint"]
    body = {"model": "x", "messages": [{"role": "user", "content": "Hello?"}]}
    own, foreign = endpoint["headers"], {"authorization": "Bearer another-token"}
    assert (await _ask(stage, body, own)).status_code == 200
    assert [(await _ask(stage, body, headers)).status_code for headers in (foreign, {})] == [401, 401]
    await call.hang_up()
    await stage.idle()
    assert (await _ask(stage, body, own)).status_code == 401
    assert len(llm.requests) == 1


async def test_bearer_does_not_wait_for_functions(stage: Stage, llm: FakeLlm, tmp_path: Path) -> None:
    """The end of a call may take a while; its words cannot be requested during that time."""
    (tmp_path / "not yet").touch()
    call, conversation = await stage.dial()
    own = (await _think(conversation))["endpoint"]["headers"]
    await call.hang_up()
    await until((tmp_path / "ending").exists)
    body = {"model": "x", "messages": [{"role": "user", "content": "Hello?"}]}
    assert (await _ask(stage, body, own)).status_code == 401
    assert llm.requests == []
    (tmp_path / "not yet").unlink()


async def _ask(stage: Stage, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    async with patient_client() as http:
        return await http.post(f"{stage.url}/v1/chat/completions", json=body, headers=headers)


async def test_what_is_known_stands_beside_the_prompt(stage: Stage, llm: FakeLlm) -> None:
    llm.answers("I see.")
    call, conversation = await stage.dial()
    await conversation.user_says("My red bike has a flat tyre, I want a new tube.")
    await call.hang_up()
    await stage.document()
    _, conversation = await stage.dial()
    before = len(llm.requests)
    await conversation.user_says("What about my tyre?")
    await llm.received(before + 1)
    messages = llm.requests[-1].body["messages"]
    known = [message for message in messages if "<known>" in str(message["content"])]
    assert len(known) == 1 and "flat tyre" in known[0]["content"]
    assert messages[0]["content"] == (await _think(conversation))["prompt"]


async def test_failing_model_is_never_heard(stage: Stage, llm: FakeLlm) -> None:
    llm.fails(500, times=9)
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Is there a table?")
    await stage.played(call, conversation)
    await call.hang_up()
    assert "AGENT: I'm sorry, I can't answer that right now. Could you say it again?" in await stage.archive()


async def test_stages_of_a_turn_are_measured(stage: Stage, llm: FakeLlm) -> None:
    llm.answers("Yes.")
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await stage.spoken(call, conversation)
    await conversation.user_says("Is there a table?")
    await stage.played(call, conversation)
    await call.hang_up()
    await stage.idle()

    async def measured() -> bool:
        metrics = (await stage.http.get("/metrics")).text
        stages = ("transcript", "llm_request", "first_token", "first_audio", "first_frame")
        counts = (f'turn_stage_seconds_count{{engine="deepgram",stage="{stage}"}}' for stage in stages)
        return all(count in metrics for count in counts)

    await until_it(measured)
