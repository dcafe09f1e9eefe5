"""Operator control of one node; several are covered by whole calls in test_workers."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.agents import Agent
from gateway.calls.call_table import CallTable, ManagedCall
from gateway.calls.operator import OperatorControl
from gateway.calls.state import CallState
from gateway.cluster.node import SingleNode
from gateway.session import EndReason, Speaker, Turn, VoiceSession

MAYA = Agent("maya", "You are Maya.")
START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


class LiveCall:
    """Records what the operator does to it."""

    def __init__(self, number: int) -> None:
        started = START - timedelta(minutes=number)
        self.session = VoiceSession("maya", "+12025550143", "twilio", id=f"voice-session:{number}", started_at=started)
        self.is_over = False
        self.said: list[str] = []
        self.reason: EndReason | None = None

    def turns(self) -> list[Turn]:
        return [Turn(Speaker.CALLER, "Hello.", START, "")]

    def operator_says(self, words: str) -> None:
        self.said.append(words)

    def end(self, reason: EndReason) -> None:
        self.reason = reason


@pytest.fixture
def calls():
    return [LiveCall(1), LiveCall(2)]


@pytest.fixture
def operator(calls):
    table = CallTable(3600.0)
    for call in calls:
        table.add(ManagedCall(("twilio", call.session.id), "", "", "", MAYA, "", CallState.ACTIVE, media=call))
    return OperatorControl(table, SingleNode())


async def test_oldest_call_comes_first_with_its_turns(operator):
    sessions = await operator.all_calls()
    assert [session.id for session in sessions] == ["voice-session:2", "voice-session:1"]
    assert [turn.text for turn in sessions[0].turns] == ["Hello."]


async def test_commands_reach_their_call(operator, calls):
    assert await operator.say("voice-session:1", "Hold on.")
    assert await operator.end_call("voice-session:2")
    assert [(call.said, call.reason) for call in calls] == [(["Hold on."], None), ([], EndReason.OPERATOR_HUNG_UP)]


@pytest.mark.parametrize("session_id", ["voice-session:1", "voice-session:3"])
async def test_ended_call_is_not_found(operator, calls, session_id):
    calls[0].is_over = True
    assert operator.here(session_id) is None
    assert not await operator.say(session_id, "Hold on.")
    assert not await operator.end_call(session_id)
