"""A silent caller, on given times."""

import pytest

from gateway.agents import SilenceSettings
from gateway.calls.silence import SilenceStep, SilenceTimer

ASK, HANG_UP = SilenceStep.ASK, SilenceStep.HANG_UP


def steps(timer: SilenceTimer, seconds: range, *, played_until: float = 0.0) -> dict[int, SilenceStep]:
    """What the timer asks for, by second."""
    found = {now: timer.tick(now, played_until=played_until) for now in seconds}
    return {now: step for now, step in found.items() if step is not None}


def test_asks_once_and_then_hangs_up():
    timer = SilenceTimer(SilenceSettings(), 0.0)
    assert steps(timer, range(100)) == {20: ASK, 60: HANG_UP, 80: ASK}  # the last one for a caller who stayed after all


def test_speech_of_the_caller_starts_the_time_again():
    timer = SilenceTimer(SilenceSettings(), 0.0)
    assert steps(timer, range(30)) == {20: ASK}
    timer.restart(30.0)
    assert steps(timer, range(30, 90)) == {50: ASK}


def test_time_counts_from_the_end_of_the_agents_speech():
    timer = SilenceTimer(SilenceSettings(), 0.0)
    assert steps(timer, range(100), played_until=35.0) == {55: ASK, 95: HANG_UP}


def test_question_is_no_speech_of_the_agent():
    """Whatever its words are: some engines do not say a sentence verbatim."""
    timer = SilenceTimer(SilenceSettings(), 0.0)
    assert steps(timer, range(21)) == {20: ASK}
    timer.agent_said(21.0)
    timer.agent_said(22.0)
    timer.agent_done()
    assert steps(timer, range(23, 70), played_until=23.0) == {60: HANG_UP}


def test_agent_that_speaks_after_the_question_starts_the_time_again():
    timer = SilenceTimer(SilenceSettings(), 0.0)
    assert steps(timer, range(21)) == {20: ASK}
    timer.agent_said(21.0)
    timer.agent_done()
    timer.agent_said(30.0)
    assert steps(timer, range(30, 100), played_until=33.0) == {53: ASK, 93: HANG_UP}


def test_caller_has_time_to_answer():
    timer = SilenceTimer(SilenceSettings(ask_after=20, hang_up_after=22), 0.0)
    assert steps(timer, range(21)) == {20: ASK}
    assert steps(timer, range(21, 40), played_until=25.0) == {27: HANG_UP}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SilenceSettings(ask_after=0), {60: HANG_UP}),
        (SilenceSettings(hang_up_after=0), {20: ASK}),
        (SilenceSettings(ask_after=0, hang_up_after=0), {}),
    ],
)
def test_each_step_can_be_switched_off(settings, expected):
    assert steps(SilenceTimer(settings, 0.0), range(100)) == expected
