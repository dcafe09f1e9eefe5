"""`gateway sessions`: list calls, show one in full, retry post-call processing."""

import argparse
import asyncio
import os
import re
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
from gateway.cli.tail import STEP_STATES, event_row, is_routine
from gateway.cli.terminal import clock, hanging, line, minute, named, one_line, response_time, short_id, table
from gateway.errors import SettingsError
from gateway.finalization.job_table import JobTable
from gateway.finalization.webhooks import retry_failed
from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, cli_actor
from gateway.history.queries import CallFilter, CallHistory
from gateway.history.stores import Stores, existing_stores
from gateway.invocation import command
from gateway.memory.facts import labelled
from gateway.response_time import STAGE_NAMES, STAGES, ResponseTime
from gateway.session import EndReason
from gateway.settings import Settings, admin_token
from gateway.telephony.phone_numbers import e164
from gateway.text.figures import count, duration, milliseconds

DESCRIPTION: Final = (
    "List ended calls with their outcome and the state of their post-call processing. Reads DATA_DIR, or asks the "
    "gateway at --url."
)
ALL_DONE: Final = "all of these calls are archived, summarised and stored"
NO_CALLS: Final = "no calls"

_STATES: Final = {"done": "", "rests": "failed", "under way": "pending"}
"""Job states as the JSON names them, in words for a person."""

_SESSION: Final = re.compile(r"(voice-session:)?[0-9a-f]{4}[0-9a-f-]*")

T = TypeVar("T")
Row = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = "list (the default), show, retry; or the id of a session to show"
    parser.add_argument("action", nargs="?", default="list", metavar="ACTION", help=actions)
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
    if options.action not in actions:
        if options.session or not _SESSION.fullmatch(options.action):
            raise SettingsError(f"{options.action!r} is unknown; use list, show or retry, or the id of a session")
        options.action, options.session = "show", options.action
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
    terminal.output(options.json, rows, call_list(rows, limit))


def _show(options: argparse.Namespace, loaded: Settings) -> None:
    if not options.session:
        raise SettingsError(f"name a session; `{command('sessions')}` lists them")
    if options.url:
        call = Remote.of(loaded, options.url).get(f"/v1/sessions/{options.session}")
    else:
        call = query_history(loaded, lambda history: history.call(options.session))
    if call is None:
        raise SettingsError(f"no single call matches {options.session}; `{command('sessions')}` lists them")
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
        raise SettingsError(f"no failed job for {session}; `{command('sessions')}` lists failed jobs")
    again = f"{count(requeued, 'job')} queued again; a running gateway retries now, else the next one that starts"
    print(again if requeued else "nothing to retry: no post-call work has failed")


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


def call_list(rows: Sequence[Row], limit: int = 0) -> Iterator[RenderableType]:
    """One row per call, then the jobs that are not done. At `limit` there may be more."""
    unfinished = [row for row in rows if row["ending"] != "done"]
    head = ("call", "time", "caller", "agent", "carrier", "length", "turns", "outcome")
    if rows:
        yield table(
            (
                (
                    short_id(row["session"]),
                    minute(row["started_at"]),
                    named(row["caller"], row.get("name", "")),
                    row["agent"],
                    row["carrier"],
                    duration(row["seconds"]),
                    str(row["turns"]),
                    row["outcome"],
                    *([_STATES[row["ending"]]] if unfinished else []),
                )
                for row in rows
            ),
            head=(*head, "post-call") if unfinished else head,
            figures=("length", "turns"),
        )
        yield ""
    for row in unfinished:
        done = {
            "archived": row["archived"],
            "summarised": row["summary_by"],
            "stored": row["document"],
            "sent to the remote store": row["remote"],
        }
        problem = one_line(row["problem"])
        caller = named(row["caller"], row.get("name", ""))
        yield line(f"{row['session']}  {minute(row['started_at'])}  {caller}  {row['agent']}")
        yield "    " + ", ".join(f"{'' if is_done else 'not '}{step}" for step, is_done in done.items())
        yield Text(f"    failed: {problem}", "red") if problem else Text("    pending", "dim")
    if not unfinished:
        yield ALL_DONE if rows else NO_CALLS
    if rows and len(rows) == limit:
        yield terminal.limited(limit, "calls")


def call_details(call: Row) -> Iterator[RenderableType]:
    yield line(call["session"], "bold")
    caller = named(call["caller"], call.get("name", ""))
    yield line(f"{minute(call['started_at'])}  {call['carrier']}  {caller} with {call['agent']}")
    yield line(f"{duration(call['seconds'])}, {count(call['turns'], 'turn')}, {call['outcome']}")
    if call.get("engine"):
        first = call["first_audio"]
        audio = "first audio not measured" if first is None else f"first audio {milliseconds(first)} after the answer"
        yield line(f"engine: {call['engine']}, {audio}")
    if call.get("consent"):
        yield line(f"recording: {call['consent']}")
    about = {name: call[name] for name in ("session", "caller", "agent", "carrier")}
    events = ({**about, **event} for event in call["timeline"] if not is_routine(event))
    timings = [
        (str(number), *(milliseconds(getattr(answer, stage)) for stage in STAGES), answer.counted_from.note)
        for number, answer in enumerate(map(ResponseTime.from_json, call["timings"]), 1)
    ]
    stages = ("turn", *STAGE_NAMES.values(), "")
    steps = [
        (name, STEP_STATES.get(step["state"], step["state"]), step["reason"])
        for name, step in call["steps"].items()
        if not is_routine(step)
    ]
    sections: dict[str, list[RenderableType]] = {
        "Transcript": [_turn(turn) for turn in call["transcript"]],
        "Summary": [line(text) for text in labelled(call["summary"]).splitlines()],
        "Response times, from the caller's last voiced frame": [table(timings, head=stages, figures=stages[:-1])]
        if timings
        else [],
        "Context given at the start": [line(text) for text in labelled(call["receipt"].get("block", "")).splitlines()],
        "Post-call processing": [table(steps, head=("step", "state", "reason"))] if steps else [],
        "Events": [event_row(event, of_call=False) for event in events],
    }
    if call["problem"]:
        sections["Post-call processing"].append(line(call["problem"], "red"))
    for title, lines in sections.items():
        if lines:
            yield ""
            yield Text(title, "bold")
            yield Padding(Group(*lines), (0, 0, 0, 2))


def _turn(turn: Row) -> RenderableType:
    margin = f"{clock(turn['at'])}  " if turn["at"] else ""
    speaker = "operator" if turn.get("by_operator") else turn["speaker"]
    text = line(turn["text"])
    if turn["unheard"]:
        text.append(f"{' ' if text.plain else ''}[not heard: {one_line(turn['unheard'])}]", "dim")
    if (seconds := turn.get("latency")) is not None:
        text.append("  ").append(response_time(seconds, turn.get("counted_from")))
    return hanging(Text(f"{margin}{speaker:6}"), text)
