"""`gateway sessions`: list calls, show one in full, retry post-call processing."""

import argparse
import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gateway import settings
from gateway.cli import terminal
from gateway.cli.audit import write_entry
from gateway.cli.remote import Remote, add_url_option
from gateway.cli.tail import event_line
from gateway.cli.terminal import clock, count, duration, line, milliseconds, minute, one_line, short_id, table
from gateway.errors import SettingsError
from gateway.finalization.job_table import JobTable
from gateway.finalization.webhooks import retry_failed
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, cli_actor
from gateway.history.calls_table import STAGES
from gateway.history.queries import CallFilter, CallHistory
from gateway.history.stores import Stores, existing_stores
from gateway.logs import last_four
from gateway.session import EndReason
from gateway.settings import Settings, admin_token
from gateway.telephony.phone_numbers import e164

DESCRIPTION: Final = (
    "List ended calls with their outcome and the state of their post-call processing. Reads DATA_DIR, or asks the "
    "gateway at --url."
)
ALL_DONE: Final = "every call is archived, summarised and stored"

_STATES: Final = {"done": "", "rests": "failed", "under way": "pending"}
"""Job states as the JSON names them, in words for a person."""

T = TypeVar("T")
Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "show", "retry"), default="list")
    parser.add_argument("session", nargs="?", default="", help="show, retry: the session id, or its first characters")
    parser.add_argument("--caller", default="", help="only calls from this number")
    parser.add_argument("--agent", default="", help="only calls with this agent")
    parser.add_argument("--day", default="", help="only calls on this day: 2026-02-06, today or yesterday")
    parser.add_argument("--outcome", default="", help="only this outcome, such as 'caller hung up', or unfinished")
    parser.add_argument("--limit", type=int, default=50, help="at most this many (default: 50)")
    parser.add_argument("--archived", action="store_true", help="only calls older than VOICE_SESSION_ARCHIVE_DAYS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_url_option(parser)


def run(options: argparse.Namespace) -> int:
    loaded = settings.load(os.environ, Path.cwd())
    actions = {"list": _list, "show": _show, "retry": _retry}
    actions[options.action](options, loaded)
    return 0


def _list(options: argparse.Namespace, loaded: Settings) -> None:
    chosen, limit = _filter(options), options.limit
    if limit < 1:
        raise SettingsError(f"--limit is {limit}; use 1 or more")
    if options.url:
        more = {"archived": "1" if options.archived else "", "limit": str(limit)}
        rows = Remote.of(loaded, options.url).get("/v1/sessions", **vars(chosen), **more)
    else:
        rows = query_history(loaded, lambda history: history.calls(chosen, limit=limit, archived=options.archived))
    rows = [{**row, "caller": last_four(row["caller"])} for row in rows]
    terminal.output(options.json, rows, call_list(rows))


def _show(options: argparse.Namespace, loaded: Settings) -> None:
    if not options.session:
        raise SettingsError("name a session; `gateway sessions` lists them")
    if options.url:
        call = Remote.of(loaded, options.url).get(f"/v1/sessions/{options.session}")
    else:
        call = query_history(loaded, lambda history: history.call(options.session))
    if call is None:
        raise SettingsError(f"no single call matches {options.session}; `gateway sessions` lists them")
    if not options.url:  # else the gateway there logs it
        write_entry(loaded, AuditNote(AuditAction.CALL_EXPORT, agent=call["agent"], session=call["session"]))
    terminal.output(options.json, call, call_details(call))


def _retry(options: argparse.Namespace, loaded: Settings) -> None:
    """Requeue failed jobs and webhooks. A running gateway takes them up within seconds, else the next start does."""
    if options.url:
        raise SettingsError("retry needs the gateway's DATA_DIR; run it on that machine, without --url")
    session = options.session

    async def retry(stores: Stores) -> int:
        note = AuditNote(AuditAction.CALL_RETRY, cli_actor(), session=session)
        async with AuditLog(stores.memory, admin_token(loaded)).noted(note):
            return await JobTable(stores.local).retry_failed(session) + await retry_failed(stores.memory, session)

    requeued = _with_stores(loaded, retry)
    if session and not requeued:
        raise SettingsError(f"no failed job for {session}; `gateway sessions` lists failed jobs")
    print(f"{requeued} queued again; the running gateway retries now, or at its next start")


# Queries, here or at a running gateway


def query_history(loaded: Settings, query: Callable[[CallHistory], Awaitable[T]]) -> T:
    """Read the history under DATA_DIR."""
    places = {"data_dir": loaded.data_dir, "archive_dir": loaded.voice_session_archive_dir}
    return _with_stores(loaded, lambda stores: query(CallHistory(stores, **places)))


def _with_stores(loaded: Settings, ask: Callable[[Stores], Awaitable[T]]) -> T:
    async def asked() -> T:
        async with existing_stores(loaded, needs_local=True) as stores:
            return await ask(stores)

    return asyncio.run(asked())


def _filter(options: argparse.Namespace) -> CallFilter:
    caller = options.caller
    if caller[:1] in tuple("+0123456789") and not (caller := e164(caller)):
        raise SettingsError(f"{options.caller!r} is not a phone number; write it like +12025550143")
    since, before = _day(options.day) if options.day else ("", "")
    chosen = CallFilter(caller, options.agent, options.outcome.lower(), since, before)
    if chosen.outcome not in ("", "unfinished") and not chosen.outcomes:
        known = ", ".join([*EndReason, "unfinished"])
        raise SettingsError(f"no outcome starts with {chosen.outcome!r}; use one of: {known}")
    return chosen


def _day(text: str) -> tuple[str, str]:
    """Its first moment and the next day's, in local time."""
    named = {"today": date.today(), "yesterday": date.today() - timedelta(days=1)}
    try:
        day = named.get(text) or date.fromisoformat(text)
        begin, end = (datetime.combine(one, time()).astimezone(UTC) for one in (day, day + timedelta(days=1)))
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a valid day; write 2026-02-06, today or yesterday") from None
    return begin.isoformat(), end.isoformat()


# Text for a person


def call_list(rows: Sequence[Row]) -> Iterator[RenderableType]:
    """One row per call, then the jobs that are not done."""
    if rows:
        yield table(
            (
                short_id(row["session"]),
                minute(row["started_at"]),
                row["agent"],
                row["caller"],
                row["carrier"],
                duration(row["seconds"]),
                count(row["turns"], "turn"),
                row["outcome"],
                _STATES[row["ending"]],
            )
            for row in rows
        )
        yield ""
    unfinished = [row for row in rows if row["ending"] != "done"]
    for row in unfinished:
        done = {
            "archived": row["archived"],
            "summarised": row["summary_by"],
            "stored": row["document"],
            "sent to the remote store": row["remote"],
        }
        problem = one_line(row["problem"])
        yield line(f"{row['session']}  {minute(row['started_at'])}  {row['agent']}  {row['caller']}")
        yield "    " + ", ".join(f"{'' if is_done else 'not '}{step}" for step, is_done in done.items())
        yield Text(f"    failed: {problem}", "red") if problem else Text("    pending", "dim")
    if not unfinished:
        yield ALL_DONE


def call_details(call: Row) -> Iterator[RenderableType]:
    yield line(call["session"], "bold")
    yield line(f"{minute(call['started_at'])}  {call['carrier']}  {call['caller']} with {call['agent']}")
    yield line(f"{duration(call['seconds'])}, {count(call['turns'], 'turn')}, {call['outcome']}")
    if call.get("engine"):
        yield line(f"engine: {call['engine']}, first audio after {milliseconds(call['first_audio'])}")
    if call.get("consent"):
        yield line(f"recording: {call['consent']}")
    about = {name: call[name] for name in ("session", "caller", "agent", "carrier")}
    timings = [
        (str(number), *(milliseconds(timing.get(stage)) for stage in STAGES))
        for number, timing in enumerate(call["timings"], 1)
    ]
    stages = ("turn", *(stage.replace("_", " ") for stage in STAGES))
    steps = [(name, step["state"], step["reason"]) for name, step in call["steps"].items()]
    sections: dict[str, list[RenderableType]] = {
        "Transcript": [_turn(turn) for turn in call["transcript"]],
        "Summary": [line(text) for text in call["summary"].splitlines()],
        "Response times": [table(timings, head=stages)] if timings else [],
        "Context given at the start": [line(text) for text in call["receipt"].get("block", "").splitlines()],
        "Post-call processing": [table(steps)] if steps else [],
        "Events": [event_line({**about, **event}) for event in call["timeline"]],
    }
    if call["problem"]:
        sections["Post-call processing"].append(line(call["problem"], "red"))
    for title, lines in sections.items():
        if lines:
            yield ""
            yield Text(title, "bold")
            yield Padding(Group(*lines), (0, 0, 0, 2))


def _turn(turn: Row) -> Text:
    text = Text(f"{clock(turn['at'])}  " if turn["at"] else "")
    text.append(f"{turn['speaker'].upper()}: {one_line(turn['text'])}")
    if turn["unheard"]:
        text.append(f" [not heard: {one_line(turn['unheard'])}]", "dim")
    if (latency := turn.get("latency")) is not None:
        text.append(f"  {milliseconds(latency)}", "dim")
    return text
