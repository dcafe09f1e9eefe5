from gateway.audio import SILENCE_FRAME
from gateway.calls.monitoring import CallMonitor

LOUD = bytes([0x80]) * 160


def test_levels_are_measured_from_the_first_time_on():
    audience = CallMonitor()
    audience.heard(LOUD)
    assert audience.levels(0.0) == (0.0, 0.0)
    audience.heard(LOUD)
    audience.sent(LOUD, 0.0)
    assert audience.levels(0.01) == (1.0, 1.0)


def test_nothing_is_measured_any_more():
    audience = CallMonitor()
    audience.levels(0.0)
    audience.heard(LOUD)
    audience.stop_measuring()
    assert audience.levels(0.1) == (0.0, 0.0)


def test_listeners_hear_both_until_they_go():
    audience = CallMonitor()
    with audience.tapped() as first, audience.tapped() as second:
        audience.heard(LOUD)
        audience.sent(SILENCE_FRAME, 0.0)
        assert first.take(160) == second.take(160) == (LOUD, SILENCE_FRAME)
    audience.heard(LOUD)
    assert first.take(160) == (SILENCE_FRAME, SILENCE_FRAME)


def test_interrupted_answer_is_played_to_nobody():
    audience = CallMonitor()
    audience.levels(0.0)
    with audience.tapped() as tap:
        audience.sent(LOUD * 50, 0.0)
        audience.cleared()
        assert tap.take(160)[1] == SILENCE_FRAME
    assert audience.levels(0.2) == (0.0, 0.0)
