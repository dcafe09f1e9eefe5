import orjson

from gateway.bench import report
from gateway.bench.frame_stamps import FrameCount
from gateway.bench.measures import Spread
from gateway.bench.runner import Search
from tests.bench.test_measures import measurement

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


def test_run_reads_as_table():
    assert report.run_as_text(measurement()) == RUN


def test_faults_are_reported():
    text = report.run_as_text(
        measurement(connected=48, frames=FrameCount(100, 3, 2, 1), hangup_to_document=Spread(0, 0.0, 0.0, 0.0))
    )
    assert "frames sent                             100 (3 lost, 2 out of order, 1 changed)" in text
    assert "hangup to document                not measured" in text
    assert "calls that came up                       48 of 50" in text


def test_viewer_delay_is_reported():
    text = report.run_as_text(measurement(words_to_watcher=Spread(9, 2.5, 12.0, 30.0)))
    assert "words to live viewer                   2.50 ms     12.00 ms" in text


def test_search_begins_with_its_answer():
    good, bad = measurement(), measurement(calls=100, connected=90)
    assert report.search_as_text(Search([good, bad], good)) == SUSTAINED + RUN


def test_generators_limit_is_not_the_gateways():
    bad = measurement(calls=100, delay_up=Spread(9, 30.0, 40.0, 50.0), generator_lag=Spread(9, 8.0, 9.0, 9.0))
    first_line = report.search_as_text(Search([measurement(), bad], measurement())).split("\n")[0]
    assert first_line == "calls sustained                   50 or more: the load generator or the machine was the limit"


def test_nothing_sustained_is_said():
    bad = measurement(connected=0)
    assert report.search_as_text(Search([bad], None)).startswith("calls sustained                   none\n")


def test_comparison_gives_ratios():
    other = measurement(variant="websockets", cpu_ms_per_call_second=8.0, memory_kib_per_call=141.0)
    assert report.ratios(measurement(), other) == {
        "cpu": 2.5,
        "memory": 2.0,
        "delay_up_p99": 1.0,
        "delay_down_p99": 1.0,
    }
    job = "websockets to picows\nCPU per call                           2.50 times\n"
    assert job in report.comparison_as_text(measurement(), other)


def test_json_has_documented_keys():
    found = orjson.loads(orjson.dumps(report.as_json([measurement()], calls_sustained=50)))
    assert (found["limit_ms"], found["calls_sustained"]) == (20.0, 50)
    (run,) = found["measurements"]
    assert set(run) <= {word.strip("`(),.") for word in (report.__doc__ or "").split()}
    assert run["delay_up"] == {"count": 100, "p50_ms": 0.25, "p99_ms": 4.5, "max_ms": 6.0}
