from datetime import UTC, datetime, timedelta
from uuid import UUID

import orjson
import pytest

from gateway.session import EndReason, Speaker, Turn, VoiceSession

START = datetime(2026, 2, 6, 23, 15, 0, 250_000, tzinfo=UTC)


def session(**fields):
    return VoiceSession(agent="maya", caller="+12025550143", carrier="twilio", started_at=START, **fields)


def stored_and_read(session):
    return VoiceSession.from_json(orjson.loads(orjson.dumps(session.as_json())))


def test_finished_session_survives_json():
    stored = session(
        ended_at=START + timedelta(seconds=262),
        end_reason=EndReason.CALLER_HUNG_UP,
        turns=[
            Turn(Speaker.AGENT, "Hello, ", START, unheard="how can I help?"),
            Turn(Speaker.CALLER, "Grüß Gott “Maya” 🎈\n", START + timedelta(seconds=2)),
        ],
    )
    assert stored_and_read(stored) == stored


def test_live_session_survives_json():
    stored = session()
    read = stored_and_read(stored)
    assert read == stored
    assert (read.ended_at, read.end_reason, read.turns) == (None, None, [])


@pytest.mark.parametrize("reason", EndReason)
def test_every_reason_survives_json(reason):
    assert stored_and_read(session(end_reason=reason)).end_reason is reason


def test_other_zones_stay_the_same_moment():
    stored = session(ended_at=datetime.fromisoformat("2026-02-07T00:19:22+01:00"))
    assert stored_and_read(stored).ended_at == stored.ended_at


def test_each_session_has_its_own_id():
    first, second = session(), session()
    assert first.id != second.id
    assert first.id == f"voice-session:{UUID(first.uuid)}"


def test_seconds_are_those_of_the_call():
    assert session(ended_at=START + timedelta(minutes=4, seconds=22.5)).seconds == 262.5


def test_seconds_of_a_live_call_go_on():
    assert session().seconds > 0


def test_turn_with_a_rest_was_not_heard_whole():
    assert Turn(Speaker.AGENT, "Hello", START).heard
    assert not Turn(Speaker.AGENT, "Hello", START, unheard="there").heard
