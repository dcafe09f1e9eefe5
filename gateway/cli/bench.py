"""`gateway bench`: how many calls one core of this machine carries, and what each costs."""

import argparse
import json
import sys
from functools import partial
from typing import Any

from gateway.bench import report, runner


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure what this machine carries",
        description="Simulated calls against a gateway of its own on one core: calls sustained, added delay, cost.",
    )
    parser.add_argument("--calls", type=_positive, metavar="N", help="one run with N calls instead of the search")
    parser.add_argument("--seconds", type=_seconds, default=6.0, metavar="S", help="how long each run measures (6)")
    parser.add_argument("--sockets", choices=runner.SHELLS, default="picows", help="who carries the audio (picows)")
    parser.add_argument("--compare", action="store_true", help=f"both kinds of sockets at N ({runner.COMPARED_CALLS})")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """1 when frames were lost, or nothing was sustained."""
    if options.compare:
        return _compare(options)
    return _run_once(options) if options.calls else _search(options)


def _search(options: argparse.Namespace) -> int:
    found = runner.search(partial(runner.measure, seconds=options.seconds, sockets=options.sockets), tell=_tell)
    sustained = found.best.calls if found.best is not None else 0
    _print(options, report.as_json(found.steps, calls_sustained=sustained), report.search_as_text(found))
    return 0 if found.best is not None else 1


def _run_once(options: argparse.Namespace) -> int:
    _tell(f"{options.calls} calls for {options.seconds:g} s")
    result = runner.measure(options.calls, seconds=options.seconds, sockets=options.sockets)
    _print(options, report.as_json([result]), report.run_as_text(result))
    return 0 if result.frames.faultless else 1


def _compare(options: argparse.Namespace) -> int:
    calls = options.calls or runner.COMPARED_CALLS
    picows, websockets = runner.compare(partial(runner.measure, seconds=options.seconds), calls, tell=_tell)
    _print(options, report.comparison_as_json(picows, websockets), report.comparison_as_text(picows, websockets))
    return 0 if picows.frames.faultless and websockets.frames.faultless else 1


def _print(options: argparse.Namespace, machine: dict[str, Any], person: str) -> None:
    print(json.dumps(machine, indent=2) if options.json else person)


def _tell(progress: str) -> None:
    print(progress, file=sys.stderr, flush=True)


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
