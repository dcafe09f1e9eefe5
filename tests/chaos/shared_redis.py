"""The nodes' Redis: can be killed, restarted with or without its data, paused, and inspected."""

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import redis.asyncio

from tests.ports import free_port
from tests.redis_server import RedisServer

PREFIX = "voice-gateway:"
LONGEST_HOLD_MS = 60_000


def process_of(node: str) -> int:
    """The pid in a node's name, which is host, pid and a random part."""
    return int(node.split("-")[-2])


class SharedRedis(RedisServer):
    """A real server with an append-only file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._disk = folder

    @contextlib.asynccontextmanager
    async def away(self, *, forgets: bool) -> AsyncIterator[None]:
        """Kill it during the block and restart it; with `forgets` without its data."""
        await self.kill()
        try:
            yield
        finally:
            if forgets:
                shutil.rmtree(self._disk)
            await self.start()

    @contextlib.asynccontextmanager
    async def writes_paused(self) -> AsyncIterator[None]:
        """Writers wait and can be killed while waiting."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.client_pause(LONGEST_HOLD_MS, all=False)
            try:
                yield
            finally:
                await client.client_unpause()

    async def members(self) -> set[int]:
        """The pids of nodes with a heartbeat."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            names = [name.decode() async for name in client.scan_iter(match=f"{PREFIX}alive:*", count=1000)]
        return {process_of(name) for name in names}

    async def worker(self) -> str:
        """The node that runs a finalization job; only one runs at a time here."""
        return next(iter(await self._values("ending-node:*")), b"").decode().partition(" ")[0]

    async def jobs(self) -> list[dict[str, Any]]:
        """The unfinished finalization jobs."""
        return [json.loads(state) for state in await self._values("ending:*")]

    async def calls(self) -> list[dict[str, Any]]:
        """Call records without a finalization job."""
        records = [json.loads(record) for record in await self._values("call:*")]
        return [record for record in records if record["session"] is not None]

    async def transcripts(self) -> list[bytes]:
        """The transcripts of live calls and of calls in finalization."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            names = [name async for name in client.scan_iter(match=f"{PREFIX}journal:*", count=1000)]
            entries = [entry for name in names for entry in await client.lrange(name, 0, -1)]
        return entries + await self._values("ending:*")

    async def _values(self, names: str) -> list[bytes]:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            found = [name async for name in client.scan_iter(match=PREFIX + names, count=1000)]
            values = [await client.get(name) for name in found]
        return [value for value in values if value is not None]
