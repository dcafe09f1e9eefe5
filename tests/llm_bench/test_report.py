import dataclasses

import orjson
import pytest

from gateway.bench.results import FrameCount, Spread
from scripts.llm_bench import report
from scripts.llm_bench.report import LlmMeasurement
from tests.bench.test_results import FINE

TABLE = """\
100 answers at once for 6 s, each in its own call, gateway on one core, real-time priority
                                        p50          p99          max
first token, direct                    0.20 ms      0.70 ms      1.50 ms
first token, through the gateway       0.60 ms      2.10 ms      3.00 ms
added by the gateway                   0.40 ms      1.40 ms      1.50 ms
CPU per answer                         3.75 ms
answers                                 500 (all arrived)
left out                                 12 (the machine was preempted)
frames sent                           24000 (all arrived once, in order, unchanged)
load generator late by                 0.25 ms      4.50 ms"""


def llm_measurement(**changes):
    good = LlmMeasurement(
        turns=100,
        seconds=6.0,
        answers=500,
        failed=0,
        left_out=12,
        direct=Spread(count=400, p50_ms=0.2, p99_ms=0.7, max_ms=1.5),
        through=Spread(count=400, p50_ms=0.6, p99_ms=2.1, max_ms=3.0),
        cpu_ms_per_turn=3.75,
        frames=FrameCount(sent=24000, lost=0, reordered=0, changed=0),
        generator_lag=FINE,
        core_taken=0.0,
        ahead=True,
    )
    return dataclasses.replace(good, **changes)


def test_added_is_the_difference():
    assert llm_measurement().added_ms == {"p50": 0.4, "p99": 1.4, "max": 1.5}
    assert llm_measurement().held


@pytest.mark.parametrize(
    "fault",
    [{"failed": 1}, {"through": Spread(400, 0.6, 3.7, 3.7)}, {"through": Spread(0, 0.0, 0.0, 0.0)}],
    ids=["lost answer", "slow", "no answer"],
)
def test_any_fault_is_not_held(fault):
    assert not llm_measurement(**fault).held


def test_result_reads_as_table():
    assert report.as_text(llm_measurement()) == TABLE


def test_missing_answers_and_disturbances_are_reported():
    text = report.as_text(llm_measurement(failed=3, core_taken=0.3))
    assert "answers                                 500 (3 failed)" in text
    assert text.endswith("\nnote: something else had the gateway's core 30% of the time")


def test_json_has_verdict_and_difference():
    found = orjson.loads(orjson.dumps(report.as_json(llm_measurement())))
    assert (found["limit_ms"], found["held"], found["added_ms"]["p99"]) == (3.0, True, 1.4)
