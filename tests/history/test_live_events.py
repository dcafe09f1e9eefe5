from datetime import UTC, datetime
from pathlib import Path

from gateway.history.call_log import CallLog, Cursor, events_of_call
from gateway.history.live_events import EventPublisher
from gateway.session import VoiceSession

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
STAGES = {"transcript": 0.1, "first_frame": 0.84}


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
    call.first_audio_sent(STAGES)
    call.agent_said(1, "And more.", NOW)
    call.caller_said("Two?", NOW)
    call.first_audio_sent(STAGES)
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
