import itertools

import pytest

from gateway.calls.state import TRANSITIONS, CallState, IllegalTransition, checked

LEGAL = [(before, after) for before, states in TRANSITIONS.items() for after in sorted(states)]
ILLEGAL = [step for step in itertools.product(CallState, repeat=2) if step not in LEGAL]


@pytest.mark.parametrize(("before", "after"), LEGAL)
def test_legal_step_returns_the_new_state(before: CallState, after: CallState) -> None:
    assert checked(before, after) is after


@pytest.mark.parametrize(("before", "after"), ILLEGAL)
def test_illegal_step_names_both_states(before: CallState, after: CallState) -> None:
    with pytest.raises(IllegalTransition) as raised:
        checked(before, after)
    assert str(raised.value) == f"a call can't go from {before} to {after}"


def test_every_state_can_end() -> None:
    assert all(CallState.ENDED in TRANSITIONS[state] for state in CallState if state is not CallState.ENDED)


def test_ended_is_final() -> None:
    assert not TRANSITIONS[CallState.ENDED]
