"""The search on made-up machines, and one short run against a real gateway."""

import dataclasses
import json
import os

import pytest

from gateway.bench import runner
from gateway.bench.processes import COMPARISONS, SOCKETS
from gateway.bench.results import Spread
from gateway.cli.main import main
from tests.bench.test_results import measurement

SLOW = Spread(100, 30.0, 40.0, 50.0)
FAST = Spread(100, 0.1, 0.5, 1.0)


def machine(*, holds, tried):
    """A machine that carries so many calls and not one more."""

    def measure(calls):
        tried.append(calls)
        result = measurement(calls=calls, connected=calls)
        return result if calls <= holds else dataclasses.replace(result, delay_up=SLOW)

    return measure


def test_search_doubles_then_halves():
    tried, reported = [], []
    found = runner.search(machine(holds=260, tried=tried), progress=reported.append)
    assert tried == [100, 200, 400, 300, 250, 275]
    assert found.best.calls == 250
    assert reported[2] == "400 calls (picows): not sustained, p99 40.0 ms up, 4.5 ms down, 0 frames lost, 400 connected"


def test_weak_machine_is_searched_downwards():
    tried = []
    found = runner.search(machine(holds=14, tried=tried), progress=lambda _: None)
    assert tried == [100, 50, 25, 12, 18, 15]
    assert found.best.calls == 12


def test_machine_without_calls_ends_search():
    found = runner.search(machine(holds=0, tried=[]), progress=lambda _: None)
    assert found.best is None


def test_disturbed_failure_is_tried_again():
    results = [
        measurement(calls=100, connected=100, delay_up=SLOW, core_taken=0.3),
        measurement(calls=100, connected=100),
        measurement(calls=200, connected=0),
        *(measurement(calls=calls, connected=0) for calls in (150, 125, 110)),
    ]
    reported = []
    found = runner.search(lambda calls: results.pop(0), progress=reported.append)
    assert (found.best.calls, reported[1]) == (100, "disturbed, repeating")


def test_comparison_takes_best_runs():
    """The one with less delay. A starved gateway takes little of the CPU."""
    delays = {"memory off": [4.0, 3.0, 5.0], "memory on": [9.0, 10.0, 11.0]}
    measured = []

    def measure(variant):
        measured.append(variant.name)
        p99_ms = delays[variant.name].pop(0)
        delay = Spread(100, 0.25, p99_ms, 20.0)
        return measurement(variant=variant.name, delay_up=FAST, delay_down=delay, cpu_ms_per_call_second=20 - p99_ms)

    best = runner.compare(measure, COMPARISONS["memory"], progress=lambda _: None)
    assert measured == ["memory off", "memory on"] * 3
    assert [(run.variant, run.slower_p99_ms) for run in best] == [("memory off", 3.0), ("memory on", 9.0)]


def test_wrong_number_of_calls_is_explained(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--calls", "0"])
    assert ended.value.code == 2
    assert "'0' is not a number of calls" in capsys.readouterr().err


def test_comparison_chooses_its_own_sockets(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "--compare", "memory", "--sockets", "websockets"])
    assert "argument --sockets: not allowed with argument --compare" in capsys.readouterr().err


@pytest.mark.parametrize("sockets", SOCKETS)
def test_three_real_calls_lose_nothing(sockets, capsys):
    """Every frame of three calls arrives once, in order, unchanged, and their documents are found."""
    cores = os.sched_getaffinity(0)
    code = main(["bench", "--calls", "3", "--seconds", "1", "--sockets", sockets, "--json"])
    (run,) = json.loads(capsys.readouterr().out)["measurements"]
    assert (code, run["variant"], run["calls"], run["connected"]) == (0, sockets, 3, 3)
    assert run["frames"]["sent"] > 0
    assert {kind: run["frames"][kind] for kind in ("lost", "reordered", "changed")} == dict.fromkeys(
        ("lost", "reordered", "changed"), 0
    )
    assert [run[name]["count"] for name in ("start_to_settings", "hangup_to_document")] == [3, 3]
    assert run["delay_up"]["count"] > 0 and run["delay_down"]["count"] > 0
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize(("pair", "documents"), [(0, 0), (1, 20)], ids=["memory off", "memory on"])
def test_calls_come_and_go_without_loss(pair, documents):
    """One of 21 calls ends and its caller rings again among the others; memory leaves documents only when it is on."""
    variant = COMPARISONS["memory"][pair]
    run = runner.measure(21, variant, seconds=0.5)
    assert (run.variant, run.connected, run.replaced) == (variant.name, 21, 1)
    assert run.frames.faultless
    assert run.hangup_to_document.count == documents
    assert run.turns_per_second > 0
