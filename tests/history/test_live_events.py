from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.history.call_log import CallLog, Cursor, events_of_call, turns_from_rows
from gateway.history.live_events import EventPublisher
from gateway.llm.chat import ModelAttempt, ModelName
from gateway.response_time import ResponseTime
from gateway.session import VoiceSession

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
MEASURED = ResponseTime(transcript=0.1, first_frame=0.84)


async def test_off_the_record_is_shown_and_not_kept(tmp_path: Path) -> None:
    log = CallLog(tmp_path / "call-log.db")
    call_events, session = EventPublisher(log), VoiceSession("maya", "+12025550143", "twilio")
    call = call_events.of(session)
    call.caller_said("On the record.", NOW)
    call.set_off_record(True)
    call.caller_said("Off the record.", NOW)
    call.set_off_record(False)
    call.caller_said("On it again.", NOW)
    await log.flushed()
    shown = [event["text"] for _, event in await call_events.after(Cursor())]
    assert shown == ["On the record.", "Off the record.", "On it again."]
    log.close()
    kept = [event.get("text") for event in events_of_call(tmp_path / "call-log.db", session.id)]
    assert kept == ["On the record.", None, "On it again."]


async def test_first_piece_of_an_answer_has_its_latency(tmp_path: Path) -> None:
    """Whichever comes first, its text or its sound."""
    log = CallLog(tmp_path / "call-log.db")
    call_events = EventPublisher(log)
    call = call_events.of(VoiceSession("maya", "+12025550143", "twilio"))
    call.caller_said("One?", NOW)
    call.agent_said(1, "Text first.", NOW)
    call.first_audio_sent(MEASURED)
    call.agent_said(1, "And more.", NOW)
    call.caller_said("Two?", NOW)
    call.first_audio_sent(MEASURED)
    call.agent_said(2, "Sound first.", NOW)
    call.caller_said("Three?", NOW)
    call.agent_said(3, "Never heard.", NOW)
    call.publish("hangup", reason="caller hung up", seconds=1, turns=6)
    await log.flushed()
    told = [(event.get("text"), event.get("latency")) for _, event in await call_events.after(Cursor())]
    assert told == [
        ("One?", None),
        ("Text first.", 0.84),
        ("And more.", None),
        ("Two?", None),
        ("Sound first.", 0.84),
        ("Three?", None),
        ("Never heard.", None),
        (None, None),
    ]
    log.close()


async def test_latency_follows_a_text_that_is_published(tmp_path: Path) -> None:
    """A function call came between the text of the answer and its audio."""
    log = CallLog(tmp_path / "call-log.db")
    call_events = EventPublisher(log)
    call = call_events.of(VoiceSession("maya", "+12025550143", "twilio"))
    call.caller_said("Is it ready?", NOW)
    call.agent_said(1, "Let me look.", NOW)
    call.publish("function_called", function="order_status")
    call.first_audio_sent(MEASURED)
    call.agent_said(1, "It is.", NOW)
    await log.flushed()
    events = [event for _, event in await call_events.after(Cursor())]
    published = [(event["event"], event.get("answer"), event.get("latency")) for event in events]
    assert published == [
        ("turn", None, None),
        ("turn", 1, None),
        ("function_called", None, None),
        ("answer_started", 1, 0.84),
        ("turn", 1, None),
    ]
    assert [logged.response for logged in turns_from_rows(events)] == [None, MEASURED]
    log.close()


@pytest.mark.parametrize("audio_first", [False, True])
async def test_words_before_the_answer_are_published_at_once(audio_first: bool) -> None:
    published: list[Mapping[str, Any]] = []
    call = EventPublisher(listener=published.append).of(VoiceSession("maya", "+12025550143", "twilio"))
    call.caller_said("Is it ready?", NOW)
    if audio_first:  # and whose audio it is, is not known yet
        call.first_audio_sent(ResponseTime(first_frame=0.5))
    call.agent_said(1, "One moment, please.", NOW, before_answer=True)
    assert (published[-1]["text"], published[-1].get("latency")) == ("One moment, please.", None)
    call.agent_said(1, "It is.", NOW)
    call.first_audio_sent(MEASURED)
    assert (published[-1]["text"], published[-1]["latency"]) == ("It is.", 0.84)
    assert [logged.response for logged in turns_from_rows(published)] == [None, MEASURED]


async def test_model_of_the_engine_is_named_with_the_answer() -> None:
    published: list[Mapping[str, Any]] = []
    call = EventPublisher(listener=published.append).of(VoiceSession("maya", "+12025550143", "twilio"))
    call.caller_said("One?", NOW)
    call.agent_said(1, "Yes.", NOW)
    call.first_audio_sent(MEASURED, ModelName("xai", "grok-voice-latest"))
    assert (published[-1]["provider"], published[-1]["model"]) == ("xai", "grok-voice-latest")


async def test_request_to_a_model_keeps_the_answer_held() -> None:
    """A short answer is complete before its audio comes; its text still waits for the response time."""
    published: list[Mapping[str, Any]] = []
    call = EventPublisher(listener=published.append).of(VoiceSession("maya", "+12025550143", "twilio"))
    call.caller_said("One?", NOW)
    call.agent_said(1, "Yes.", NOW)
    call.model_finished(ModelAttempt(ModelName("anthropic", "claude-haiku-5-5"), "answered", "", 0.4, 0.3))
    call.first_audio_sent(MEASURED)
    _, finished, answer = published
    fields = ("event", "provider", "model", "outcome", "error", "seconds", "first_token")
    assert [finished[name] for name in fields] == [
        "model_finished", "anthropic", "claude-haiku-5-5", "answered", "", 0.4, 0.3
    ]  # fmt: skip
    assert (answer["text"], answer["latency"]) == ("Yes.", 0.84)
