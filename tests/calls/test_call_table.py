from datetime import UTC, datetime

import pytest

from gateway.agents import Agent, AgentDirectory
from gateway.calls.call_table import MAX_EVENTS, CallTable, ManagedCall
from gateway.calls.state import CallState, IllegalTransition
from gateway.history.call_log import RecoveredCall
from gateway.memory.access import MemoryAccess
from gateway.session import TrustLevel, VoiceSession

KEY, OTHER = ("twilio", "CA1"), ("twilio", "CA2")
EXPIRES = 130.0
BEFORE = 129.9
REMEMBERED = 3600.0
MAYA = Agent("maya", "You are Maya.")


@pytest.fixture
def table():
    return CallTable(REMEMBERED)


@pytest.fixture
def call(table):
    call = a_call()
    table.add(call)
    return call


@pytest.fixture
def agents(tmp_path):
    return AgentDirectory({}, tmp_path)


def a_call(key=KEY, **fields):
    given = {"number": "+12025550143", "access": MemoryAccess(TrustLevel.SUMMARIES)}
    call = ManagedCall(
        key,
        "AC1",
        "sip_header:x-customer:7",
        "+12025550100",
        MAYA,
        "wss://voice.example.com/twilio/media",
        **given | fields,
    )
    if call.state is CallState.RINGING:
        call.open_token(EXPIRES)
    return call


# Tokens


def test_tokens_differ_and_stay_out_of_sight():
    call = a_call()
    assert a_call().token != call.token
    assert len(call.token) >= 32
    assert call.token not in repr(call)


def test_open_token_attaches_media_once():
    call = a_call()
    assert call.spend_token(call.token, "AC1", BEFORE)
    assert call.state is CallState.ACTIVE
    assert not call.spend_token(call.token, "AC1", BEFORE)


@pytest.mark.parametrize("wrong", ["", "x", "tökén"])
def test_wrong_token_changes_nothing(wrong):
    call = a_call()
    assert not call.spend_token(wrong, "AC1", BEFORE)
    assert call.spend_token(call.token + wrong, "AC1", BEFORE) is not bool(wrong)
    assert call.has_open_token is bool(wrong)


def test_expired_token_opens_nothing():
    call = a_call()
    assert not call.spend_token(call.token, "AC1", EXPIRES)


def test_foreign_account_opens_nothing():
    call = a_call()
    assert not call.spend_token(call.token, "AC2", BEFORE)


def test_carrier_without_accounts_may_leave_it_out():
    call = a_call()
    assert call.spend_token(call.token, "", BEFORE)


def test_withdrawn_token_opens_nothing():
    call = a_call()
    call.close_token()
    assert not call.spend_token(call.token, "AC1", BEFORE)


def test_call_continues_with_another_token():
    call = a_call(state=CallState.RECONNECTING, transfer_answered=False)
    token = call.token
    call.renew_token(200.0)
    assert (call.state, call.attempt, call.deadline, call.transfer_answered) == (CallState.RECONNECTING, 1, 200.0, None)
    assert call.token != token
    assert call.spend_token(call.token, "AC1", 199.0)


def test_active_call_gets_no_new_token():
    with pytest.raises(IllegalTransition):
        a_call(state=CallState.ENDED).renew_token(200.0)


# What others are given


def test_session_keeps_the_number_beside_the_caller():
    session = a_call().new_session()
    assert (session.caller, session.number) == ("sip_header:x-customer:7", "+12025550143")
    call = a_call()
    call.caller = call.number
    assert call.new_session().number == ""


def test_stream_url_carries_the_token():
    call = a_call()
    assert call.stream_url == f"wss://voice.example.com/twilio/media?token={call.token}"


@pytest.mark.parametrize("state", [CallState.TRANSFERRING, CallState.RECONNECTING])
def test_journal_restores_the_call(agents, state):
    call = a_call(state=state)
    again = ManagedCall.from_journal(RecoveredCall(call.new_session(), call.journal_header, ""), agents)
    assert again.journal_header == call.journal_header
    assert (again.caller, again.session_id, again.state) == (call.caller, call.session_id, state)


def test_record_restores_the_call(agents):
    call = a_call()
    record = call.record("another-node")
    again = ManagedCall.from_record(record, None, agents)
    assert again.journal_header == call.journal_header
    assert (again.state, again.token, again.token_is_shared) == (CallState.RINGING, call.token, True)


def test_record_has_no_spent_token():
    call = a_call()
    call.attach_media()
    assert call.record("node").token == ""


def test_recording_header_says_how_to_place_the_call_again():
    started = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
    header = a_call().recording_header(VoiceSession(agent="maya", caller="x", carrier="twilio", started_at=started))
    assert header["started_at"] == "2026-02-06T23:15:00+00:00"
    assert {name: header[name] for name in ("carrier", "caller", "called", "account_id", "call_id")} == {
        "carrier": "twilio",
        "caller": "+12025550143",
        "called": "+12025550100",
        "account_id": "AC1",
        "call_id": "CA1",
    }


# The table


def test_call_is_found_by_its_key(table, call):
    assert table.get(KEY) is call
    assert table.get(OTHER) is None
    assert table.manages(call)


def test_call_without_media_is_overdue_at_its_deadline(table, call):
    assert table.overdue(BEFORE) == []
    assert table.overdue(EXPIRES) == [call]


def test_active_call_has_no_deadline(table, call):
    call.attach_media()
    assert table.overdue(1e9) == []
    assert table.without_media() == []


def test_ended_call_leaves_its_key(table, call):
    table.end(call, 110.0)
    assert call.state is CallState.ENDED
    assert table.get(KEY) is None
    assert table.has_ended(KEY)
    assert table.is_empty


def test_call_ends_once(table, call):
    table.end(call, 110.0)
    with pytest.raises(IllegalTransition):
        table.end(call, 110.0)


def test_end_of_an_unknown_call_is_remembered(table):
    table.remember_ended(KEY, 100.0)
    assert table.has_ended(KEY)
    assert not table.has_ended(OTHER)


def test_old_ends_are_forgotten(table):
    table.remember_ended(KEY, 100.0)
    table.remember_ended(OTHER, 100.0 + REMEMBERED)
    assert table.has_ended(KEY)
    table.remember_ended(OTHER, 100.1 + REMEMBERED)
    assert not table.has_ended(KEY)
    assert table.has_ended(OTHER)


def test_moved_call_is_neither_managed_nor_ended(table, call):
    assert table.remove(KEY) is call
    assert not table.manages(call)
    assert not table.has_ended(KEY)


def test_ringing_calls_are_not_counted(table, call):
    assert len(table) == 0
    call.attach_media()
    assert len(table) == 1
    assert table.with_media() == []  # the media is being attached


def test_each_call_is_in_one_tick_group():
    table = CallTable(REMEMBERED)
    calls = [a_call(("twilio", f"CA{number}")) for number in range(6)]
    for number, call in enumerate(calls):
        call.media = number if number < 5 else None
        table.add(call)
    groups = table.tick_groups(3)
    assert groups == [[0, 3], [1, 4], [2]]
    table.end(calls[0], 100.0)  # in the middle of a tick
    assert groups == [[0, 3], [1, 4], [2]]
    assert table.tick_groups(3) == [[1, 4], [2], [3]]


def test_carrier_is_asked_at_intervals(table):
    call = a_call(state=CallState.RECONNECTING, liveness_check_at=105.0)
    table.add(call)
    assert table.due_for_liveness_check(104.9, 5.0) == []
    assert table.due_for_liveness_check(105.0, 5.0) == [call]
    assert table.due_for_liveness_check(109.9, 5.0) == []
    assert table.due_for_liveness_check(110.0, 5.0) == [call]


def test_carrier_is_not_asked_about_other_calls(table):
    waiting = a_call(state=CallState.RECONNECTING)
    renewed = a_call(OTHER, state=CallState.RECONNECTING, liveness_check_at=105.0)
    renewed.renew_token(EXPIRES)
    for call in (waiting, renewed):
        table.add(call)
    assert table.due_for_liveness_check(EXPIRES, 5.0) == []


# Webhook events


def test_event_is_new_once(table):
    assert [table.is_new_event(event) for event in ("a", "b", "a", "b")] == [True, True, False, False]


def test_event_without_an_id_is_always_new(table):
    assert [table.is_new_event("") for _ in range(3)] == [True] * 3


def test_oldest_events_are_forgotten(table):
    for number in range(MAX_EVENTS + 1):
        table.is_new_event(str(number))
    assert not table.is_new_event("1")
    assert table.is_new_event("0")
