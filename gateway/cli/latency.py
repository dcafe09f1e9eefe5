"""`gateway latency`: how long answers took, stage by stage."""

import argparse
import os
from pathlib import Path
from typing import Final

import orjson

from gateway import settings
from gateway.cli.remote import Remote, add_url_option, parse_time
from gateway.cli.sessions import query_history
from gateway.history.queries import CallFilter

DESCRIPTION: Final = (
    "Percentiles of each stage of an answer, measured from the end of the caller's speech. Reads DATA_DIR, or asks "
    "the gateway at --url."
)


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
        query = {name: value for name, value in vars(chosen).items() if value}
        figures = Remote.of(loaded, options.url).get("/v1/latency", **query)
    else:
        figures = query_history(loaded, lambda history: history.latency(chosen))
    if options.json:
        print(orjson.dumps(figures).decode())
    else:
        from gateway.cli import sessions_text, terminal

        terminal.show(sessions_text.latency(figures))
    return 0
