"""`gateway bench`: how many calls one core of this machine sustains, and what each costs."""

import argparse
import json
import sys
from functools import partial
from typing import Any, Final

from gateway.bench import results, runner
from gateway.bench.processes import COMPARISONS, LOCAL_CALLS, SOCKETS
from gateway.errors import SettingsError
from gateway.speech import model_files

DESCRIPTION: Final = (
    "Run simulated calls against a temporary gateway on one core: calls sustained, added delay, CPU per call."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=_positive, metavar="N", help="one run with N calls instead of the search")
    parser.add_argument("--seconds", type=_seconds, default=6.0, metavar="S", help="length of each run (6)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--sockets", choices=SOCKETS, default="picows", help="media WebSocket library (picows)")
    what.add_argument(
        "--compare",
        type=lambda name: {"watchers": "viewers"}.get(name, name),  # its former name
        choices=COMPARISONS,
        help=f"compare two gateways at N ({runner.COMPARED_CALLS}) calls: memory off and on, or with live viewers",
    )
    what.add_argument(
        "--engine",
        choices=("local",),
        help=f"word error and response time of the local engine: one call, then N ({LOCAL_CALLS}) at once",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Return 1 if frames or answers were lost or no load was sustained."""
    if options.engine:
        return _bench_local(options)
    if options.compare:
        return _compare(options)
    return _run_once(options) if options.calls else _search(options)


def _search(options: argparse.Namespace) -> int:
    measure = partial(runner.measure, variant=SOCKETS[options.sockets], seconds=options.seconds)
    found = runner.search(measure, progress=_progress)
    sustained = found.best.calls if found.best is not None else 0
    _print(options, results.as_json(found.steps, calls_sustained=sustained), results.search_as_text(found))
    return 0 if found.best is not None else 1


def _run_once(options: argparse.Namespace) -> int:
    _progress(f"{options.calls} calls for {options.seconds:g} s")
    result = runner.measure(options.calls, SOCKETS[options.sockets], seconds=options.seconds)
    _print(options, results.as_json([result]), results.run_as_text(result))
    return 0 if result.frames.faultless else 1


def _compare(options: argparse.Namespace) -> int:
    measure = partial(runner.measure, options.calls or runner.COMPARED_CALLS, seconds=options.seconds)
    first, second = runner.compare(measure, COMPARISONS[options.compare], progress=_progress)
    _print(options, results.as_json([first, second]) | {"ratio": results.ratios(first, second)}, results.comparison_as_text(first, second))
    return 0 if first.frames.faultless and second.frames.faultless else 1


def _bench_local(options: argparse.Namespace) -> int:
    if not model_files.are_installed():
        raise SettingsError(f"the local engine is not installed; run: {model_files.INSTALL}")
    from gateway.bench import local  # numpy; not needed by the server

    found = local.measure(options.calls or LOCAL_CALLS, progress=_progress)
    _print(options, local.local_as_json(found), local.local_as_text(found))
    return 0 if found.held else 1


def _print(options: argparse.Namespace, machine: dict[str, Any], person: str) -> None:
    print(json.dumps(machine, indent=2) if options.json else person)


def _progress(step: str) -> None:
    print(step, file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of calls")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
