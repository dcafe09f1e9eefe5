"""Shared stores for tests: in memory, or a real Redis server. Any number of nodes can open the same one."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from gateway.cluster.redis_store import RedisStore, connect
from gateway.cluster.store import SharedStore
from tests.fakes.shared_store import FakeSharedStore
from tests.redis_server import RedisServer, running_redis


class StoreServer(Protocol):
    async def open(self) -> SharedStore: ...

    async def stop(self) -> None:
        """From here on nothing can be read or written."""

    async def restart(self) -> None:
        """With everything that was stored."""


class MemoryServer:
    def __init__(self) -> None:
        self._store = FakeSharedStore()

    async def open(self) -> SharedStore:
        return self._store

    async def stop(self) -> None:
        self._store.is_away = True

    async def restart(self) -> None:
        self._store.is_away = False


class RealServer:
    def __init__(self, server: RedisServer, stack: contextlib.AsyncExitStack) -> None:
        self._server = server
        self._stack = stack

    async def open(self) -> SharedStore:
        store = RedisStore(connect(self._server.url))
        self._stack.push_async_callback(store.close)
        return store

    async def stop(self) -> None:
        await self._server.kill()

    async def restart(self) -> None:
        await self._server.start()


@contextlib.asynccontextmanager
async def store_server(kind: str, folder: Path) -> AsyncIterator[StoreServer]:
    async with contextlib.AsyncExitStack() as stack:
        if kind == "redis":
            yield RealServer(await stack.enter_async_context(running_redis(folder / "redis")), stack)
        else:
            yield MemoryServer()
