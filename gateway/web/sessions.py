"""
Calls for programs, with the scope `read`: `/v1/sessions` and `/v1/latency` for ended ones, `/v1/live` for events.

Each reader of server-sent events is served from the event log at its own pace. A reader that stops reading is
disconnected; it reconnects with `Last-Event-ID` and misses nothing that is still stored.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.datastructures import Headers, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.calls.monitoring import SHOW_SECONDS, LevelMeters
from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.history.api_tokens import TokenScope
from gateway.history.call_log import Cursor
from gateway.history.live_events import EventPublisher
from gateway.history.queries import CallFilter, CallHistory
from gateway.web.audit import audit_note
from gateway.web.auth import Authenticator
from gateway.web.request import Handler, admitted, json_endpoint

MAX_CALLS: Final = 1000
LIVE_PATH: Final = "/v1/live"

_EVENT_FILTERS: Final = ("session", "caller", "agent", "event")
_WORDS: Final = frozenset({"event", "speaker", "text", "answer", "heard", "unheard"})
"""The fields of a transcript."""
_FUNCTION_WORDS: Final = frozenset({"arguments", "result"})
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]

# Ended calls


def routes(history: CallHistory, auth: Authenticator) -> list[Route]:
    async def list_calls(request: Request) -> Response:
        limit = request.query_params.get("limit", "50")
        if not limit.isdecimal() or len(limit) > 9 or not 0 < int(limit) <= MAX_CALLS:
            raise HTTPException(422, f"limit must be a number from 1 to {MAX_CALLS}")
        archived = request.query_params.get("archived") == "1"
        return JSONResponse(await history.calls(_call_filter(request), limit=int(limit), archived=archived))

    async def show_call(request: Request) -> Response:
        if call := await history.call(request.path_params["id"]):
            audit_note().session = call["session"]  # the request may have only the start of it
            return JSONResponse(call)
        raise HTTPException(404, "no single call matches this id")

    async def show_latency(request: Request) -> Response:
        return JSONResponse(await history.latency(_call_filter(request)))

    handlers: dict[str, Handler] = {
        "/v1/sessions": list_calls,
        "/v1/sessions/{id}": show_call,
        "/v1/latency": show_latency,
    }
    return [
        Route(path, json_endpoint(handle, auth, TokenScope.READ), methods=["GET"]) for path, handle in handlers.items()
    ]


def _call_filter(request: Request) -> CallFilter:
    query = request.query_params
    given = {name: query.get(name, "") for name in ("caller", "agent", "outcome")}
    try:
        return CallFilter(**given, since=_utc(query.get("since", "")), before=_utc(query.get("before", "")))
    except (ValueError, OverflowError):
        raise HTTPException(422, "since and before must be times like 2026-02-06T23:15:00+00:00") from None


def _utc(text: str) -> str:
    """ISO text in UTC, as stored. A plus sign in a query arrives as a space; without a zone it is local time."""
    return datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC).isoformat() if text else ""


# Live calls

ShowEvent = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Returns the part of an event that a reader may have."""


@dataclass(frozen=True)
class LiveTimeouts:
    """Durations of an event stream, in seconds."""

    batch: float = 0.05
    """Events within this time are sent together."""
    heartbeat: float = 15.0
    """Proxies close a stream that stays silent for longer."""
    slow_reader: float = 10.0
    """A reader that accepts no data for this long is disconnected."""
    retry: float = 1.0
    """Before a reader reconnects, and before a failed store is asked again."""


DEFAULT_TIMEOUTS: Final = LiveTimeouts()


class LiveEventsEndpoint:
    """An ASGI application, because Starlette's StreamingResponse can't detect a slow reader."""

    def __init__(
        self,
        call_events: EventPublisher,
        levels: LevelMeters,
        auth: Authenticator,
        timeouts: LiveTimeouts = DEFAULT_TIMEOUTS,
    ) -> None:
        self._call_events = call_events
        self._levels = levels
        self._auth = auth
        self._timeouts = timeouts

    def routes(self) -> list[Route]:
        return [Route(LIVE_PATH, self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        access = await admitted(scope, self._auth, TokenScope.READ)
        await (access if isinstance(access, Response) else self.stream)(scope, receive, send)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same for a client that is authorized already."""
        if scope["method"] != "GET":
            return await Response(status_code=405, headers={"Allow": "GET"})(scope, receive, send)
        query = QueryParams(scope["query_string"])
        filters = {name: query[name] for name in _EVENT_FILTERS if query.get(name)}
        await self._stream(scope, receive, send, filters, self._levels if query.get("levels") == "1" else None)

    async def stream_of(
        self, session_id: str, scope: Scope, receive: Receive, send: Send, *, words_only: bool = False
    ) -> None:
        """
        The events of one call, for its caller. What a function was given and returned is not in them.

        `words_only`: only its transcript, which names neither caller nor functions.
        """
        filters = {"session": session_id, **({"event": "turn,interruption"} if words_only else {})}
        await self._stream(scope, receive, send, filters, None, _words if words_only else _without_function_words)

    async def _stream(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        filters: Mapping[str, str],
        levels: LevelMeters | None,
        show: ShowEvent = lambda event: event,
    ) -> None:
        """Until the reader disconnects or is too slow, or the server stops."""
        since = Headers(scope=scope).get("Last-Event-ID") or QueryParams(scope["query_string"]).get("since", "")
        try:
            cursor = _cursor(since)
        except ValueError as error:
            return await JSONResponse({"detail": str(error)}, 422)(scope, receive, send)
        stream = _Stream(self._call_events, levels, send, self._timeouts, filters, show)
        async with levels.watched() if levels is not None else contextlib.nullcontext():
            running = asyncio.ensure_future(stream.run(cursor))
            leaving = asyncio.ensure_future(_disconnect(receive))
            unsubscribe = self._call_events.at_close(running.cancel)
            try:
                await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                unsubscribe()
                running.cancel()
                leaving.cancel()
                result, _ = await asyncio.gather(running, leaving, return_exceptions=True)
            if not leaving.cancelled() or isinstance(result, TimeoutError):
                return
            if isinstance(result, Exception):
                raise result
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Stream:
    """One reader's stream."""

    def __init__(
        self,
        call_events: EventPublisher,
        levels: LevelMeters | None,
        send: Send,
        timeouts: LiveTimeouts,
        filters: Mapping[str, str],
        show: ShowEvent,
    ) -> None:
        self._show = show
        self._call_events = call_events
        self._levels = levels
        self._send = send
        self._timeouts = timeouts
        self._filters = filters
        self._clock = asyncio.get_running_loop().time
        self._wrote_at = self._showed_at = self._clock()

    async def run(self, cursor: Cursor | None) -> None:
        """Send stored events after `cursor`, then new ones. Without a cursor, new ones only."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._write(f"retry: {int(self._timeouts.retry * 1000)}\n\n")
        while self._call_events.is_open:
            try:
                if cursor is None:
                    cursor = await self._call_events.head()
                    await self._write(f"id: {cursor}\n: you are here\n\n")
                wait = SHOW_SECONDS if self._levels is not None else self._timeouts.heartbeat
                entries = await self._call_events.after(cursor, wait=wait)
            except (StoreUnavailable, SharedStoreUnavailable):
                await asyncio.sleep(self._timeouts.retry)
                continue
            if entries:
                cursor = entries[-1][0]
            chosen = [_encode(at, self._show(event)) for at, event in entries if self._matches(event)]
            if text := "".join(chosen) + self._level_event():
                await self._write(text)
                await asyncio.sleep(self._timeouts.batch)
            elif self._clock() - self._wrote_at >= self._timeouts.heartbeat:
                await self._write(f"id: {cursor}\n: beat\n\n")

    def _level_event(self) -> str:
        """An event without an id: a reader can't resume from it."""
        if self._levels is None or self._clock() - self._showed_at < SHOW_SECONDS:
            return ""
        self._showed_at = self._clock()
        return f"event: levels\ndata: {orjson.dumps({'event': 'levels', 'levels': self._levels.all}).decode()}\n\n"

    async def _write(self, text: str) -> None:
        self._wrote_at = self._clock()
        async with asyncio.timeout(self._timeouts.slow_reader):
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    def _matches(self, event: Mapping[str, Any]) -> bool:
        for name, wanted in self._filters.items():
            value = str(event.get(name, ""))
            if name == "session":  # the start of a UUID is enough
                prefix = "voice-session:"
                is_wanted = value.removeprefix(prefix).startswith(wanted.removeprefix(prefix))
            else:
                is_wanted = value in wanted.split(",") if name == "event" else value == wanted
            if not is_wanted:
                return False
        return True


def _words(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in event.items() if name in _WORDS}


def _without_function_words(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in event.items() if name not in _FUNCTION_WORDS}


def _cursor(text: str) -> Cursor | None:
    """A cursor, or an ISO time."""
    if not text:
        return None
    if "T" not in text:
        return Cursor.parse(text)
    try:
        time = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign in a query arrives as a space
    except ValueError:
        raise ValueError("since must be a cursor or a time like 2026-02-06T23:15:00+00:00") from None
    return Cursor(max(0, int(time.timestamp() * 1000)))


def _encode(cursor: Cursor, event: Mapping[str, Any]) -> str:
    return f"id: {cursor}\nevent: {event['event']}\ndata: {orjson.dumps({'id': str(cursor), **event}).decode()}\n\n"


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
