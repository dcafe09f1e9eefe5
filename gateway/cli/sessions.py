"""`gateway sessions`: calls that are over, one of them whole, and endings that are not done."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gateway import settings
from gateway.cli import sessions_text
from gateway.cli.remote import Paint, Remote, add_remote
from gateway.errors import SettingsError
from gateway.finalization.job_table import JobTable
from gateway.history.queries import CallFilter, CallHistory
from gateway.history.stores import Stores, open_stores, store_path
from gateway.logs import last_four
from gateway.session import EndReason
from gateway.settings import Settings
from gateway.telephony.phone_numbers import e164

T = TypeVar("T")


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "sessions",
        help="list and show calls, and have unfinished endings tried again",
        description="Calls that are over, how they ended, and what is not archived, summarised and stored yet. Reads "
        "DATA_DIR, or asks the gateway at --url.",
    )
    parser.add_argument("action", nargs="?", choices=("list", "show", "retry"), default="list")
    parser.add_argument("session", nargs="?", default="", help="with show and retry: this call")
    parser.add_argument("--caller", default="", help="only this caller's")
    parser.add_argument("--agent", default="", help="only this agent's")
    parser.add_argument("--day", default="", help="only of this day: 2026-02-06, today or yesterday")
    parser.add_argument("--outcome", default="", help="only with this end, such as 'caller hung up', or unfinished")
    parser.add_argument("--limit", type=int, default=50, help="how many at most (50)")
    parser.add_argument("--json", action="store_true", help="for machines")
    add_remote(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    match options.action:
        case "retry":
            return _retry(options, loaded)
        case "show":
            return _show(options, loaded)
        case _:
            return _list(options, loaded)


def in_room(loaded: Settings, ask: Callable[[CallHistory], Awaitable[T]]) -> T:
    """What the store under DATA_DIR answers."""
    return _in_stores(loaded, lambda stores: ask(room_of(loaded, stores)))


def room_of(loaded: Settings, stores: Stores) -> CallHistory:
    return CallHistory(stores, data_dir=loaded.data_dir, archive_dir=loaded.voice_session_archive_dir)


def wanted_of(options: argparse.Namespace) -> CallFilter:
    since, before = _day(options.day) if options.day else ("", "")
    outcome = options.outcome.lower()
    wanted = CallFilter(_caller(options.caller), options.agent, outcome, since, before)
    if outcome not in ("", "unfinished") and not wanted.outcomes:
        known = ", ".join([*EndReason, "unfinished"])
        raise SettingsError(f"no call ends with {outcome!r}; the ends are: {known}")
    return wanted


def _list(options: argparse.Namespace, loaded: Settings) -> int:
    wanted, limit = wanted_of(options), options.limit
    if limit < 1:
        raise SettingsError(f"--limit is {limit}; use a number from 1 on")
    if options.url:
        query = {name: value for name, value in vars(wanted).items() if value}
        rows = Remote.of(loaded, options.url).get("/v1/sessions", **query, limit=str(limit))
    else:
        rows = in_room(loaded, lambda room: room.calls(wanted, limit=limit))
    rows = [{**row, "caller": last_four(row["caller"])} for row in rows]
    print(orjson.dumps(rows).decode() if options.json else sessions_text.table(rows, Paint()))
    return 0


def _show(options: argparse.Namespace, loaded: Settings) -> int:
    if not options.session:
        raise SettingsError("say which call; `gateway sessions` lists them")
    if options.url:
        call = Remote.of(loaded, options.url).get(f"/v1/sessions/{options.session}")
    else:
        call = in_room(loaded, lambda room: room.call(options.session))
    if call is None:
        raise SettingsError(f"no call {options.session} is known, or several begin so; `gateway sessions` lists them")
    print(orjson.dumps(call).decode() if options.json else sessions_text.whole(call, Paint()))
    return 0


def _retry(options: argparse.Namespace, loaded: Settings) -> int:
    """Wake resting endings; a running gateway takes them up within seconds, else the next start does."""
    if options.url:
        raise SettingsError("retry works where the gateway keeps its files; run it there, without --url")
    session = options.session
    woken = _in_stores(loaded, lambda stores: JobTable(stores.local).retry_failed(session))
    if session and not woken:
        raise SettingsError(f"no call {session} waits to be tried again; `gateway sessions` lists those that do")
    print(f"{woken} to be tried again, by the running gateway or at its next start")
    return 0


def _in_stores(loaded: Settings, ask: Callable[[Stores], Awaitable[T]]) -> T:
    where = store_path(loaded.data_dir)
    if not where.is_file():
        raise SettingsError(f"there is no {where}; has a gateway run here? DATA_DIR says where it keeps its files")

    async def asked() -> T:
        stores = await open_stores(loaded.data_dir, loaded.database_url)
        try:
            return await ask(stores)
        finally:
            await stores.close()

    return asyncio.run(asked())


def _caller(text: str) -> str:
    number = e164(text) if text[:1] in "+0123456789" and text else text
    if text and not number:
        raise SettingsError(f"{text!r} is not a telephone number; write it like +12025550143")
    return number or ""


def _day(text: str) -> tuple[str, str]:
    """From its first moment to the next day's, here."""
    named = {"today": date.today(), "yesterday": date.today() - timedelta(days=1)}
    try:
        day = named.get(text) or date.fromisoformat(text)
        begin, end = (datetime.combine(one, time()).astimezone(UTC) for one in (day, day + timedelta(days=1)))
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is no day; write it like 2026-02-06, today or yesterday") from None
    return begin.isoformat(), end.isoformat()
