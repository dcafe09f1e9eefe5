"""`gateway doctor`: checks everything that a call needs and says what to fix."""

import argparse
import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import orjson
from rich.text import Text

from gateway import settings
from gateway.cli import terminal
from gateway.cli.checks import CheckResult, CheckState, examine
from gateway.errors import SettingsError

DESCRIPTION: Final = (
    "Check settings, keys, connections, disk and clock. Exit code 0: all good, 1: warnings, 2: something is wrong. "
    "Changes nothing."
)

_STYLES: Final = {CheckState.OK: "green", CheckState.WARNING: "yellow", CheckState.WRONG: "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    try:
        loaded = settings.load(os.environ, Path.cwd())
        with terminal.progress("Checking settings, keys and connections"):
            results = asyncio.run(examine(loaded))
    except SettingsError as error:
        results = [CheckResult("settings", CheckState.WRONG, str(error))]
    if options.json:
        rows = [{"check": one.check, "state": one.state, "found": one.found, "todo": one.todo} for one in results]
        print(orjson.dumps(rows).decode())
    else:
        counts = Counter(one.state for one in results)
        totals = ", ".join(f"{counts[state]} {state}" for state in CheckState)
        terminal.show(terminal.table(_rows(results)), "", totals)
    return max(one.state.exit_code for one in results)


def _rows(results: Sequence[CheckResult]) -> Iterator[Sequence[terminal.Cell]]:
    for one in results:
        yield Text(one.state, _STYLES[one.state]), one.check, one.found
        if one.todo:
            yield "", "", Text(f"to do: {one.todo}", "bold")
