"""`gateway sessions`: calls whose ending is not done, and why; and have them tried again."""

import argparse
import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway import settings
from gateway.calls.endings import Ending, Endings
from gateway.calls.own_store import open_own_store, store_path
from gateway.errors import SettingsError
from gateway.logs import last_four


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "sessions",
        help="show calls whose ending is not done",
        description="Calls that are not archived, summarised and stored everywhere yet, and why. Reads DATA_DIR.",
    )
    parser.add_argument("action", nargs="?", choices=("list", "retry"), default="list")
    parser.add_argument("session", nargs="?", default="", help="with retry: only this call")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    data_dir = settings.load(os.environ, Path.cwd()).data_dir
    if not store_path(data_dir).is_file():
        where = store_path(data_dir)
        raise SettingsError(f"there is no {where}; has a gateway run here? DATA_DIR says where it keeps its files")
    if options.action == "retry":
        return asyncio.run(_retry(data_dir, options.session))
    unfinished = asyncio.run(_list(data_dir))
    print(orjson.dumps([_row(ending) for ending in unfinished]).decode() if options.json else _table(unfinished))
    return 0


async def _list(data_dir: Path) -> list[Ending]:
    store = await open_own_store(data_dir)
    try:
        return await Endings(store).open_ones()
    finally:
        await store.close()


async def _retry(data_dir: Path, session: str) -> int:
    """Wake resting endings; a running gateway takes them up within seconds, else the next start does."""
    store = await open_own_store(data_dir)
    try:
        woken = await Endings(store).try_again(session)
    finally:
        await store.close()
    if session and not woken:
        raise SettingsError(f"no call {session} waits to be tried again; `gateway sessions` lists those that do")
    print(f"{woken} to be tried again, by the running gateway or at its next start")
    return 0


def _row(ending: Ending) -> dict[str, Any]:
    session = ending.session
    return {
        "session": session.id,
        "started_at": session.started_at.isoformat(),
        "agent": session.agent,
        "caller": last_four(session.caller),
        "archived": ending.archived,
        "document": ending.document_id,
        "summary_by": ending.summary.written_by if ending.summary else "",
        "remote": ending.remote_version > 0,
        "problem": ending.problem,
    }


def _table(unfinished: Sequence[Ending]) -> str:
    if not unfinished:
        return "every call is archived, summarised and stored"
    return "\n".join(_lines(_row(ending)) for ending in unfinished)


def _lines(row: dict[str, Any]) -> str:
    done = {
        "archived": row["archived"],
        "summarised": bool(row["summary_by"]),
        "stored": bool(row["document"]),
        "stored remotely": row["remote"],
    }
    state = ", ".join(f"{'' if is_done else 'not '}{step}" for step, is_done in done.items())
    head = f"{row['session']}  {row['started_at'][:16]}  {row['agent']}  {row['caller']}"
    return f"{head}\n    {state}\n    {row['problem'] or 'under way'}"
