"""`gateway latency`: response times, stage by stage."""

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
from gateway.cli.terminal import minute
from gateway.history.queries import CallFilter
from gateway.response_time import STAGE_NAMES, STAGES
from gateway.text.figures import count, milliseconds

DESCRIPTION: Final = (
    "Percentiles of the response time, from the caller's last voiced frame to the first audio sent to the carrier, and "
    "of each stage within it; and of the time from a call's answer to the agent's first audio. Reads DATA_DIR, or asks "
    "the gateway at --url."
)

_HEAD: Final = ("from the last voiced frame to", "turns", "p50", "p90", "p95", "p99", "max", "median over time")

_FIGURES: Final = ("calls", *_HEAD[1:-1])


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
    """The response time, and a row per stage with a sparkline of its median over time."""
    answers, elsewhere = figures["stages"]["first_frame"], figures["elsewhere"]
    shown = _summary(answers) if answers["turns"] else "not measured"
    yield f"Response time: {shown}; {count(figures['calls'], 'call')} since {minute(figures['since'])}"
    if elsewhere["turns"]:
        yield f"From the engine's end of turn or the transcript, no voiced frame known: {_summary(elsewhere)}"
    rows = [
        _row(STAGE_NAMES[stage], found["turns"], found)
        for stage in STAGES
        if (found := figures["stages"].get(stage, {})).get("turns")
    ]
    if rows:
        yield ""
        yield terminal.table(rows, head=_HEAD, figures=_FIGURES)
    if (first := figures.get("first_audio", {})).get("calls"):
        yield ""
        head = ("from answer to", "calls", *_HEAD[2:])
        yield terminal.table([_row("first audio", first["calls"], first)], head=head, figures=_FIGURES)


def _summary(found: Mapping[str, Any]) -> str:
    median, p95 = milliseconds(found["p50"]), milliseconds(found["p95"])
    return f"{median} median, {p95} p95 ({count(found['turns'], 'answer')})"


def _row(name: str, number: int, found: Mapping[str, Any]) -> Sequence[terminal.Cell]:
    shown = (milliseconds(found[rank]) for rank in ("p50", "p90", "p95", "p99", "max"))
    return (name, str(number), *shown, sparkline(found["course"]))


def sparkline(values: Iterable[float | None]) -> Text:
    """One bar per value, scaled to the largest; a dot where there was none."""
    given, bars = list(values), "▁▂▃▄▅▆▇█"
    largest = max((value for value in given if value is not None), default=0.0) or 1.0
    return Text("".join("·" if value is None else bars[min(7, max(0, int(value / largest * 8)))] for value in given))
