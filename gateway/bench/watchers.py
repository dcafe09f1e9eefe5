"""Those who watch while calls go on: a page of live calls, and a `gateway tail`. They note how late they are told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime

import httpx
import orjson

_ADDRESSES = ("/v1/live?levels=1", "/v1/live")
"""With the levels of all voices, as the page has it, and without."""


class Watchers:
    """Both, each on a connection of its own. `told_after_ns`: from a caller's words to whoever watches."""

    def __init__(self) -> None:
        self.told_after_ns: list[int] = []

    @contextlib.asynccontextmanager
    async def watching(self, http: httpx.AsyncClient) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch(http, address)) for address in _ADDRESSES]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _watch(self, http: httpx.AsyncClient, address: str) -> None:
        async with http.stream("GET", address, timeout=None) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and '"speaker":"caller"' in line:
                    said_at = datetime.fromisoformat(orjson.loads(line.removeprefix("data: "))["at"]).timestamp()
                    self.told_after_ns.append(time.time_ns() - int(said_at * 1e9))
