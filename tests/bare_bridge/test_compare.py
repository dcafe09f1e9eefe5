import json

import pytest

from gateway.bench.results import FrameCount
from scripts.bare_bridge.__main__ import main
from scripts.bare_bridge.compare import BRIDGE, GATEWAY, Comparison, compare, comparison_as_json, comparison_as_text
from tests.bench.test_results import measurement

TEXT = """\
50 calls at once for 6 s, 3 rounds, medians
CPU per call, bare bridge              1.10 ms a second
CPU per call, gateway                  1.32 ms a second
gateway to bare bridge                 1.20 times"""


def run(variant, cpu_ms, **changes):
    return measurement(variant=variant, cpu_ms_per_call_second=cpu_ms, **changes)


def rounds(*cpu_ms):
    return Comparison([(run("bare bridge", bridge), run("memory on", gateway)) for bridge, gateway in cpu_ms])


def test_both_are_measured_alternately():
    cpu_ms = {BRIDGE.name: [1.0, 2.0], GATEWAY.name: [1.5, 2.0]}
    measured, reported = [], []

    def measure(variant):
        measured.append(variant)
        return run(variant.name, cpu_ms[variant.name].pop(0), core_taken=0.02 * len(measured))

    found = compare(measure, rounds=2, progress=reported.append)
    assert measured == [BRIDGE, GATEWAY, BRIDGE, GATEWAY]
    assert found.ratio == 1.25
    assert reported[0] == (
        "round 1 of 2: 1.00 ms (bare bridge) and 1.50 ms (memory on); something else had the gateway's core 2% of the "
        "time; something else had the gateway's core 4% of the time"
    )


def test_ratio_is_median_of_rounds():
    """One disturbed round changes neither the ratio nor the figures."""
    found = rounds((1.0, 1.2), (1.1, 1.32), (9.0, 30.0))
    assert comparison_as_text(found) == TEXT
    content = comparison_as_json(found)
    assert (content["ratio"], content["cpu_ms_per_call_second"]) == (1.2, {"bridge": 1.1, "gateway": 1.32})
    assert len(content["measurements"]) == 6


@pytest.mark.parametrize("fault", [{"connected": 49}, {"frames": FrameCount(100, 1, 0, 0)}])
def test_incomplete_run_is_noted(fault):
    found = Comparison([(run("bare bridge", 1.0, **fault), run("memory on", 1.0))])
    assert not found.faultless
    assert comparison_as_text(found).endswith("note: calls did not come up, or frames were lost")


def test_wrong_options_are_explained(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--rounds", "0"])
    assert ended.value.code == 2
    assert "--calls, --rounds and --seconds must be above 0" in capsys.readouterr().err


def test_real_bridge_and_gateway_lose_nothing(capsys):
    """Both take the calls of the same load, and every frame arrives once, in order, unchanged."""
    assert main(["--calls", "3", "--rounds", "1", "--seconds", "0.5", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    bridge, gateway = content["measurements"]
    assert (bridge["variant"], gateway["variant"]) == ("bare bridge", "memory on")
    assert bridge["frames"]["sent"] > 0 and gateway["frames"]["sent"] > 0
    assert content["ratio"] > 0
