"""A client of the live event stream (server-sent events)."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.stage import ADMIN, until

PATH = "/v1/live"
BEARER = {"Authorization": f"Bearer {ADMIN}"}


class Watcher:
    """The events of one stream so far. `place` is the id to resume from."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.place = ""
        self.ended = False

    @property
    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    async def hears(self, text: str) -> dict[str, Any]:
        """Wait for the turn with this text."""
        turns = await until(lambda: [turn for turn in self.of("turn") if turn["text"] == text])
        return dict(turns[0])

    async def sees(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for the event number `count` of that kind."""
        await until(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]

    async def read(self, response: httpx.Response) -> None:
        async for line in response.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                self.place = value
            elif name == "data":
                self.events.append(json.loads(value))
        self.ended = True


@contextlib.asynccontextmanager
async def watching(url: str, *, since: str = "", **query: str) -> AsyncIterator[Watcher]:
    """Watch a gateway from now on, or from an event id."""
    watcher = Watcher()
    headers = {**BEARER, **({"Last-Event-ID": since} if since else {})}
    async with (
        httpx.AsyncClient(timeout=None) as http,
        http.stream("GET", url + PATH, headers=headers, params=query) as answer,
    ):
        assert answer.status_code == 200
        reading = asyncio.create_task(watcher.read(answer))
        await until(lambda: watcher.place or since)
        try:
            yield watcher
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, httpx.HTTPError):
                await reading
