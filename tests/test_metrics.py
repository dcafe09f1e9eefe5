"""What Prometheus reads: names, labels, and values that add up."""

import re

from gateway import metrics
from gateway.metrics import Counter, Gauge, Histogram

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


def test_counter_counts_by_label():
    counter = Counter("test_counted_total", "something", ("what",))
    counter.count("a")
    counter.count("b", by=2)
    counter.count("a")
    assert counter.render().splitlines()[2:] == [
        'voice_gateway_test_counted_total{what="a"} 2',
        'voice_gateway_test_counted_total{what="b"} 2',
    ]


def test_counter_without_labels_is_there_from_the_start():
    assert Counter("test_plain_total", "something").render().endswith("voice_gateway_test_plain_total 0\n")


def test_gauge_is_asked_when_somebody_looks():
    waiting: list[str] = []
    gauge = Gauge("test_gauge", "something")
    gauge.reads(lambda: len(waiting))
    assert gauge.render().endswith("gauge 0\n")
    waiting.append("one")
    assert gauge.render().endswith("gauge 1\n")


def test_histogram_adds_up():
    histogram = Histogram("test_seconds", "something", ("stage",), buckets=(0.1, 1))
    for value in (0.1, 0.5, 7):
        histogram.observe(value, "x")
    assert [line.rpartition(" ")[2] for line in histogram.render().splitlines()[2:]] == ["1", "2", "3", "7.6", "3"]


def test_label_can_not_break_a_line():
    counter = Counter("test_hostile_total", "something", ("what",))
    counter.count('a"b\\c\nd')
    assert counter.render().splitlines()[2] == r'voice_gateway_test_hostile_total{what="a\"b\\c\nd"} 1'


def test_everything_is_readable():
    lines = [line for line in metrics.render().splitlines() if not line.startswith("#") and "hostile" not in line]
    assert lines and all(LINE.fullmatch(line) for line in lines)
