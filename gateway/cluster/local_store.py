"""Expiring values of a single process in one SQLite table: outbound requests and used guest links survive restarts."""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

from gateway.errors import SharedStoreUnavailable

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS expiring_values (name TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL)"
)

T = TypeVar("T")


class LocalStore:
    """An ExpiringStore in a file. Made by `open`. One thread does the work."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread

    @classmethod
    async def open(cls, path: Path) -> Self:
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="local-store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise SharedStoreUnavailable(f"can't open {path}: {error}") from error
        return cls(connection, thread)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    async def get(self, name: str) -> bytes | None:
        query = "SELECT value FROM expiring_values WHERE name = ? AND expires > ?"
        row = await self._run(lambda c: c.execute(query, (name, time.time())).fetchone())
        return row[0] if row else None

    async def put(self, name: str, value: bytes, seconds: float) -> None:
        replace = "INSERT OR REPLACE INTO expiring_values VALUES (?, ?, ?)"
        await self._run(lambda c: c.execute(replace, (name, value, time.time() + seconds)))

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        insert = "INSERT OR IGNORE INTO expiring_values VALUES (?, ?, ?)"
        return await self._run(lambda c: c.execute(insert, (name, value, time.time() + seconds)).rowcount > 0)

    async def delete(self, name: str) -> bool:
        delete = "DELETE FROM expiring_values WHERE name = ?"
        return await self._run(lambda c: c.execute(delete, (name,)).rowcount > 0)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def transact() -> T:
            with self._connection as connection:
                connection.execute("DELETE FROM expiring_values WHERE expires <= ?", (time.time(),))
                return work(connection)

        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, transact)
        except (sqlite3.Error, RuntimeError) as error:
            raise SharedStoreUnavailable(f"the local store failed: {error}") from error


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for suffix in ("", "-wal", "-shm"):  # an earlier version shared calls between workers in this file
        with contextlib.suppress(FileNotFoundError):
            path.with_name(f"workers.db{suffix}").unlink()
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(_SCHEMA)
    return connection
