"""Recordings of whole calls: who agrees to them, and who can read them."""

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from gateway.app import Timeouts
from gateway.calls.call import LiveCallTimeouts
from gateway.calls.consent import ConsentTimeouts
from gateway.calls.recording_files import RecordingCipher
from gateway.replay.recording import read
from gateway.settings import Secret
from tests.fakes.deepgram import speech
from tests.replay.calls import replayed
from tests.stage import CALLER, Stage, make_carrier, staged


def files(folder: Path) -> list[Path]:
    return sorted((folder / "recordings").iterdir())


@contextlib.asynccontextmanager
async def recording_stage(folder: Path, table: str = "", **options: Any) -> AsyncIterator[Stage]:
    (folder / "gateway.toml").write_text(table)
    async with staged(folder, make_carrier("twilio"), RECORD_DIR=str(folder / "recordings"), **options) as stage:
        yield stage


async def one_call(stage: Stage, caller: str = CALLER, *, said: str = "I would like two pizzas.") -> None:
    call, conversation = await stage.dial(caller)
    await stage.played(call, conversation)
    await conversation.user_says(said)
    await stage.answer(call, conversation, "All right.")
    await call.hang_up()
    await stage.idle()


# Consent

ANNOUNCED = """
[agents.maya]
consent = { announce = "This call is recorded." }
"""
REQUIRED = """
[agents.maya]
consent = { announce = "We record calls to improve.", require = true }
"""
QUESTION = "May I record this call? Please say yes or no."
GREETING = "Hello, this is Maya. How can I help you?"
NOT_RECORDED = "All right, this call is not recorded."


async def _say(stage: Stage, call: Any, conversation: Any, text: str) -> None:
    """The caller says this, and hears the answer to the end."""
    marks = len(call.marks_echoed)
    await conversation.user_says(text)
    await call.until(lambda: len(call.marks_echoed) > marks)
    await conversation.until(lambda: not conversation.agent_speaking)
    await stage.played(call, conversation)


async def _session(stage: Stage) -> dict[str, Any]:
    await stage.idle()
    [session] = (await stage.http.get("/v1/sessions")).json()
    return dict((await stage.http.get(f"/v1/sessions/{session['session']}")).json())


async def test_announcement_comes_before_the_greeting(tmp_path: Path) -> None:
    async with recording_stage(tmp_path, ANNOUNCED) as stage:
        await one_call(stage)
        session = await _session(stage)
        assert session["transcript"][0]["text"] == f"This call is recorded. {GREETING}"
        assert session["consent"] == "announced"
        document = await stage.document()
    [path] = files(tmp_path)
    assert "recorded" not in document["content"]
    assert [str(difference) for difference in await replayed(read(path))] == []


@pytest.mark.parametrize("agents", [ANNOUNCED, REQUIRED])
async def test_nothing_is_announced_where_nothing_is_recorded(tmp_path: Path, agents: str) -> None:
    """Without RECORD_DIR, or of a withheld number; unless the agent always announces it."""
    (tmp_path / "gateway.toml").write_text(agents)
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        for caller in (CALLER, "anonymous"):
            call, conversation = await stage.dial(caller)
            assert "record" not in str(conversation.settings["agent"]["greeting"])
            await call.hang_up()
        await stage.idle()
    (tmp_path / "gateway.toml").write_text(agents.replace(" }", ", always = true }"))
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        call, conversation = await stage.dial()
        assert "record" in str(conversation.settings["agent"]["greeting"])
        await call.hang_up()


@pytest.mark.parametrize("brain", ["", 'brain = "script"\n'])
async def test_caller_who_agrees_is_recorded_from_the_start(tmp_path: Path, carrier_name: str, brain: str) -> None:
    async with recording_stage(tmp_path, REQUIRED + brain, by=carrier_name) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        assert files(tmp_path) == []
        await _say(stage, call, conversation, "Yes, that's fine.")
        await call.hang_up()
        session = await _session(stage)
    [path] = files(tmp_path)
    asked, answered, greeted = [turn["text"] for turn in session["transcript"]]
    assert asked == f"We record calls to improve. {QUESTION}"
    assert (answered, greeted) == ("Yes, that's fine.", f"Thank you. {GREETING}")
    assert session["consent"] == "agreed"
    recording = read(path)
    assert recording.frames[0].at < 1.0 and recording.ended is not None and recording.ended.consent == "agreed"
    assert [str(difference) for difference in await replayed(recording)] == []


@pytest.mark.parametrize("said", ["No, thank you.", "I'd rather not."])
async def test_caller_who_refuses_is_not_recorded(tmp_path: Path, carrier_name: str, said: str) -> None:
    async with recording_stage(tmp_path, REQUIRED, by=carrier_name) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await _say(stage, call, conversation, said)
        await conversation.user_says("I would like two pizzas.")
        await stage.answer(call, conversation, "All right.")
        await call.hang_up()
        session = await _session(stage)
        assert session["consent"] == "refused"
        assert session["transcript"][2]["text"] == f"{NOT_RECORDED} {GREETING}"
        assert "pizzas" in (await stage.document())["content"]  # memory does not depend on it
    assert files(tmp_path) == []


async def test_caller_who_does_not_answer_is_not_recorded(tmp_path: Path) -> None:
    at_once = LiveCallTimeouts(consent=ConsentTimeouts(answer=0.05))
    async with recording_stage(tmp_path, REQUIRED, timeouts=Timeouts(live_calls=at_once), hurries=True) as stage:
        call, conversation = await stage.dial()
        await conversation.message("InjectAgentMessage")
        spoken = f"We record calls to improve. {QUESTION} {NOT_RECORDED} {GREETING}"
        await call.wait_heard(sum(len(speech(sentence)) for sentence in re.findall(r"\w[^.?]*[.?]", spoken)))
        await stage.played(call, conversation)
        await call.hang_up()
        session = await _session(stage)
    assert [turn["text"] for turn in session["transcript"]] == [spoken]
    assert session["consent"] == "no answer"
    assert files(tmp_path) == []


async def test_hangup_before_the_answer_leaves_no_recording(tmp_path: Path) -> None:
    async with recording_stage(tmp_path, REQUIRED) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await call.hang_up()
        assert (await _session(stage))["consent"] == "no answer"
    assert files(tmp_path) == []


@pytest.mark.parametrize("answer, recorded", [("Yes.", 1), ("No.", 0)])
async def test_new_stream_does_not_ask_again(tmp_path: Path, answer: str, recorded: int) -> None:
    async with recording_stage(tmp_path, REQUIRED) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await _say(stage, call, conversation, answer)
        await call.drop()
        await call.wait_stream(2)
        resumed = await stage.engine.next_conversation()
        settings = await resumed.configured()
        assert "greeting" not in settings["agent"]
        await call.hang_up()
        assert (await _session(stage))["consent"] == ("agreed" if recorded else "refused")
    assert len(files(tmp_path)) == recorded


# Encryption


async def test_encrypted_call_is_played_and_replayed(tmp_path: Path) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    async with recording_stage(tmp_path, RECORD_KEY=f"{new},{old}") as stage:
        await one_call(stage)
        [path] = files(tmp_path)
    stored = path.read_bytes()
    assert b"pizzas" not in stored and CALLER.encode() not in stored
    recording = read(path, RecordingCipher(Secret(new)))
    assert recording.header.caller == CALLER and recording.ended is not None
    assert [str(difference) for difference in await replayed(recording)] == []
