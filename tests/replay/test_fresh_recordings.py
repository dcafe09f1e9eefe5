"""Calls recorded by this version replay as recorded: every kind of brain and memory, and what tools and people did."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.audio import alaw_to_mulaw
from gateway.replay.harness import replay
from gateway.session import EndReason
from gateway.settings import Secret
from gateway.simulate.frames import JsonFrame
from gateway.simulate.softphone import phone_line
from gateway.web.dashboard.recordings import read_recording
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Pace
from tests.fakes.remem import FakeRemem, Request, Response
from tests.replay.calls import recordings, replay_all, replayed
from tests.stage import ADMIN, CALLED, CALLER, GREETING_SOUND, SOUND, Stage, make_carrier, patient_client, staged
from tests.web.dashboard.test_live_pages import form_of, logged_in
from tests.web.test_widget import Site

FIRST = ("My name is Ana, and I'm calling about the Orlando sale. We have an offer.", "That is good news.")


class HeldRemem(FakeRemem):
    """Answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def _respond(self, request: Request) -> Response | None:
        await self.answers.wait()
        return await super()._respond(request)


@contextlib.asynccontextmanager
async def recording_stage(folder: Path, carrier_name: str = "twilio", **options: Any) -> AsyncIterator[Stage]:
    async with staged(folder, make_carrier(carrier_name), RECORD_DIR=str(folder / "recordings"), **options) as stage:
        yield stage


async def one_call(stage: Stage, *turns: str) -> None:
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    for said, answered in zip(turns[::2], turns[1::2], strict=True):
        await conversation.user_says(said)
        await stage.answer(call, conversation, answered)
    await call.hang_up()
    await stage.idle()


async def test_facts_and_topics_are_told_again(tmp_path: Path, carrier_name: str) -> None:
    async with recording_stage(tmp_path, carrier_name) as stage:
        await one_call(stage, *FIRST)
        await one_call(stage, "The Orlando sale needs the report of the roof. I prefer text messages.", "Noted.")
        await one_call(stage, "When is the inspection?", "On Monday.")
    *_, last = recordings(tmp_path / "recordings")
    assert last.memory.facts and last.memory.pins
    assert await replayed(last) == []


async def test_known_caller_who_says_nothing_replays(tmp_path: Path) -> None:
    """The name is in the memory, and not in the document of this call: it is not known who holds the phone."""
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, *FIRST)
        await one_call(stage)
    _, last = recordings(tmp_path / "recordings")
    assert [call.caller_name for call in last.memory.calls] == ["Ana"]
    assert last.ended is not None and last.ended.turns
    assert await replayed(last) == []


async def test_engine_that_does_not_speak_first(tmp_path: Path) -> None:
    """Its Welcome is missing or late: the settings are the first frame of the connection."""
    async with recording_stage(tmp_path) as stage:
        stage.engine.behave(welcome=False)
        await one_call(stage, *FIRST)
    await replay_all(tmp_path / "recordings")


async def test_memory_that_came_late_comes_late_again(tmp_path: Path) -> None:
    async with HeldRemem() as remem:
        async with recording_stage(tmp_path / "here", REMEM_API_URL=remem.url, REMEM_API_KEY=remem.api_key) as stage:
            await one_call(stage, *FIRST)
        remem.answers.clear()
        remote = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": remem.api_key}
        async with recording_stage(tmp_path / "there", hurries=True, **remote) as stage:
            call, conversation = await stage.dial()
            await call.wait_heard(len(GREETING_SOUND))
            await stage.played(call, conversation)
            remem.answers.set()
            await conversation.message("UpdatePrompt")
            await conversation.user_says("Hello again, I have a question.")
            await stage.answer(call, conversation, "Please go ahead.")
            await call.hang_up()
            await stage.idle()
    [recording] = recordings(tmp_path / "there" / "recordings")
    assert recording.memory.calls == ()
    assert await asyncio.to_thread(replay, recording) == []


BRAINS = {
    "script": 'brain = "script"',
    "script, and the engine's own model": 'brain = "script"\nthink = "open_ai/gpt-5.4-mini"',
    "anthropic": 'brain = "anthropic/claude-haiku-5-5"',
    "xai": 'brain = "xai/grok-4.3"',
    "openai": 'brain = "openai/gpt-5.4-mini"',
    "openclaw": 'brain = "openclaw/main"',
    "compatible": 'brain = {{ url = "{url}/v1", model = "llama3.2", api_key = "{key}" }}',
    "engine's own": "",
}


@pytest.mark.parametrize("brain", BRAINS)
async def test_agent_replays_with_its_brain(tmp_path: Path, brain: str) -> None:
    """A question to its model, and one that the gateway answers itself."""
    async with FakeLlm("openclaw-new" if brain == "openclaw" else "openai") as llm:
        keys = {
            "ANTHROPIC_BASE_URL": llm.url,
            "XAI_API_URL": f"{llm.url}/v1",
            "OPENAI_BASE_URL": f"{llm.url}/v1",
            "OPENCLAW_GATEWAY_URL": llm.url,
            "OPENCLAW_GATEWAY_TOKEN": llm.api_key,
            "SUMMARY_PROVIDER": "extractive",
            "VOICE_ENGINE": "deepgram",
            **{f"{name}_API_KEY": llm.api_key for name in ("ANTHROPIC", "XAI", "OPENAI")},
        }
        llm.answers("We have two tables left.")
        (tmp_path / "gateway.toml").write_text("[agents.maya]\n" + BRAINS[brain].format(url=llm.url, key=llm.api_key))
        async with recording_stage(tmp_path, **keys) as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Is there a table?")
            if brain == "engine's own":
                await stage.answer(call, conversation, "There is one.")
            await stage.played(call, conversation)
            await conversation.user_says("What do you know about me?")
            await stage.played(call, conversation)
            await call.hang_up()
            await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.header.agent["has_brain"] is bool(BRAINS[brain])


@pytest.mark.parametrize("provider", ["openai", "brain"])
async def test_summary_of_a_model_is_played_back(tmp_path: Path, provider: str) -> None:
    summary = '{"caller_name": "Ana", "topics": ["a table"], "decisions": [], "action_items": [], "facts": [], '
    async with FakeLlm() as llm:
        llm.answers("There is one.")
        llm.answers(summary + '"context": "Ana asked for a table."}', when="CALLER:")
        brain = f'{{ url = "{llm.url}/v1", model = "llama3.2", api_key = "{llm.api_key}" }}'
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\nbrain = {brain}\n")
        keys = {"OPENAI_BASE_URL": f"{llm.url}/v1", "OPENAI_API_KEY": llm.api_key, "SUMMARY_PROVIDER": provider}
        async with recording_stage(tmp_path, **keys) as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Is there a table?")
            await stage.played(call, conversation)
            await call.hang_up()
            await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.summary is not None and recording.summary.written_by != "extractive"


async def test_call_from_the_own_phone_replays(tmp_path: Path) -> None:
    async with recording_stage(tmp_path) as stage:
        async with phone_line(stage.url, Secret(ADMIN), caller=CALLER) as line:
            frames = iter([SOUND] * 60)
            talking = asyncio.create_task(line.talk(lambda: next(frames, None), bytearray().extend, speed=10))
            conversation = await stage.engine.next_conversation()
            await conversation.configured()
            await conversation.user_says("My name is Ana.")
            await talking
        await stage.idle()
    [recording] = recordings(tmp_path / "recordings")
    assert recording.header.carrier == "softphone"
    assert await replayed(recording) == []


FUNCTIONS = """
from gateway.tools.conversation import Conversation


def start_function(conv: Conversation) -> None:
    conv.say("Today we close at six.")


def order_status() -> str:
    \"\"\"Where an order is.\"\"\"
    return "ready"


def call_back(conv: Conversation) -> str:
    conv.say("I will call you back.")
    conv.hang_up()
    return "noted"
"""


async def test_functions_of_a_file_are_played_back(tmp_path: Path, carrier_name: str) -> None:
    """Their definitions, results, and what they had the agent say and do; the file is not needed."""
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nfunctions = "functions.py"\n')
    async with recording_stage(tmp_path, carrier_name) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("Is my bike ready?")
        assert await conversation.call_functions(["order_status"]) == ["ready"]
        await stage.answer(call, conversation, "It is ready.")
        conversation.abort()
        again = await stage.engine.next_conversation()
        await again.configured()
        await stage.played(call, again)
        await again.user_says("Call me back.")
        assert await again.call_functions(["call_back"]) == ["noted"]
        await call.over()
        await stage.idle()
    (tmp_path / "functions.py").unlink()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.end_reason is EndReason.AGENT_HUNG_UP


async def test_operator_is_played_back(tmp_path: Path) -> None:
    async with recording_stage(tmp_path) as stage, logged_in(stage) as http:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        form = await form_of(http)
        await http.post(f"/live/{form['uuid']}/say", data={**form, "words": "The shop is closed today."})
        assert (await conversation.message("InjectAgentMessage"))["message"] == "The shop is closed today."
        await stage.played(call, conversation)
        await http.post(f"/live/{form['uuid']}/end", data=form)
        await call.over()
        await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.end_reason is EndReason.OPERATOR_HUNG_UP


async def test_call_goes_on_with_another_stream(tmp_path: Path, carrier_name: str) -> None:
    async with recording_stage(tmp_path, carrier_name) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("I would like to book a table.")
        await call.drop()
        await call.wait_stream(2)
        again = await stage.engine.next_conversation()
        await again.configured()
        await stage.played(call, again)
        await again.user_says("For two, please.")
        await call.hang_up()
        await stage.idle()
    await replay_all(tmp_path / "recordings")


@pytest.mark.parametrize("callee", ["answers", "busy"])
async def test_transfer_replays(tmp_path: Path, carrier_name: str, callee: str) -> None:
    """A target that does not answer: the caller comes back to the agent, with another stream."""
    (tmp_path / "gateway.toml").write_text('[agents.maya]\ntransfer_to = { sales = "+12025550177" }\n')
    async with recording_stage(tmp_path, carrier_name) as stage:
        stage.carrier.callee = callee
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("Sales, please.")
        await conversation.call_functions([{"name": "transfer_call", "arguments": '{"to": "sales"}'}])
        await stage.answer(call, conversation, "I will put you through.")
        if callee == "busy":
            await call.wait_stream(2)
            again = await stage.engine.next_conversation()
            await again.configured()
            await stage.played(call, again)
            await again.user_says("Then goodbye.")
            await call.hang_up()
        await stage.idle()
    await replay_all(tmp_path / "recordings")


async def test_a_law_audio_replays(tmp_path: Path) -> None:
    """Telnyx streams what the phone leg has. The recording has mu-law, as the engine gets it."""
    carrier = make_carrier("telnyx")
    carrier.leg_codec, carrier.insist_on_leg_codec = "PCMA", True
    async with staged(tmp_path, carrier, RECORD_DIR=str(tmp_path / "recordings")) as stage:
        call, conversation = await stage.dial()
        await call.speak(bytes(range(160)) * 20)
        await conversation.hears(3200)
        await conversation.user_says(FIRST[0])
        await stage.answer(call, conversation, FIRST[1])
        await call.hang_up()
        await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    stereo = read_recording(recording.path)
    assert stereo is not None and alaw_to_mulaw(bytes(range(160))) in bytes(stereo.caller)


PEOPLE = """
[agents.maya]
prompt = "maya.md"
memory.repeat_caller.new_person_after = 0.4
"""


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(["My name is Ana Lopez.", "Hello, my name is Ben Okri."], id="another person"),
        pytest.param(["My name is Ana Lopez.", "My name is Ben Okri.", "My name is Ana Lopez."], id="one of two"),
        pytest.param(
            ["My name is Ana Lopez.", "My name is Ana Lopez.|Hi, my name is Ben Okri.|My name is Ana Lopez."],
            id="after a silence",
        ),
    ],
)
async def test_people_who_share_a_number_replay(tmp_path: Path, carrier_name: str, calls: list[str]) -> None:
    """Each gets their own memory, or none. A bar stands for a silence after which another person may speak."""
    (tmp_path / "maya.md").write_text("You are Maya, talking to {{caller}}.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(PEOPLE)
    async with recording_stage(tmp_path, carrier_name) as stage:
        for said in calls:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            for part in said.split("|"):
                await conversation.user_says(part)
                await stage.answer(call, conversation, "Noted.")
                await asyncio.sleep(0.6 if "|" in said else 0)
            await conversation.user_says("I prefer window seats.")
            await call.hang_up()
            await stage.idle()
    await replay_all(tmp_path / "recordings", count=len(calls))


async def test_words_before_a_slow_answer_replay(tmp_path: Path) -> None:
    async with FakeLlm(pace=Pace(before_first_token=0.6)) as llm:
        llm.answers("We have two tables left.")
        brain = f'{{ url = "{llm.url}/v1", model = "llama3.2", api_key = "{llm.api_key}" }}'
        (tmp_path / "gateway.toml").write_text(f"[agents.maya]\nbrain = {brain}\nfirst_token_seconds = 0.2\n")
        async with recording_stage(tmp_path, SUMMARY_PROVIDER="extractive") as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Is there a table?")
            await conversation.until(lambda: conversation.history[-1]["content"].endswith("tables left."))
            await stage.played(call, conversation)
            await call.hang_up()
            await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.ended is not None
    assert recording.ended.turns[-1].text == "One moment, please. We have two tables left."


async def test_call_with_disabled_tools_replays(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\ndisabled_tools = ["end_call"]\n')
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, *FIRST)
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.header.agent["disabled_tools"] == ["end_call"]


async def test_caller_of_less_trust_is_not_told_more(tmp_path: Path) -> None:
    """Notes of earlier calls are used, facts are not."""
    trust = "{ attested = 'summaries', unattested = 'summaries', allow_listed = 'summaries' }"
    (tmp_path / "gateway.toml").write_text(f"[agents.maya.memory]\ntrust = {trust}\n")
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, *FIRST)
        await one_call(stage, "When is the inspection?", "On Monday.")
    _, last = await replay_all(tmp_path / "recordings", count=2)
    assert last.header.trust == "summaries" and last.memory.calls


async def test_caller_without_trust_replays(tmp_path: Path) -> None:
    """The call leaves no document. Its transcript is compared."""
    trust = "{ attested = 'none', unattested = 'none', allow_listed = 'none' }"
    (tmp_path / "gateway.toml").write_text(f"[agents.maya.memory]\ntrust = {trust}\n")
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, *FIRST)
    [recording] = recordings(tmp_path / "recordings")
    assert recording.ended is not None and recording.summary is None
    assert await replayed(recording) == []
    del recording.ended.turns[-1]
    [difference] = await replayed(recording)
    assert (difference.where, difference.came.splitlines()[-1]) == ("transcript", f"AGENT: {FIRST[1]}")


SOURCES = {
    "a SIP header": "sip_header:X-Customer-Id",
    "an attribute": "integration_attribute:customer",
    "a website": "",
}


@pytest.mark.parametrize("named_by", SOURCES)
async def test_identifier_other_than_the_number_replays(tmp_path: Path, named_by: str) -> None:
    """The first call is kept under it, the second one remembers the first."""
    source = f'memory.repeat_caller.identifier_source = "{SOURCES[named_by]}"\n' if SOURCES[named_by] else ""
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{source}")
    async with recording_stage(tmp_path) as stage, patient_client(stage.url) as http:
        for said in (FIRST[0], "When is the inspection?"):
            if named_by == "a website":
                await Site(stage, http).talk(said, user_identity="8812", name="Ana Lopez")
                continue
            stage.carrier.voice_path = f"/twilio/incoming{'?customer=8812' if named_by == 'an attribute' else ''}"
            header = {"SipHeader_X-Customer-Id": "8812"} if named_by == "a SIP header" else {}
            call, conversation = await stage.dial(**header)
            await stage.played(call, conversation)
            await conversation.user_says(said)
            await call.hang_up()
            await stage.idle()
    _, last = await replay_all(tmp_path / "recordings", count=2)
    assert last.header.identity.endswith(":8812")
    assert last.memory.calls


SAID_ONCE = "My name is Ana Lopez, and I prefer window seats."
IDENTIFYING = """
from gateway.tools.conversation import Conversation


def start_function(conv: Conversation) -> None:
    if conv.caller == "+12025550177":
        conv.state["customer_id"] = "8812"


def customer_is(conv: Conversation, number: str) -> str:
    \"\"\"Note who it is.\"\"\"
    conv.state["customer_id"] = number
    return "noted"
"""


@pytest.mark.parametrize("when", ["before the greeting", "during the call"])
async def test_caller_identified_by_a_function_replays(tmp_path: Path, when: str) -> None:
    """The memory of the number gives way to that of the customer, and the document is theirs."""
    (tmp_path / "functions.py").write_text(IDENTIFYING)
    (tmp_path / "gateway.toml").write_text(
        '[agents.maya]\nfunctions = "functions.py"\nmemory.repeat_caller.identifier_source = "state:customer_id"\n'
    )
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, "My name is Ben Okri.", "Hello, Ben.")
        for said in (SAID_ONCE, "Where do I sit?"):
            call, conversation = await stage.dial("+12025550177" if when == "before the greeting" else CALLER)
            await stage.played(call, conversation)
            if when == "during the call":
                customer = {"name": "customer_is", "arguments": '{"number": "8812"}'}
                assert await conversation.call_functions([customer]) == ["noted"]
                await conversation.message("UpdateThink")
                if said != SAID_ONCE:
                    await conversation.message("UpdatePrompt")
            await conversation.user_says(said)
            await stage.answer(call, conversation, "Noted.")
            await call.hang_up()
            await stage.idle()
    *_, last = await replay_all(tmp_path / "recordings", count=3)
    assert last.identity == "state:customer_id:8812"
    assert last.header.identity == (CALLER if when == "during the call" else last.identity)
    known = last.memory if when == "before the greeting" else last.late_memory[last.identity]
    assert [call.caller_name for call in known.calls] == ["Ana Lopez"]


@pytest.mark.parametrize("filler", ['"typing"', '{ after = 0.3, say = ["Let me see."] }'])
async def test_filler_replays(tmp_path: Path, filler: str) -> None:
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\nfiller = {filler}\n")
    async with recording_stage(tmp_path) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        heard = len(call.heard)
        await conversation.user_says("Is my bike ready?")
        await call.until(lambda: len(call.heard) > heard)
        await stage.answer(call, conversation, "It is ready.")
        await call.hang_up()
        await stage.idle()
    await replay_all(tmp_path / "recordings")


async def test_outbound_call_replays(tmp_path: Path, carrier_name: str) -> None:
    """With the context and the greeting of its order."""
    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}\nWhy you call: {{context}}\nThat is all.")
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nprompt = "maya.md"\nnumbers = ["{CALLED}"]\n')
    async with recording_stage(tmp_path, carrier_name) as stage:
        stage.carrier.callee = "answers"
        order = {"to": CALLER, "context": "The bike is ready.", "greeting": "Your bike is ready."}
        answer = await stage.http.post("/v1/outbound/call", json=order)
        conversation = await stage.engine.next_conversation()
        await conversation.configured()
        await conversation.user_says("I will come at five.")
        [call] = [call for call in stage.carrier.calls if call.id == answer.json()["call_id"]]
        await stage.answer(call, conversation, "See you.")
        await call.hang_up()
        await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert "The bike is ready." in recording.header.agent["prompt"]


async def test_pressed_keys_replay(tmp_path: Path, carrier_name: str) -> None:
    async with recording_stage(tmp_path, carrier_name) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await call.press("12#")
        await conversation.user_says("I have chosen.")
        await call.hang_up()
        await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    frames = [frame.content.fields for frame in recording.frames if isinstance(frame.content, JsonFrame)]
    pressed = [frame for frame in frames if frame.get("event") == "dtmf"]
    assert len(pressed) == 3


async def test_call_without_a_turn_replays(tmp_path: Path) -> None:
    """It is replayed and compared, and leaves no document."""
    async with recording_stage(tmp_path) as stage:
        call, _ = await stage.dial()
        await call.hang_up()
        await stage.idle()
    [recording] = recordings(tmp_path / "recordings")
    assert recording.ended is not None
    assert await replayed(recording) == []


async def test_answer_from_documents_replays(tmp_path: Path) -> None:
    """The documents are not needed."""
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "hours.md").write_text("# Hours\n\nWe are open from nine to six.\n")
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nbrain = "script"\nknowledge = "documents"\n')
    async with recording_stage(tmp_path) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("When are you open?")
        await stage.played(call, conversation)
        await call.hang_up()
        await stage.idle()
    [recording] = await replay_all(tmp_path / "recordings")
    assert recording.ended is not None and "nine to six" in recording.ended.turns[-1].text


async def test_recording_of_a_killed_gateway_replays(tmp_path: Path) -> None:
    """As far as it was written."""
    async with recording_stage(tmp_path) as stage:
        await one_call(stage, *FIRST)
    [path] = (tmp_path / "recordings").glob("*.jsonl")
    written = path.read_bytes()
    path.write_bytes(written[: len(written) * 2 // 3])
    [recording] = recordings(tmp_path / "recordings")
    assert recording.ended is None and "cut off" in recording.warning
    assert await replayed(recording) == []
