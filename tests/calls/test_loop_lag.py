import pytest

from gateway.calls.loop_lag import LoopLag


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_worst_delay_is_of_the_last_minute() -> None:
    clock = Clock()
    watch = LoopLag(clock)
    for clock.now, delay in ((0.0, 0.2), (30.0, 0.1), (40.0, 0.15)):
        watch.held_up(delay)
    assert watch.worst == 0.2
    clock.now = 61.0
    assert watch.worst == 0.15
    clock.now = 101.0
    assert watch.worst == 0.0


def test_early_timer_is_no_delay() -> None:
    watch = LoopLag(Clock())
    watch.held_up(-0.001)
    assert watch.worst == 0.0


def test_delay_that_callers_hear_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    LoopLag(Clock()).held_up(0.3)
    assert [(record.message, record.ms) for record in caplog.records] == [("event loop was held up", 300)]
