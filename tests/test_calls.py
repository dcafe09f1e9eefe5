"""Whole calls through a real gateway, the same for both carriers."""

import asyncio
import re
from importlib import resources
from pathlib import Path
from typing import NoReturn

import pytest

from gateway.app import Timeouts
from gateway.calls.engine_connection import EngineTimeouts
from gateway.calls.speech_output import APOLOGY_TEXT
from tests.fakes.deepgram import FakeDeepgram
from tests.stage import CALLER, GREETING_SOUND, SOUND, Stage, make_carrier, staged, until

GREETING = "Hello, this is Maya. How can I help you?"
UNKNOWN_FUNCTION = '{"error":"there is no function of this name"}'


async def test_caller_is_greeted_and_heard(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await call.speak(SOUND * 3)
    await conversation.hears(480)
    assert bytes(call.heard).startswith(GREETING_SOUND)
    assert bytes(conversation.heard).startswith(SOUND * 3)
    assert conversation.problems == []
    await call.hang_up()


async def test_call_leaves_archive_and_document(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    await conversation.user_says("I need a new chain for my bike before Friday.")
    await stage.answer(call, conversation, "Sure, I booked you in for Thursday at ten.")
    await conversation.user_says("Thank you, goodbye.")
    await call.hang_up()
    document = await stage.document()
    archive = await stage.archive()
    assert archive == (
        f"AGENT: {GREETING}\n"
        "CALLER: I need a new chain for my bike before Friday.\n"
        "AGENT: Sure, I booked you in for Thursday at ten.\n"
        "CALLER: Thank you, goodbye.\n"
    )
    assert re.fullmatch(r"Voice Call Summary — \d{4}-\d\d-\d\d \d\d:\d\d [AP]M", document["title"])
    assert document["source"] == "voice-call"
    assert f"**Caller:** ({CALLER})" in document["content"]
    assert "new chain for my bike" in document["content"]
    await stage.idle()
    assert len(await stage.documents()) == 1


async def test_second_call_knows_the_first(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("My name is Ana, and I need a new chain before Friday.")
    await stage.answer(call, conversation, "I booked you in for Thursday at ten.")
    await call.hang_up()
    await stage.document()
    _, again = await stage.dial()
    assert "new chain before Friday" in again.prompt
    assert "Thursday at ten" in again.prompt
    assert "{{" not in again.prompt


async def test_first_call_knows_nothing(stage: Stage) -> None:
    _, conversation = await stage.dial()
    assert "there are no notes of an earlier call" in conversation.prompt


async def test_hangup_ends_the_engines_connection(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await call.hang_up()
    await conversation.wait_closed()
    await until(lambda: conversation.closed == 1000)
    await call.over(5)
    assert call.ended_by == "caller"


# Interrupting each other


async def test_barge_in_silences_the_agent(held_stage: Stage) -> None:
    """The carrier is cleared at once; what the engine still sends of the old answer never reaches the phone."""
    call, conversation = await held_stage.dial()
    await call.wait_queued(len(GREETING_SOUND))
    call.play()
    await held_stage.played(call, conversation)
    await conversation.user_says("Tell me everything.")
    await conversation.agent_says("Well, it is a long story.", audio=b"\x11" * 8000)
    await call.wait_queued(8000)
    await conversation.barge_in(late_audio=[b"\x22" * 320], late_text="It began long ago.")
    await call.until(lambda: call.clears > 1)
    await conversation.end_turn("Stop, please.")
    await conversation.agent_says("All right.", audio=b"\x33" * 800)
    await call.wait_queued(800)
    assert call.dropped.endswith(b"\x11" * 8000)
    call.play()
    await held_stage.played(call, conversation)
    await call.hang_up()
    assert b"\x22" * 100 not in call.heard
    assert await held_stage.archive() == (
        f"AGENT: {GREETING}\nCALLER: Tell me everything.\nCALLER: Stop, please.\nAGENT: All right.\n"
    )


async def test_only_what_was_heard_is_kept(held_stage: Stage) -> None:
    call, conversation = await held_stage.dial()
    await call.wait_queued(len(GREETING_SOUND))
    call.play()
    await held_stage.played(call, conversation)
    await conversation.user_says("When can I come?")
    await conversation.agent_says("You can come on Monday.", audio=b"\x11" * 8000, sizes=(3200,), done=False)
    await conversation.agent_says("Or on Tuesday after lunch.", audio=b"\x12" * 8000)
    await call.wait_queued(16000)
    marks = len(call.marks_echoed)
    call.play(8000)
    await call.until(lambda: len(call.marks_echoed) == marks + 3)  # after 0.4 and 0.8 s, and between the sentences
    await call.speak(SOUND)
    await conversation.hears(2 * len(SOUND))
    await conversation.barge_in(late_text="", late_audio=[])
    await conversation.end_turn("Monday is fine.")
    await call.hang_up()
    archive = await held_stage.archive()
    assert "AGENT: You can come on Monday. —\nCALLER: Monday is fine.\n" in archive
    assert "Tuesday" not in archive
    assert "Tuesday" not in (await held_stage.document())["content"]


async def test_every_start_of_speech_clears(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await conversation.user_starts_speaking()
    await call.until(lambda: call.clears == 1)
    await conversation.send({"type": "UserStartedSpeaking"})
    await call.until(lambda: call.clears == 2)


# Last words and goodbyes


async def test_last_words_at_hangup_are_kept(stage: Stage) -> None:
    """The caller hangs up in mid-sentence; the engine is given the time to write it down."""
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await conversation.user_starts_speaking()
    await call.until(lambda: call.clears == 1)
    hanging_up = asyncio.create_task(call.hang_up())
    await conversation.message("ForceEndTurn")
    await conversation.end_turn("And tell Ana I said hello.", trigger="manual")
    await hanging_up
    assert (await stage.archive()).endswith("CALLER: And tell Ana I said hello.\n")


async def test_frames_of_the_last_moment_arrive(stage: Stage) -> None:
    call, conversation = await stage.dial()
    spoken = b"".join(bytes([number]) * 160 for number in range(1, 26))
    await call.speak(spoken)
    await call.hang_up()
    await conversation.wait_closed()
    assert bytes(conversation.heard).startswith(spoken)


async def test_caller_gone_before_the_engine_came_is_heard(stage: Stage) -> None:
    stage.engine.behave(hold_settings=True)
    call = await stage.carrier.dial()
    conversation = await stage.engine.next_conversation()
    await conversation.settings_received()
    await call.speak(SOUND * 3)
    hanging_up = asyncio.create_task(call.hang_up())
    await conversation.apply_settings()
    await hanging_up
    await conversation.wait_closed()
    assert bytes(conversation.heard).startswith(SOUND * 3)


async def test_cancelled_goodbye_goes_on(stage: Stage) -> None:
    call, conversation = await stage.dial()
    [id_] = await conversation.request_functions(["end_call"])
    await conversation.message("FunctionCallResponse")
    await conversation.cancel_functions([id_])
    await stage.answer(call, conversation, "I am still here.")
    await conversation.user_says("Good.")
    await call.hang_up()
    assert (await stage.archive()).endswith("I am still here.\nCALLER: Good.\n")


async def test_caller_who_goes_on_is_not_cut_off(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.call_functions(["end_call"])
    await conversation.user_says("Wait, one more thing.")
    await stage.answer(call, conversation, "Of course.")
    assert not call.ended_by
    await call.hang_up()


async def test_unknown_function_is_answered(stage: Stage) -> None:
    _, conversation = await stage.dial()
    assert await conversation.call_functions(["order_pizza"]) == [UNKNOWN_FUNCTION]


# Silence


async def test_pausing_carrier_is_filled_with_silence(stage: Stage) -> None:
    _, conversation = await stage.dial()
    await conversation.hears(1600)
    assert set(conversation.heard) == {0xFF}


async def test_first_words_wait_for_the_engine(tmp_path: Path, carrier_name: str) -> None:
    engine = FakeDeepgram(hold_settings=True)
    async with staged(tmp_path, make_carrier(carrier_name), engine=engine) as stage:
        call = await stage.carrier.dial()
        conversation = await engine.next_conversation()
        await conversation.settings_received()
        await call.speak(SOUND * 20)
        await conversation.apply_settings()
        await conversation.hears(3200)
        assert bytes(conversation.heard).startswith(SOUND * 20)
        assert conversation.problems == []


# The engine fails


async def test_lost_engine_is_replaced(stage: Stage) -> None:
    """The new connection knows the conversation, does not greet, and says a short sorry."""
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    await conversation.user_says("Is my bike ready?")
    await conversation.call_functions(["order_status"])
    await stage.answer(call, conversation, "It will be on Friday.")
    conversation.abort()
    again = await stage.engine.next_conversation()
    settings = await again.configured()
    assert "greeting" not in settings["agent"]
    greeting, question, used, answer = settings["agent"]["context"]["messages"]
    assert [turn["content"] for turn in (greeting, question, answer)] == [
        GREETING,
        "Is my bike ready?",
        "It will be on Friday.",
    ]
    [function] = used["function_calls"]
    assert (function["name"], function["response"]) == ("order_status", UNKNOWN_FUNCTION)
    await again.message("InjectAgentMessage")
    await again.user_says("Thanks.")
    await call.hang_up()
    assert (await stage.archive()).startswith(
        f"AGENT: {GREETING}\nCALLER: Is my bike ready?\nAGENT: It will be on Friday."
    )
    assert (await stage.archive()).endswith("CALLER: Thanks.\n")
    await stage.document()


async def test_engine_error_is_a_lost_engine(stage: Stage) -> None:
    _, conversation = await stage.dial()
    await conversation.fail("SERVER_GOING_AWAY")
    again = await stage.engine.next_conversation()
    await again.configured()


async def test_refused_key_ends_with_an_apology(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.engine.refuse_next(401)
    call = await stage.carrier.dial()
    await call.over(10)
    apology = resources.files("gateway").joinpath("sounds/apology.ulaw").read_bytes()
    assert bytes(call.heard) == apology
    assert [record.reason for record in caplog.records if record.message == "voice engine gone, apologising"] == [
        "the engine answered the handshake with status 401"
    ]
    assert await stage.archive() == f"AGENT: {APOLOGY_TEXT}\n"


async def test_engine_gone_for_good_ends_the_call(tmp_path: Path) -> None:
    timeouts = Timeouts(engine=EngineTimeouts(retry_pauses=(0.01,) * 5))
    async with staged(tmp_path, make_carrier("twilio"), timeouts=timeouts) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Hello?")
        stage.engine.refuse_next(503, times=10)
        conversation.abort()
        await call.over(20)
        assert (await stage.archive()).endswith(f"CALLER: Hello?\nAGENT: {APOLOGY_TEXT}\n")


async def test_call_that_fails_is_hung_up(tmp_path: Path, carrier_name: str, caplog: pytest.LogCaptureFixture) -> None:
    """No caller is left in silence, whatever fails."""

    async def breaks(*_: object, **__: object) -> NoReturn:
        raise RuntimeError("a mistake of ours")

    async with staged(tmp_path, make_carrier(carrier_name), connect=breaks) as stage:
        call = await stage.carrier.dial()
        await call.over(10)
        assert call.ended_by == "gateway-rest"
    assert [record.message for record in caplog.records].count("call failed") == 1


async def test_engine_nonsense_does_not_end_the_call(stage: Stage) -> None:
    call, conversation = await stage.dial()
    for text in ("not json", "[]", '{"type": "SomethingNew"}', '{"type": "ConversationText"}', "{}"):
        await conversation.send_text(text)
    await conversation.user_says("Still there?")
    await stage.answer(call, conversation, "Yes.")
    await call.hang_up()
    assert (await stage.archive()).endswith("CALLER: Still there?\nAGENT: Yes.\n")


# Who is rejected, and what is not kept


async def test_unlisted_caller_is_rejected(tmp_path: Path, carrier_name: str) -> None:
    async with staged(tmp_path, make_carrier(carrier_name), ALLOWED_CALLERS="+12025550199") as stage:
        call = await stage.carrier.dial()
        assert call.rejected
        assert stage.engine.conversations == []
        await stage.dial("+12025550199")


async def test_call_without_words_leaves_nothing(tmp_path: Path, carrier_name: str) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\ngreeting = ""\n')
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        call, _ = await stage.dial()
        await call.hang_up()
        await stage.idle()
        assert stage.archives() == []
        assert await stage.documents() == []


async def test_cards_and_passwords_are_not_kept(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("My card is 4111 1111 1111 1111 and my password is swordfish.")
    await call.hang_up()
    for text in (await stage.archive(), (await stage.document())["content"]):
        assert "4111" not in text
        assert "swordfish" not in text
    await stage.idle()
    files = [path for path in stage.archive_dir.parent.rglob("*") if path.is_file()]
    assert {"call-log.db", "gateway.db"} <= {path.name for path in files}
    assert [path.name for path in files if b"4111 1111" in path.read_bytes()] == []
    assert [path.name for path in files if b"swordfish" in path.read_bytes()] == []
