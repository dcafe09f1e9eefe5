"""The list of calls: search by name, number or words, filters, and its export."""

import asyncio
import csv
import io
import re
import statistics
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.history.calls_table import CallRow, CallRowFilter, CallsTable, FinishedCall
from gateway.memory.stores.store import MemoryStore
from gateway.memory.summary_parser import PastCall, read_call
from gateway.response_time import CountedFrom, ResponseTime
from gateway.session import FAILURES, EndReason
from gateway.telephony.phone_numbers import searched_digits
from gateway.text.person_names import searched_words
from gateway.web.audit import audit_note
from gateway.web.dashboard.html import midnight, page_url
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

PAGE_ROWS: Final = 50
_BATCH: Final = 100
"""Calls of an export that are read at once."""
_PARAMS: Final = ("find", "of", "agent", "outcome", "since", "until", "zone", "words", "after")
"""
Query parameters of the list. `find` and `of` (a caller) are sealed. `zone`: of the days `since` and `until`. `words`:
search summaries, not names.
"""
_MAX_FOUND: Final = 100
_FOUND_SCORE: Final = 0.01  # documents that match no word score ten times lower
_ID: Final = re.compile(r"(?:voice-session:)?([0-9a-f]{8}[0-9a-f-]{0,28})")
_COLUMNS: Final = (
    *("session", "started_at", "ended_at", "seconds", "caller", "name", "agent", "carrier", "engine", "outcome"),
    *("turns", "median_response_seconds", "first_audio_seconds", "memory_items", "recording_consent"),
    *("topics", "decisions", "action_items", "facts", "context"),
)
"""Of an export. Times have a zone."""
_FORMULA: Final = re.compile(r"[=+\-@\t\r]")
"""What a spreadsheet takes for the beginning of a formula."""
_NUMBER: Final = re.compile(r"\+\d+")


@dataclass(frozen=True)
class _Row:
    """A call in the list, with the caller's name and the call's summary."""

    call: CallRow
    name: str
    summary: PastCall | None
    caller_param: str

    @property
    def failed(self) -> bool:
        return self.call.outcome in FAILURES


@dataclass(frozen=True)
class _Selection:
    """The calls that a request selects: those of a filter, newest first, or `found`, best match first."""

    chosen: Mapping[str, str]
    text: str
    caller: str
    filter: CallRowFilter
    found: Sequence[CallRow] | None = None

    @property
    def is_filtered(self) -> bool:
        return self.filter != CallRowFilter() or bool(self.text)


class CallListPages:
    def __init__(self, guard: LoginGuard, store: MemoryStore) -> None:
        self._guard = guard
        self._params = guard.params
        self._store = store
        self._rows = CallsTable(store)

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/calls", guard.page(self._list)),
            Route("/calls/find", guard.action(self._find), methods=["POST"]),
            Route("/calls/export.csv", guard.file(self._export_csv)),
            Route("/calls/export.json", guard.file(self._export_json)),
        ]

    async def _list(self, request: Request, session: LoginSession) -> Response:
        selection = await self._selection(request)
        chosen, rows = selection.chosen, selection.found
        if rows is None:
            rows = await self._rows.page(selection.filter, after=chosen["after"], limit=PAGE_ROWS + 1)
            total = await self._rows.count(selection.filter)
            older = rows[PAGE_ROWS - 1].cursor if len(rows) > PAGE_ROWS else ""
            rows = rows[:PAGE_ROWS]
        else:
            total, older = len(rows), ""
        return await self._guard.html(
            "calls.html",
            session,
            here="calls",
            rows=await self._summarised(rows),
            total=total,
            selection=selection,
            caller_name=(await self._rows.names_of_callers([selection.caller])).get(selection.caller, ""),
            chosen=chosen,
            by_words=page_url("/calls", {**chosen, "words": "1", "after": ""}) if selection.filter.name else "",
            export=urlencode({name: value for name, value in chosen.items() if value and name != "after"}),
            agents=await self._rows.agents(),
            outcomes=[str(reason) for reason in EndReason],
            first=page_url("/calls", {**chosen, "after": ""}) if chosen["after"] else "",
            after=page_url("/calls", {**chosen, "after": older}) if older else "",
        )

    async def _find(self, request: Request, session: LoginSession, form: Form) -> Response:
        """Redirect to the list with the search words sealed, so that they appear in no log."""
        text = " ".join(form.get("find", "").split())[:200]
        if (found := _ID.fullmatch(text)) and len(found[1]) == 36:
            return RedirectResponse(f"/calls/{found[1]}", 303)
        chosen = {name: form.get(name, "") for name in _PARAMS} | {"find": self._params.seal(text) if text else ""}
        return RedirectResponse(page_url("/calls", chosen), 303)

    async def _selection(self, request: Request) -> _Selection:
        """By number, by the start of a session id, by name, or by words of summaries."""
        chosen = {name: request.query_params.get(name, "") for name in _PARAMS}
        text, caller = (self._params.unseal(chosen[name]) or "" for name in ("find", "of"))
        filter_ = CallRowFilter(
            agent=chosen["agent"],
            outcomes=(chosen["outcome"],) if chosen["outcome"] else (),
            caller=caller,
            since=midnight(chosen["since"], zone=chosen["zone"]),
            before=midnight(chosen["until"], days=1, zone=chosen["zone"]),
        )
        selection = _Selection(chosen, text, caller, filter_)
        if not text:
            return selection
        if digits := searched_digits(text):
            return replace(selection, filter=replace(filter_, digits=digits))
        if (given := _ID.fullmatch(text)) and (call := await self._rows.find(given[1])):
            return replace(selection, found=await self._rows.by_ids([call.session_id]))
        name = searched_words(text)
        if name and not chosen["words"] and await self._rows.count_callers(CallRowFilter(name=name)):
            return replace(selection, filter=replace(filter_, name=name))
        hits = await self._store.query(text, limit=_MAX_FOUND, tags=("voice-session",))
        ids = [hit.document.source_id for hit in hits if hit.score > _FOUND_SCORE]
        return replace(selection, found=[row for row in await self._rows.by_ids(ids) if filter_.admits(row)])

    async def _summarised(self, rows: Sequence[CallRow]) -> list[_Row]:
        names, summaries = await self._rows.names_of_calls(rows), await self._summaries(rows)
        seal = self._params.seal
        return [_Row(row, names[row.session_id], summaries.get(row.session_id), seal(row.caller)) for row in rows]

    async def _summaries(self, rows: Sequence[CallRow]) -> dict[str, PastCall | None]:
        documents = await self._store.by_source_ids(row.session_id for row in rows)
        return await asyncio.to_thread(lambda: {document.source_id: read_call(document) for document in documents})

    # Export

    async def _export_csv(self, request: Request, session: LoginSession) -> Response:
        return await self._export(request, "csv", "text/csv; charset=utf-8")

    async def _export_json(self, request: Request, session: LoginSession) -> Response:
        return await self._export(request, "json", "application/json")

    async def _export(self, request: Request, kind: str, media_type: str) -> Response:
        selection, note = await self._selection(request), audit_note()
        note.item, note.agent, note.caller = f"calls.{kind}", selection.filter.agent, selection.caller
        batches = self._batches(selection)
        # Before the response begins: a store that is away must be an error, and not an empty file.
        first: list[dict[str, Any]] = await anext(batches, [])
        headers = {"Content-Disposition": f'attachment; filename="calls-{datetime.now():%Y-%m-%d}.{kind}"'}
        written = _as_csv(first, batches) if kind == "csv" else _as_json(first, batches)
        return StreamingResponse(written, media_type=media_type, headers=headers)

    async def _batches(self, selection: _Selection) -> AsyncIterator[list[dict[str, Any]]]:
        after, found = "", list(selection.found or ())
        while True:
            if selection.found is None:
                found = await self._rows.page(selection.filter, after=after, limit=_BATCH)
            rows, found = found[:_BATCH], found[_BATCH:]
            if not rows:
                return
            after = rows[-1].cursor
            calls = {call.session_id: call for call in await self._rows.finished(row.session_id for row in rows)}
            names, summaries = await self._rows.names_of_calls(rows), await self._summaries(rows)
            # Another request may have deleted some of them.
            kept = [calls[row.session_id] for row in rows if row.session_id in calls]
            yield await asyncio.to_thread(_exported_calls, kept, names, summaries)


def _exported_calls(
    calls: Iterable[FinishedCall], names: Mapping[str, str], summaries: Mapping[str, PastCall | None]
) -> list[dict[str, Any]]:
    return [_exported(call, names[call.session_id], summaries.get(call.session_id)) for call in calls]


def _exported(call: FinishedCall, name: str, summary: PastCall | None) -> dict[str, Any]:
    started_at = datetime.fromisoformat(call.started_at)
    answers = map(ResponseTime.from_json, call.timings)
    times = [
        one.first_frame for one in answers if one.first_frame is not None and one.counted_from is CountedFrom.VOICE
    ]
    values = (
        *(call.session_id, started_at.isoformat(timespec="seconds")),
        (started_at + timedelta(seconds=call.seconds)).isoformat(timespec="seconds"),
        *(call.seconds, call.caller, name, call.agent, call.carrier, call.engine, call.outcome, call.turns),
        *(round(statistics.median_low(times), 4) if times else None, call.first_audio, call.memory_items, call.consent),
        *((summary.topics, summary.decisions, summary.action_items, summary.facts) if summary else [()] * 4),
        summary.context if summary else "",
    )
    return dict(zip(_COLUMNS, values, strict=True))


async def _as_csv(first: list[dict[str, Any]], rest: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """With a byte order mark: without it Excel reads another encoding."""
    yield "\ufeff".encode() + _csv_lines([_COLUMNS])
    batch = first
    while batch:
        yield await asyncio.to_thread(_csv_lines, [call.values() for call in batch])
        batch = await anext(rest, [])


async def _as_json(first: list[dict[str, Any]], rest: AsyncIterator[list[dict[str, Any]]]) -> AsyncIterator[bytes]:
    """One array, one call per line."""
    batch, separator = first, b"[\n"
    while batch:
        yield separator + b",\n".join(await asyncio.to_thread(lambda calls: [*map(orjson.dumps, calls)], batch))
        batch, separator = await anext(rest, []), b",\n"
    yield b"[]\n" if separator == b"[\n" else b"\n]\n"


def _csv_lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would run as a formula gets an apostrophe in front; a phone number is harmless."""
    if isinstance(value, list | tuple):
        value = "; ".join(value)
    if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value
