import dataclasses

import pytest

from gateway.bench.frame_stamps import FrameCount
from gateway.bench.measures import Measurement, Spread

FINE = Spread(count=100, p50_ms=0.25, p99_ms=4.5, max_ms=6.0)


def measurement(**changes):
    good = Measurement(
        variant="picows",
        calls=50,
        connected=50,
        replaced=3,
        seconds=6.0,
        delay_up=FINE,
        delay_down=FINE,
        start_to_settings=FINE,
        hangup_to_document=FINE,
        words_to_watcher=Spread(0, 0.0, 0.0, 0.0),
        cpu_ms_per_call_second=3.2,
        memory_kib_per_call=70.5,
        turns_per_second=16.7,
        disk_kib_per_second=310.25,
        frames=FrameCount(sent=24000, lost=0, reordered=0, changed=0),
        generator_lag=FINE,
        core_taken=0.0,
    )
    return dataclasses.replace(good, **changes)


def test_percentiles_are_nearest_rank():
    hundred_ms = [milliseconds * 1_000_000 for milliseconds in range(100, 0, -1)]
    assert Spread.of_ns(hundred_ms) == Spread(count=100, p50_ms=50.0, p99_ms=99.0, max_ms=100.0)


def test_one_value_is_every_percentile():
    assert Spread.of_ns([1_500_000]) == Spread(count=1, p50_ms=1.5, p99_ms=1.5, max_ms=1.5)


def test_nothing_measured_is_zero():
    assert Spread.of_ns([]) == Spread(count=0, p50_ms=0.0, p99_ms=0.0, max_ms=0.0)


@pytest.mark.parametrize(
    "fault",
    [
        {"delay_up": Spread(100, 1.0, 20.0, 30.0)},
        {"delay_down": Spread(100, 1.0, 20.0, 30.0)},
        {"frames": FrameCount(sent=24000, lost=1, reordered=0, changed=0)},
        {"connected": 49},
    ],
    ids=["slow up", "slow down", "lost frame", "lost call"],
)
def test_any_fault_is_not_sustained(fault):
    assert measurement().sustained
    assert not measurement(**fault).sustained


def test_late_generator_is_named():
    disturbed = measurement(generator_lag=Spread(100, 1.0, 7.26, 9.0), core_taken=0.17)
    assert disturbed.disturbances == [
        "the load generator itself was 7.3 ms late at p99",
        "something else had the gateway's core 17% of the time",
    ]
