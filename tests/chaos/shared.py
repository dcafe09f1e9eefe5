"""Redis as the nodes share it: killed, brought back with or without its memory, held still, and looked into."""

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
    """Nodes are named by host, process and something random."""
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
        """Killed, and started again afterwards; a server that forgets has lost its disk."""
        await self.kill()
        try:
            yield
        finally:
            if forgets:
                shutil.rmtree(self._disk)
            await self.start()

    @contextlib.asynccontextmanager
    async def takes_no_writes(self) -> AsyncIterator[None]:
        """Who wants to write waits, and can be killed while waiting."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.client_pause(LONGEST_HOLD_MS, all=False)
            try:
                yield
            finally:
                await client.client_unpause()

    async def members(self) -> set[int]:
        """The processes that have shown it a sign of life."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            names = [name.decode() async for name in client.scan_iter(match=f"{PREFIX}alive:*", count=1000)]
        return {process_of(name) for name in names}

    async def worker(self) -> str:
        """The node that carries out an ending; there is one at a time here. Beside it stands by which right."""
        return next(iter(await self._values("ending-node:*")), b"").decode().partition(" ")[0]

    async def jobs(self) -> list[dict[str, Any]]:
        """How far endings have come that are not done."""
        return [json.loads(state) for state in await self._values("ending:*")]

    async def calls(self) -> list[dict[str, Any]]:
        """What nodes know of calls that have not come to their ending."""
        records = [json.loads(record) for record in await self._values("call:*")]
        return [record for record in records if record["session"] is not None]

    async def transcripts(self) -> list[bytes]:
        """What was said in calls, and in those that have come to their ending."""
        async with redis.asyncio.Redis.from_url(self.url) as client:
            names = [name async for name in client.scan_iter(match=f"{PREFIX}journal:*", count=1000)]
            entries = [entry for name in names for entry in await client.lrange(name, 0, -1)]
        return entries + await self._values("ending:*")

    async def _values(self, names: str) -> list[bytes]:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            found = [name async for name in client.scan_iter(match=PREFIX + names, count=1000)]
            values = [await client.get(name) for name in found]
        return [value for value in values if value is not None]
