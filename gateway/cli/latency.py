"""`gateway latency`: how long answers took, stage by stage."""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from gateway import settings
from gateway.cli import terminal
from gateway.cli.remote import Remote, add_url_option, parse_time
from gateway.cli.sessions import query_history
from gateway.cli.terminal import count, milliseconds, minute
from gateway.history.calls_table import STAGES
from gateway.history.queries import CallFilter

DESCRIPTION: Final = (
    "Percentiles of each stage of an answer, measured from the end of the caller's speech, and of the time from a "
    "call's answer to the agent's first audio. Reads DATA_DIR, or asks the gateway at --url."
)

_HEAD: Final = ("from end of speech to", "turns", "p50", "p90", "p99", "max", "median over time")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--since", default="24h", metavar="WHEN", help="10m, 2h, 3d or 2026-02-06 (default: 24h)")
    parser.add_argument("--until", default="", metavar="WHEN", help="the same format (default: now)")
    parser.add_argument("--agent", default="", help="only calls with this agent")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_url_option(parser)


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    before = parse_time(options.until).isoformat() if options.until else ""
    chosen = CallFilter(agent=options.agent, since=parse_time(options.since).isoformat(), before=before)
    if options.url:
        figures = Remote.of(loaded, options.url).get("/v1/latency", **vars(chosen))
    else:
        figures = query_history(loaded, lambda history: history.latency(chosen))
    terminal.output(options.json, figures, as_rows(figures))
    return 0


def as_rows(figures: Mapping[str, Any]) -> Iterator[RenderableType]:
    """A row per stage, with a sparkline of its median over time."""
    title = f"{count(figures['turns'], 'turn')} in {count(figures['calls'], 'call')} since {minute(figures['since'])}"
    if not figures["turns"]:
        yield f"{title}: nothing measured"
        return
    stages = {stage: figures["stages"][stage] for stage in STAGES if figures["stages"][stage]["turns"]}
    yield title
    yield ""
    rows = [_row(stage.replace("_", " "), found["turns"], found) for stage, found in stages.items()]
    yield terminal.table(rows, head=_HEAD)
    if (first := figures.get("first_audio", {})).get("calls"):
        yield ""
        yield terminal.table([_row("first audio", first["calls"], first)], head=("from answer to", "calls", *_HEAD[2:]))


def _row(name: str, number: int, found: Mapping[str, Any]) -> Sequence[terminal.Cell]:
    shown = (milliseconds(found[rank]) for rank in ("p50", "p90", "p99", "max"))
    return (name, str(number), *shown, sparkline(found["course"]))


def sparkline(values: Iterable[float | None]) -> Text:
    """One bar per value, scaled to the largest; a blank where the value is None."""
    given, bars = list(values), "▁▂▃▄▅▆▇█"
    largest = max((value for value in given if value is not None), default=0.0) or 1.0
    return Text("".join(" " if value is None else bars[min(7, max(0, int(value / largest * 8)))] for value in given))
