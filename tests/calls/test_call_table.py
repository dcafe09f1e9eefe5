import pytest

from gateway.agents import Agent
from gateway.calls.call_table import ASK_SECONDS, MEMORY_OF_ENDED, MOST_EVENTS, CallTable
from gateway.calls.pending_call import PendingCall

KEY, OTHER = ("twilio", "CA1"), ("twilio", "CA2")
EXPIRES = 130.0
BEFORE = 129.9


@pytest.fixture
def registry():
    return CallTable()


@pytest.fixture
def ring(registry):
    ring = a_ring(KEY)
    registry.add_ring(ring)
    return ring


def a_ring(key):
    maya = Agent("maya", "You are Maya.")
    return PendingCall(
        key, "AC1", "+12025550143", "+12025550100", maya, "wss://voice.example.com/twilio/media", EXPIRES
    )


# Tokens


def test_right_token_opens_the_call(registry, ring):
    assert registry.redeem(KEY, ring.token, "AC1", BEFORE) is ring


def test_token_opens_once(registry, ring):
    registry.redeem(KEY, ring.token, "AC1", BEFORE)
    assert registry.redeem(KEY, ring.token, "AC1", BEFORE) is None


@pytest.mark.parametrize("wrong", ["", "x", "tökén"])
def test_wrong_token_opens_nothing(registry, ring, wrong):
    assert registry.redeem(KEY, wrong, "AC1", BEFORE) is None
    assert registry.redeem(KEY, ring.token + wrong, "AC1", BEFORE) is (None if wrong else ring)


def test_wrong_token_does_not_spend_the_right_one(registry, ring):
    registry.redeem(KEY, "guess", "AC1", BEFORE)
    assert registry.redeem(KEY, ring.token, "AC1", BEFORE) is ring


def test_expired_token_opens_nothing(registry, ring):
    assert registry.redeem(KEY, ring.token, "AC1", EXPIRES) is None


def test_foreign_account_opens_nothing(registry, ring):
    assert registry.redeem(KEY, ring.token, "AC2", BEFORE) is None


def test_carrier_without_accounts_may_leave_it_out(registry, ring):
    assert registry.redeem(KEY, ring.token, "", BEFORE) is ring


def test_token_of_another_call_opens_nothing(registry, ring):
    registry.add_ring(a_ring(OTHER))
    assert registry.redeem(OTHER, ring.token, "AC1", BEFORE) is None


def test_token_of_a_call_that_is_over_opens_nothing(registry, ring):
    registry.ended(KEY, 110.0)
    assert registry.redeem(KEY, ring.token, "AC1", BEFORE) is None


# Rings


def test_same_call_finds_its_ring(registry, ring):
    assert registry.ring(KEY) is ring
    assert registry.ring(OTHER) is None


def test_unclaimed_ring_is_given_up_once(registry, ring):
    assert registry.unclaimed(BEFORE) == []
    assert registry.unclaimed(EXPIRES) == [ring]
    assert registry.unclaimed(EXPIRES) == []
    assert registry.ring(KEY) is None
    assert registry.is_over(KEY)


def test_claimed_ring_is_not_given_up(registry, ring):
    registry.redeem(KEY, ring.token, "AC1", BEFORE)
    assert registry.unclaimed(EXPIRES) == []


# Ends


def test_end_before_media_returns_the_ring(registry, ring):
    assert registry.ended(KEY, 110.0) is ring
    assert registry.ring(KEY) is None
    assert registry.is_over(KEY)


def test_end_after_media_returns_no_ring(registry, ring):
    registry.redeem(KEY, ring.token, "AC1", BEFORE)
    assert registry.ended(KEY, 140.0) is None


def test_end_before_the_ring_is_remembered(registry):
    assert registry.ended(KEY, 100.0) is None
    assert registry.is_over(KEY)
    assert not registry.is_over(OTHER)


def test_old_ends_are_forgotten(registry):
    registry.ended(KEY, 100.0)
    registry.ended(OTHER, 100.0 + MEMORY_OF_ENDED)
    assert registry.is_over(KEY)
    registry.ended(OTHER, 100.1 + MEMORY_OF_ENDED)
    assert not registry.is_over(KEY)
    assert registry.is_over(OTHER)


def test_no_call_is_live_at_first(registry, ring):
    assert len(registry) == 0
    assert list(registry.live_calls()) == []
    assert registry.live(KEY) is None


# Calls that have lost their stream


def test_carrier_is_asked_again_and_again(registry, ring):
    ring.ask_at = 105.0
    registry.park(ring, EXPIRES)
    assert registry.to_ask_about(104.9) == []
    assert registry.to_ask_about(105.0) == [ring]
    assert registry.to_ask_about(105.0 + ASK_SECONDS - 0.1) == []
    assert registry.to_ask_about(105.0 + ASK_SECONDS) == [ring]


def test_carrier_that_tells_by_itself_is_not_asked(registry, ring):
    registry.park(ring, EXPIRES)
    assert registry.to_ask_about(EXPIRES) == []


def test_call_that_goes_on_is_not_asked_about(registry, ring):
    ring.ask_at = 105.0
    registry.park(ring, EXPIRES)
    registry.unpark(KEY)
    assert registry.to_ask_about(105.0) == []


# Events


def test_event_is_new_once(registry):
    assert [registry.is_new_event(event) for event in ("a", "b", "a", "b")] == [True, True, False, False]


def test_event_without_an_id_is_always_new(registry):
    assert [registry.is_new_event("") for _ in range(3)] == [True] * 3


def test_oldest_events_are_forgotten(registry):
    for number in range(MOST_EVENTS + 1):
        registry.is_new_event(str(number))
    assert not registry.is_new_event("1")
    assert registry.is_new_event("0")
