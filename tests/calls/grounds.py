"""What boards stand on, for tests: a file, or a real Redis server. Any number of nodes can open a board there."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from gateway.cluster.file_store import FileStore
from gateway.cluster.redis_store import RedisStore, connect
from gateway.cluster.store import SharedStore
from tests.redis_server import RedisServer, running_redis


class Ground(Protocol):
    async def open(self) -> SharedStore: ...

    async def ruin(self) -> None:
        """From here on nothing can be read or written."""

    async def mend(self) -> None: ...


class FileGround:
    """One file, which every board opens anew."""

    def __init__(self, path: Path, stack: contextlib.AsyncExitStack) -> None:
        self._path = path
        self._stack = stack

    async def open(self) -> SharedStore:
        shared_store = await FileStore.open(self._path)
        self._stack.push_async_callback(shared_store.close)
        return shared_store

    async def ruin(self) -> None:
        self._alter("ALTER TABLE {0} RENAME TO {0}_away")

    async def mend(self) -> None:
        self._alter("ALTER TABLE {0}_away RENAME TO {0}")

    def _alter(self, statement: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path)) as connection, connection:
            for table in ("names", "sets", "items"):
                connection.execute(statement.format(table))


class RedisGround:
    """One server."""

    def __init__(self, server: RedisServer, stack: contextlib.AsyncExitStack) -> None:
        self._server = server
        self._stack = stack

    async def open(self) -> SharedStore:
        shared_store = RedisStore(connect(self._server.url))
        self._stack.push_async_callback(shared_store.close)
        return shared_store

    async def ruin(self) -> None:
        await self._server.kill()

    async def mend(self) -> None:
        await self._server.start()


@contextlib.asynccontextmanager
async def prepared(kind: str, folder: Path) -> AsyncIterator[Ground]:
    async with contextlib.AsyncExitStack() as stack:
        if kind == "redis":
            server = await stack.enter_async_context(running_redis(folder / "redis"))
            yield RedisGround(server, stack)
        else:
            yield FileGround(folder / "workers.db", stack)
