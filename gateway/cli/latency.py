"""`gateway latency`: how long answers took, stage by stage."""

import argparse
import os
from pathlib import Path
from typing import Any

import orjson

from gateway import settings
from gateway.cli import sessions_text
from gateway.cli.remote import Remote, add_remote, moment
from gateway.cli.sessions import in_room
from gateway.history.queries import CallFilter


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "latency",
        help="show how long answers took",
        description="Percentiles of each stage of an answer, counted from the end of the caller's speech. Reads "
        "DATA_DIR, or asks the gateway at --url.",
    )
    parser.add_argument("--since", default="24h", metavar="WHEN", help="10m, 2h, 3d or 2026-02-06 (24h)")
    parser.add_argument("--until", default="", metavar="WHEN", help="the same; now")
    parser.add_argument("--agent", default="", help="only this agent's calls")
    parser.add_argument("--json", action="store_true", help="for machines")
    add_remote(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    before = moment(options.until).isoformat() if options.until else ""
    wanted = CallFilter(agent=options.agent, since=moment(options.since).isoformat(), before=before)
    if options.url:
        query = {name: value for name, value in vars(wanted).items() if value}
        figures = Remote.of(loaded, options.url).get("/v1/latency", **query)
    else:
        figures = in_room(loaded, lambda room: room.latency(wanted))
    print(orjson.dumps(figures).decode() if options.json else sessions_text.latency(figures))
    return 0
