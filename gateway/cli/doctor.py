"""`gateway doctor`: looks at everything that a call needs, and says what to mend."""

import argparse
import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from gateway import settings
from gateway.cli.checks import CheckResult, CheckState, examine
from gateway.cli.remote import Paint, columns
from gateway.errors import SettingsError

_COLOURS = {CheckState.OK: "green", CheckState.WARNING: "yellow", CheckState.WRONG: "red"}


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the set-up and say what to mend",
        description="Check settings, keys, reachability, disk and clock. Exit 0 when all is well, 1 with a warning, 2 "
        "when something is wrong. Changes nothing.",
    )
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    try:
        findings = asyncio.run(examine(settings.load(os.environ, Path.cwd())))
    except SettingsError as error:
        findings = [CheckResult("settings", CheckState.WRONG, str(error))]
    if options.json:
        rows = [{"check": one.check, "state": one.state, "found": one.found, "todo": one.todo} for one in findings]
        print(orjson.dumps(rows).decode())
    else:
        print(_text(findings))
    return max(one.state.exit_code for one in findings)


def _text(findings: list[CheckResult]) -> str:
    paint = Paint()
    lines = columns([(one.state.ljust(7), one.check, one.found) for one in findings]).splitlines()
    shown: list[str] = []
    for one, text in zip(findings, lines, strict=True):
        shown.append(paint(text[:7], _COLOURS[one.state]) + text[7:])
        shown += [f"         to do: {one.todo}"] if one.todo else []
    counts = Counter(one.state for one in findings)
    return "\n".join([*shown, "", ", ".join(f"{counts[state]} {state}" for state in CheckState)])
