from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.agents import Agent, AgentDirectory
from gateway.calls.pending_call import PendingCall, pending_call_from_journal, pending_call_from_record
from gateway.cluster.directory import CallRecord, CallState
from gateway.history.call_log import RecoveredCall
from gateway.memory.access import MemoryAccess
from gateway.memory.trust import TrustLevel
from gateway.session import VoiceSession

MAYA = Agent("maya", "You are Maya.")


@pytest.fixture
def agents(tmp_path: Path) -> AgentDirectory:
    return AgentDirectory({}, tmp_path)


def a_ring() -> PendingCall:
    return PendingCall(
        ("twilio", "CA1"),
        "AC1",
        "sip_header:x-customer:7",
        "+12025550100",
        MAYA,
        "wss://voice.example.com/twilio/media",
        130.0,
        number="+12025550143",
        access=MemoryAccess(TrustLevel.SUMMARIES),
    )


def test_tokens_differ_and_stay_out_of_sight() -> None:
    pending = a_ring()
    assert a_ring().token != pending.token
    assert len(pending.token) >= 32
    assert pending.token not in repr(pending)


def test_call_goes_on_with_another_token() -> None:
    pending = a_ring()
    pending.used = True
    again = pending.again(expires=200.0)
    assert (again.session_id, again.attempt, again.used, again.expires) == (pending.session_id, 1, False, 200.0)
    assert again.token != pending.token


def test_session_keeps_the_number_beside_the_caller() -> None:
    session = a_ring().new_session()
    assert (session.caller, session.number) == ("sip_header:x-customer:7", "+12025550143")
    pending = a_ring()
    pending.caller = pending.number
    assert pending.new_session().number == ""


def test_journal_makes_the_same_ring(agents: AgentDirectory) -> None:
    pending = a_ring()
    pending.handed_over = True
    again = pending_call_from_journal(RecoveredCall(pending.new_session(), pending.journal_header, ""), agents)
    assert again.journal_header == pending.journal_header
    assert (again.caller, again.session_id) == (pending.caller, pending.session_id)


def test_other_nodes_make_the_same_ring(agents: AgentDirectory) -> None:
    pending = a_ring()
    record = CallRecord(
        pending.key,
        "another-node",
        CallState.RINGING,
        pending.account_id,
        pending.caller,
        pending.called,
        pending.media_url,
        token=pending.token,
        number=pending.number,
        tier=pending.access.level,
    )
    again = pending_call_from_record(record, None, agents, expires=130.0)
    assert again.journal_header == pending.journal_header
    assert again.opens(pending.token, "AC1", 129.0)
    assert again.shared


def test_recording_tells_how_to_place_the_call_again() -> None:
    started = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
    header = a_ring().recording_header(VoiceSession(agent="maya", caller="x", carrier="twilio", started_at=started))
    assert header["started_at"] == "2026-02-06T23:15:00+00:00"
    assert {name: header[name] for name in ("carrier", "caller", "called", "account_id", "call_id")} == {
        "carrier": "twilio",
        "caller": "+12025550143",
        "called": "+12025550100",
        "account_id": "AC1",
        "call_id": "CA1",
    }
