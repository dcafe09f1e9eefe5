"""`gateway sessions`: list calls, show one in full, retry post-call processing."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Final, TypeVar

import orjson

from gateway import settings
from gateway.cli.remote import Remote, add_url_option
from gateway.errors import SettingsError
from gateway.finalization.job_table import JobTable
from gateway.history.queries import CallFilter, CallHistory
from gateway.history.stores import Stores, open_stores, store_path
from gateway.logs import last_four
from gateway.session import EndReason
from gateway.settings import Settings
from gateway.telephony.phone_numbers import e164

DESCRIPTION: Final = (
    "List ended calls with their outcome and the state of their post-call processing. Reads DATA_DIR, or asks the "
    "gateway at --url."
)

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "show", "retry"), default="list")
    parser.add_argument("session", nargs="?", default="", help="show, retry: the session id, or its first characters")
    parser.add_argument("--caller", default="", help="only calls from this number")
    parser.add_argument("--agent", default="", help="only calls with this agent")
    parser.add_argument("--day", default="", help="only calls on this day: 2026-02-06, today or yesterday")
    parser.add_argument("--outcome", default="", help="only this outcome, such as 'caller hung up', or unfinished")
    parser.add_argument("--archived", action="store_true", help="only calls older than VOICE_SESSION_ARCHIVE_DAYS")
    parser.add_argument("--limit", type=int, default=50, help="at most this many (default: 50)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_url_option(parser)


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    match options.action:
        case "retry":
            return _retry(options, loaded)
        case "show":
            return _show(options, loaded)
        case _:
            return _list(options, loaded)


def query_history(loaded: Settings, query: Callable[[CallHistory], Awaitable[T]]) -> T:
    """Read the history under DATA_DIR."""

    def ask(stores: Stores) -> Awaitable[T]:
        return query(CallHistory(stores, data_dir=loaded.data_dir, archive_dir=loaded.voice_session_archive_dir))

    return _with_stores(loaded, ask)


def _list(options: argparse.Namespace, loaded: Settings) -> int:
    chosen, limit = _filter(options), options.limit
    if limit < 1:
        raise SettingsError(f"--limit is {limit}; use 1 or more")
    if options.url:
        query = {name: value for name, value in vars(chosen).items() if value}
        query |= {"archived": "1"} if options.archived else {}
        rows = Remote.of(loaded, options.url).get("/v1/sessions", **query, limit=str(limit))
    else:
        rows = query_history(loaded, lambda history: history.calls(chosen, limit=limit, archived=options.archived))
    rows = [{**row, "caller": last_four(row["caller"])} for row in rows]
    if options.json:
        print(orjson.dumps(rows).decode())
    else:
        from gateway.cli import sessions_text, terminal

        terminal.show(*sessions_text.call_list(rows))
    return 0


def _show(options: argparse.Namespace, loaded: Settings) -> int:
    if not options.session:
        raise SettingsError("name a session; `gateway sessions` lists them")
    if options.url:
        call = Remote.of(loaded, options.url).get(f"/v1/sessions/{options.session}")
    else:
        call = query_history(loaded, lambda history: history.call(options.session))
    if call is None:
        raise SettingsError(f"no single call matches {options.session}; `gateway sessions` lists them")
    if options.json:
        print(orjson.dumps(call).decode())
    else:
        from gateway.cli import sessions_text, terminal

        terminal.show(*sessions_text.call_details(call))
    return 0


def _retry(options: argparse.Namespace, loaded: Settings) -> int:
    """Requeue failed finalization jobs. A running gateway takes them up within seconds, else the next start does."""
    if options.url:
        raise SettingsError("retry needs the gateway's DATA_DIR; run it on that machine, without --url")
    session = options.session
    requeued = _with_stores(loaded, lambda stores: JobTable(stores.local).retry_failed(session))
    if session and not requeued:
        raise SettingsError(f"no failed job for {session}; `gateway sessions` lists failed jobs")
    print(f"{requeued} queued again; the running gateway retries now, or at its next start")
    return 0


def _with_stores(loaded: Settings, ask: Callable[[Stores], Awaitable[T]]) -> T:
    path = store_path(loaded.data_dir)
    if not path.is_file():
        raise SettingsError(f"{path} does not exist; start the gateway once, or set DATA_DIR to its folder")

    async def asked() -> T:
        stores = await open_stores(loaded.data_dir, loaded.database_url)
        try:
            return await ask(stores)
        finally:
            await stores.close()

    return asyncio.run(asked())


def _filter(options: argparse.Namespace) -> CallFilter:
    since, before = _day(options.day) if options.day else ("", "")
    outcome = options.outcome.lower()
    chosen = CallFilter(_caller(options.caller), options.agent, outcome, since, before)
    if outcome not in ("", "unfinished") and not chosen.outcomes:
        known = ", ".join([*EndReason, "unfinished"])
        raise SettingsError(f"no outcome starts with {outcome!r}; use one of: {known}")
    return chosen


def _caller(text: str) -> str:
    number = e164(text) if text[:1] in "+0123456789" and text else text
    if text and not number:
        raise SettingsError(f"{text!r} is not a phone number; write it like +12025550143")
    return number or ""


def _day(text: str) -> tuple[str, str]:
    """Its first moment and the next day's, in local time."""
    named = {"today": date.today(), "yesterday": date.today() - timedelta(days=1)}
    try:
        day = named.get(text) or date.fromisoformat(text)
        begin, end = (datetime.combine(one, time()).astimezone(UTC) for one in (day, day + timedelta(days=1)))
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a valid day; write 2026-02-06, today or yesterday") from None
    return begin.isoformat(), end.isoformat()
