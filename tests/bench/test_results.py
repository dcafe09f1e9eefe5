import dataclasses

import orjson
import pytest

from gateway.bench import results
from gateway.bench.results import FrameCount, Measurement, Search, Spread

FINE = Spread(count=100, p50_ms=0.25, p99_ms=4.5, max_ms=6.0)


RUN = """\
50 calls at once for 6 s (picows), gateway on one core
3 of them ended during the run, and their callers called again
                                        p50          p99
added delay, caller to engine          0.25 ms      4.50 ms
added delay, engine to caller          0.25 ms      4.50 ms
start to Settings                      0.25 ms      4.50 ms
hangup to document                     0.25 ms      4.50 ms
CPU per call                           3.20 ms a second
memory per call                        70.5 KiB
turns of each side                     16.7 a second, 310.2 KiB a second to disk
frames sent                           24000 (all arrived once, in order, unchanged)
load generator late by                 0.25 ms      4.50 ms"""

SUSTAINED = """\
calls sustained                   50
                                  p99 added delay under 20 ms, no frame lost

"""


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


# Output


def test_run_reads_as_table():
    assert results.run_as_text(measurement()) == RUN


def test_faults_are_reported():
    text = results.run_as_text(
        measurement(connected=48, frames=FrameCount(100, 3, 2, 1), hangup_to_document=Spread(0, 0.0, 0.0, 0.0))
    )
    assert "frames sent                             100 (3 lost, 2 out of order, 1 changed)" in text
    assert "hangup to document                not measured" in text
    assert "calls that came up                       48 of 50" in text


def test_viewer_delay_is_reported():
    text = results.run_as_text(measurement(words_to_watcher=Spread(9, 2.5, 12.0, 30.0)))
    assert "words to live viewer                   2.50 ms     12.00 ms" in text


def test_search_begins_with_its_answer():
    good, bad = measurement(), measurement(calls=100, connected=90)
    assert results.search_as_text(Search([good, bad], good)) == SUSTAINED + RUN


def test_generators_limit_is_not_the_gateways():
    bad = measurement(calls=100, delay_up=Spread(9, 30.0, 40.0, 50.0), generator_lag=Spread(9, 8.0, 9.0, 9.0))
    first_line = results.search_as_text(Search([measurement(), bad], measurement())).split("\n")[0]
    assert first_line == "calls sustained                   50 or more: the load generator or the machine was the limit"


def test_nothing_sustained_is_said():
    bad = measurement(connected=0)
    assert results.search_as_text(Search([bad], None)).startswith("calls sustained                   none\n")


def test_comparison_gives_ratios():
    other = measurement(variant="websockets", cpu_ms_per_call_second=8.0, memory_kib_per_call=141.0)
    assert results.ratios(measurement(), other) == {
        "cpu": 2.5,
        "memory": 2.0,
        "delay_up_p99": 1.0,
        "delay_down_p99": 1.0,
    }
    job = "websockets to picows\nCPU per call                           2.50 times\n"
    assert job in results.comparison_as_text(measurement(), other)


def test_json_has_documented_keys():
    found = orjson.loads(orjson.dumps(results.as_json([measurement()], calls_sustained=50)))
    assert (found["limit_ms"], found["calls_sustained"]) == (20.0, 50)
    (run,) = found["measurements"]
    assert set(run) <= {word.strip("`(),.") for word in (results.__doc__ or "").split()}
    assert run["delay_up"] == {"count": 100, "p50_ms": 0.25, "p99_ms": 4.5, "max_ms": 6.0}
