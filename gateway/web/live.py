"""
What happens in calls, as server-sent events, for whoever has the admin token.

A reader is served at its own pace from the log of events. One that takes nothing for a while is let go; it comes
back with `Last-Event-ID` and misses nothing that is kept.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import orjson
from starlette.datastructures import Headers, QueryParams
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.calls.monitoring import SHOW_SECONDS, LevelMeters
from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.history.call_log import Cursor
from gateway.history.live_events import EventPublisher
from gateway.settings import Secret
from gateway.web.auth import is_authorized

PATH: Final = "/v1/live"
GATHER_SECONDS: Final = 0.05
"""What happens in so short a time is told together: two hundred calls have more to tell than anybody reads."""
BEAT_SECONDS: Final = 15.0
"""How often a silent stream shows that it lives; proxies end those that don't."""
PATIENCE: Final = 10.0
"""A reader that takes nothing for so long is let go."""
RETRY_SECONDS: Final = 1.0

_FILTERS: Final = ("session", "caller", "agent", "event")
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
]


class LiveEventsEndpoint:
    """The stream as an ASGI application: it can tell a slow reader from a patient one."""

    def __init__(self, call_events: EventPublisher, levels: LevelMeters, token: Secret) -> None:
        self._call_events = call_events
        self._levels = levels
        self._token = token

    def routes(self) -> list[Route]:
        return [Route(PATH, self)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not is_authorized(Headers(scope=scope), [self._token]):
            refusal: Response = JSONResponse(
                {"detail": "missing or wrong admin token"}, 401, {"WWW-Authenticate": "Bearer"}
            )
            return await refusal(scope, receive, send)
        await self.stream(scope, receive, send)

    async def stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The same, for whoever has shown in another way that they may see it."""
        if scope["method"] != "GET":
            return await Response(status_code=405, headers={"Allow": "GET"})(scope, receive, send)
        query = QueryParams(scope["query_string"])
        await self._stream(scope, receive, send, wanted=_wanted(query), levels=query.get("levels") == "1")

    async def stream_of(self, session_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        """What happens in this one call."""
        await self._stream(scope, receive, send, wanted={"session": session_id}, levels=False)

    async def _stream(
        self, scope: Scope, receive: Receive, send: Send, *, wanted: Mapping[str, str], levels: bool
    ) -> None:
        headers, query = Headers(scope=scope), QueryParams(scope["query_string"])
        try:
            place = _place(headers.get("Last-Event-ID") or query.get("since", ""))
        except ValueError as error:
            return await JSONResponse({"detail": str(error)}, 422)(scope, receive, send)
        shown = self._levels if levels else None
        async with shown.watched() if shown is not None else contextlib.nullcontext():
            await self._serve(_Stream(self._call_events, shown, send, wanted=wanted), place, receive)

    async def _serve(self, stream: "_Stream", place: Cursor | None, receive: Receive) -> None:
        """Until the reader goes, is too slow, or the server stops."""
        running = asyncio.ensure_future(stream.run(place))
        leaving = asyncio.ensure_future(_gone(receive))
        unsubscribe = self._call_events.at_close(running.cancel)
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unsubscribe()
            for task in (running, leaving):
                task.cancel()
            results = await asyncio.gather(running, leaving, return_exceptions=True)
        if not leaving.cancelled() or isinstance(results[0], TimeoutError):
            return
        if isinstance(results[0], Exception):
            raise results[0]
        await stream.end()


class _Stream:
    """One reader's stream."""

    def __init__(
        self, call_events: EventPublisher, levels: LevelMeters | None, send: Send, *, wanted: Mapping[str, str]
    ) -> None:
        self._call_events = call_events
        self._levels = levels
        self._send = send
        self._wanted = wanted
        self._clock = asyncio.get_running_loop().time
        self._wrote_at = self._showed_at = self._clock()

    async def run(self, place: Cursor | None) -> None:
        """Everything after this place, and then what happens; from now on where none is given."""
        await self._send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        await self._write(f"retry: {int(RETRY_SECONDS * 1000)}\n\n")
        while self._call_events.is_open:
            try:
                if place is None:
                    place = await self._call_events.head()
                    await self._write(f"id: {place}\n: you are here\n\n")
                entries = await self._call_events.after(
                    place, wait=SHOW_SECONDS if self._levels is not None else BEAT_SECONDS
                )
            except (StoreUnavailable, SharedStoreUnavailable):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            if entries:
                place = entries[-1][0]
            chosen = [_written(cursor, event) for cursor, event in entries if self._wants(event)]
            if text := "".join(chosen) + self._shown_levels():
                await self._write(text)
                await asyncio.sleep(GATHER_SECONDS)
            elif self._clock() - self._wrote_at >= BEAT_SECONDS:
                await self._write(f"id: {place}\n: beat\n\n")

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _shown_levels(self) -> str:
        """An event without an id: nobody goes back to it."""
        if self._levels is None or self._clock() - self._showed_at < SHOW_SECONDS:
            return ""
        self._showed_at = self._clock()
        return f"event: levels\ndata: {orjson.dumps({'event': 'levels', 'levels': self._levels.all}).decode()}\n\n"

    async def _write(self, text: str) -> None:
        self._wrote_at = self._clock()
        async with asyncio.timeout(PATIENCE):
            await self._send({"type": "http.response.body", "body": text.encode(), "more_body": True})

    def _wants(self, event: Mapping[str, Any]) -> bool:
        return all(_fits(name, str(event.get(name, "")), value) for name, value in self._wanted.items())


def _wanted(query: QueryParams) -> dict[str, str]:
    return {name: query[name] for name in _FILTERS if query.get(name)}


def _fits(name: str, value: str, wanted: str) -> bool:
    if name == "session":  # the beginning of its uuid will do
        return value.removeprefix("voice-session:").startswith(wanted.removeprefix("voice-session:"))
    return value == wanted if name != "event" else value in wanted.split(",")


def _place(text: str) -> Cursor | None:
    """A cursor, or a moment as ISO text."""
    if not text:
        return None
    if "T" not in text:
        return Cursor.parse(text)
    try:
        moment = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign in a query is a space
    except ValueError:
        raise ValueError("since is a cursor, or a moment like 2026-02-06T23:15:00+00:00") from None
    return Cursor(max(0, int(moment.timestamp() * 1000)))


def _written(cursor: Cursor, event: Mapping[str, Any]) -> str:
    return f"id: {cursor}\nevent: {event['event']}\ndata: {orjson.dumps({'id': str(cursor), **event}).decode()}\n\n"


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
