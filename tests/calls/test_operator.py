"""What an operator sees of one node; with several it is tried in whole calls."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.calls.call_table import CallTable
from gateway.calls.operator import OperatorControl
from gateway.session import EndReason, Speaker, Turn, VoiceSession

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


class LiveCall:
    """A call that does what it is told, and remembers it."""

    def __init__(self, number: int) -> None:
        started = START - timedelta(minutes=number)
        self.session = VoiceSession("maya", "+12025550143", "twilio", id=f"voice-session:{number}", started_at=started)
        self.is_over = False
        self.said: list[str] = []
        self.reason: EndReason | None = None

    def turns(self) -> list[Turn]:
        return [Turn(Speaker.CALLER, "Hello.", START, "")]

    def say(self, words: str) -> None:
        self.said.append(words)

    def end(self, reason: EndReason) -> None:
        self.reason = reason


@pytest.fixture
def calls():
    return [LiveCall(1), LiveCall(2)]


@pytest.fixture
def switchboard(calls):
    call_table = CallTable()
    for call in calls:
        call_table.went_live(("twilio", call.session.id), call)
    return OperatorControl(call_table, None)


async def test_oldest_call_comes_first_with_its_words(switchboard):
    sessions = await switchboard.all_calls()
    assert [session.id for session in sessions] == ["voice-session:2", "voice-session:1"]
    assert [turn.text for turn in sessions[0].turns] == ["Hello."]


async def test_wishes_reach_the_call_that_is_meant(switchboard, calls):
    assert await switchboard.have_said("voice-session:1", "Hold on.")
    assert await switchboard.have_ended("voice-session:2")
    assert [(call.said, call.reason) for call in calls] == [(["Hold on."], None), ([], EndReason.OPERATOR_HUNG_UP)]


@pytest.mark.parametrize("session_id", ["voice-session:1", "voice-session:3"])
async def test_nobody_has_a_call_that_is_over(switchboard, calls, session_id):
    calls[0].is_over = True
    assert switchboard.here(session_id) is None
    assert not await switchboard.have_said(session_id, "Hold on.")
    assert not await switchboard.have_ended(session_id)
