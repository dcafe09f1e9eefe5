from gateway.audio import SILENCE_FRAME
from gateway.calls.monitoring import CallMonitor

LOUD = bytes([0x80]) * 160


def test_levels_are_measured_from_the_first_time_on():
    monitor = CallMonitor()
    monitor.heard(LOUD)
    assert monitor.levels(0.0) == (0.0, 0.0)
    monitor.heard(LOUD)
    monitor.sent(LOUD, 0.0)
    assert monitor.levels(0.01) == (1.0, 1.0)


def test_nothing_is_measured_any_more():
    monitor = CallMonitor()
    monitor.levels(0.0)
    monitor.heard(LOUD)
    monitor.stop_measuring()
    assert monitor.levels(0.1) == (0.0, 0.0)


def test_listeners_hear_both_until_they_go():
    monitor = CallMonitor()
    with monitor.tapped() as first, monitor.tapped() as second:
        monitor.heard(LOUD)
        monitor.sent(SILENCE_FRAME, 0.0)
        assert first.take(160) == second.take(160) == (LOUD, SILENCE_FRAME)
    monitor.heard(LOUD)
    assert first.take(160) == (SILENCE_FRAME, SILENCE_FRAME)


def test_interrupted_answer_is_played_to_nobody():
    monitor = CallMonitor()
    monitor.levels(0.0)
    with monitor.tapped() as audio_tap:
        monitor.sent(LOUD * 50, 0.0)
        monitor.cleared()
        assert audio_tap.take(160)[1] == SILENCE_FRAME
    assert monitor.levels(0.2) == (0.0, 0.0)
