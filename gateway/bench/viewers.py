"""Viewers of live calls during a bench run: one with level meters, like the live page, and one like `gateway tail`."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from datetime import datetime

import httpx
import orjson

_PATHS = ("/v1/live?levels=1", "/v1/live")


class Viewers:
    """Two viewers with a connection each. `delays_ns`: from a caller's final words to the viewer."""

    def __init__(self) -> None:
        self.delays_ns: list[int] = []

    @contextlib.asynccontextmanager
    async def watching(self, http: httpx.AsyncClient) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._watch(http, path)) for path in _PATHS]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _watch(self, http: httpx.AsyncClient, path: str) -> None:
        async with http.stream("GET", path, timeout=None) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if line.startswith("data: ") and '"speaker":"caller"' in line:
                    said_at = datetime.fromisoformat(orjson.loads(line.removeprefix("data: "))["at"]).timestamp()
                    self.delays_ns.append(time.time_ns() - int(said_at * 1e9))
