"""`gateway bench`: how many calls one core of this machine sustains, and what each costs."""

import argparse
import json
from functools import partial
from typing import Final

from gateway import extras
from gateway.bench import results, runner
from gateway.bench.processes import COMPARISONS, LOCAL_CALLS, REALTIME, SOCKETS
from gateway.cli import terminal
from gateway.errors import SettingsError
from gateway.text.figures import count

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
        choices=("local", "openai"),
        help="openai: the same with OpenAI's Realtime protocol, audio as base64 in JSON; "
        f"local: word error of the local engine and its response time, from the caller's last audio to the agent's "
        f"first; one call, then N ({LOCAL_CALLS}) at once",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Return 1 if frames or answers were lost or no load was sustained."""
    measure = partial(runner.measure, seconds=options.seconds)
    variant = REALTIME if options.engine == "openai" else SOCKETS[options.sockets]
    if options.engine == "local":
        if not extras.is_installed("local"):
            raise SettingsError(f"the local engine is not installed; run: {extras.how_to_install('local')}")
        from gateway.bench import local  # numpy; not needed by the server

        with _progress("measuring") as line:
            local_found = local.measure(options.calls or LOCAL_CALLS, progress=line.note)
        held, text, content = local_found.held, local.local_as_text(local_found), local.local_as_json(local_found)
    elif options.compare:
        compared = partial(measure, options.calls or runner.COMPARED_CALLS)
        with _progress("measuring") as line:
            first, second = runner.compare(compared, COMPARISONS[options.compare], progress=line.note)
        held, text = first.frames.faultless and second.frames.faultless, results.comparison_as_text(first, second)
        content = {**results.as_json([first, second]), "ratio": results.ratios(first, second)}
    elif options.calls:
        with _progress(f"{count(options.calls, 'call')} for {options.seconds:g} s"):
            result = measure(options.calls, variant)
        held, text, content = result.frames.faultless, results.run_as_text(result), results.as_json([result])
    else:
        with _progress("searching for the most calls that are sustained") as line:
            found = runner.search(partial(measure, variant=variant), progress=line.note)
        sustained = found.best.calls if found.best is not None else 0
        held, text = sustained > 0, results.search_as_text(found)
        content = results.as_json(found.steps, calls_sustained=sustained)
    print(json.dumps(content, indent=2) if options.json else text)
    return 0 if held else 1


_progress: Final = partial(terminal.progress, per_second=1)
"""Seldom drawn: the simulated peers run in this process."""


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
