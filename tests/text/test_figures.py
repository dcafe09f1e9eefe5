import pytest

from gateway.text.figures import count, duration, listed, milliseconds


def test_counts():
    counts = [count(1, "call"), count(1200, "call"), count(2, "stretch", "stretches")]
    assert counts == ["1 call", "1,200 calls", "2 stretches"]


@pytest.mark.parametrize("seconds, words", [(0, "0:00"), (67.2, "1:07"), (3725, "1:02:05"), (-3, "0:00")])
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize("seconds, words", [(None, "–"), (0.0842, "84 ms"), (0.9999, "1.00 s"), (12.34, "12.34 s")])
def test_milliseconds(seconds, words):
    assert milliseconds(seconds) == words


def test_long_list_is_cut():
    assert [listed(["a", "b"], 2), listed(["a", "b", "c", "d"], 2)] == ["a, b", "a, b and 2 more"]
