import pytest

from gateway.agents import Agent
from gateway.calls.call_table import ASK_SECONDS, MEMORY_OF_ENDED, MOST_EVENTS, CallTable
from gateway.calls.pending_call import PendingCall

KEY, OTHER = ("twilio", "CA1"), ("twilio", "CA2")
EXPIRES = 130.0
BEFORE = 129.9


@pytest.fixture
def call_table():
    return CallTable()


@pytest.fixture
def pending(call_table):
    pending = a_ring(KEY)
    call_table.add_ring(pending)
    return pending


def a_ring(key):
    maya = Agent("maya", "You are Maya.")
    return PendingCall(
        key, "AC1", "+12025550143", "+12025550100", maya, "wss://voice.example.com/twilio/media", EXPIRES
    )


# Tokens


def test_right_token_opens_the_call(call_table, pending):
    assert call_table.redeem(KEY, pending.token, "AC1", BEFORE) is pending


def test_token_opens_once(call_table, pending):
    call_table.redeem(KEY, pending.token, "AC1", BEFORE)
    assert call_table.redeem(KEY, pending.token, "AC1", BEFORE) is None


@pytest.mark.parametrize("wrong", ["", "x", "tökén"])
def test_wrong_token_opens_nothing(call_table, pending, wrong):
    assert call_table.redeem(KEY, wrong, "AC1", BEFORE) is None
    assert call_table.redeem(KEY, pending.token + wrong, "AC1", BEFORE) is (None if wrong else pending)


def test_wrong_token_does_not_spend_the_right_one(call_table, pending):
    call_table.redeem(KEY, "guess", "AC1", BEFORE)
    assert call_table.redeem(KEY, pending.token, "AC1", BEFORE) is pending


def test_expired_token_opens_nothing(call_table, pending):
    assert call_table.redeem(KEY, pending.token, "AC1", EXPIRES) is None


def test_foreign_account_opens_nothing(call_table, pending):
    assert call_table.redeem(KEY, pending.token, "AC2", BEFORE) is None


def test_carrier_without_accounts_may_leave_it_out(call_table, pending):
    assert call_table.redeem(KEY, pending.token, "", BEFORE) is pending


def test_token_of_another_call_opens_nothing(call_table, pending):
    call_table.add_ring(a_ring(OTHER))
    assert call_table.redeem(OTHER, pending.token, "AC1", BEFORE) is None


def test_token_of_a_call_that_is_over_opens_nothing(call_table, pending):
    call_table.ended(KEY, 110.0)
    assert call_table.redeem(KEY, pending.token, "AC1", BEFORE) is None


# Rings


def test_same_call_finds_its_ring(call_table, pending):
    assert call_table.pending(KEY) is pending
    assert call_table.pending(OTHER) is None


def test_unclaimed_ring_is_given_up_once(call_table, pending):
    assert call_table.unclaimed(BEFORE) == []
    assert call_table.unclaimed(EXPIRES) == [pending]
    assert call_table.unclaimed(EXPIRES) == []
    assert call_table.pending(KEY) is None
    assert call_table.is_over(KEY)


def test_claimed_ring_is_not_given_up(call_table, pending):
    call_table.redeem(KEY, pending.token, "AC1", BEFORE)
    assert call_table.unclaimed(EXPIRES) == []


# Ends


def test_end_before_media_returns_the_ring(call_table, pending):
    assert call_table.ended(KEY, 110.0) is pending
    assert call_table.pending(KEY) is None
    assert call_table.is_over(KEY)


def test_end_after_media_returns_no_ring(call_table, pending):
    call_table.redeem(KEY, pending.token, "AC1", BEFORE)
    assert call_table.ended(KEY, 140.0) is None


def test_end_before_the_ring_is_remembered(call_table):
    assert call_table.ended(KEY, 100.0) is None
    assert call_table.is_over(KEY)
    assert not call_table.is_over(OTHER)


def test_old_ends_are_forgotten(call_table):
    call_table.ended(KEY, 100.0)
    call_table.ended(OTHER, 100.0 + MEMORY_OF_ENDED)
    assert call_table.is_over(KEY)
    call_table.ended(OTHER, 100.1 + MEMORY_OF_ENDED)
    assert not call_table.is_over(KEY)
    assert call_table.is_over(OTHER)


def test_no_call_is_live_at_first(call_table, pending):
    assert len(call_table) == 0
    assert list(call_table.live_calls()) == []
    assert call_table.live(KEY) is None


# Calls that have lost their stream


def test_carrier_is_asked_again_and_again(call_table, pending):
    pending.ask_at = 105.0
    call_table.park(pending, EXPIRES)
    assert call_table.to_ask_about(104.9) == []
    assert call_table.to_ask_about(105.0) == [pending]
    assert call_table.to_ask_about(105.0 + ASK_SECONDS - 0.1) == []
    assert call_table.to_ask_about(105.0 + ASK_SECONDS) == [pending]


def test_carrier_that_tells_by_itself_is_not_asked(call_table, pending):
    call_table.park(pending, EXPIRES)
    assert call_table.to_ask_about(EXPIRES) == []


def test_call_that_goes_on_is_not_asked_about(call_table, pending):
    pending.ask_at = 105.0
    call_table.park(pending, EXPIRES)
    call_table.unpark(KEY)
    assert call_table.to_ask_about(105.0) == []


# Events


def test_event_is_new_once(call_table):
    assert [call_table.is_new_event(event) for event in ("a", "b", "a", "b")] == [True, True, False, False]


def test_event_without_an_id_is_always_new(call_table):
    assert [call_table.is_new_event("") for _ in range(3)] == [True] * 3


def test_oldest_events_are_forgotten(call_table):
    for number in range(MOST_EVENTS + 1):
        call_table.is_new_event(str(number))
    assert not call_table.is_new_event("1")
    assert call_table.is_new_event("0")
