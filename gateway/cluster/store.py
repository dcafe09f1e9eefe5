"""
What nodes share, as a few plain operations: values that expire, sets, and lists.

Every method raises SharedStoreUnavailable when the store can't be reached.
"""

import asyncio
import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, Self, TypeVar

from gateway.errors import SharedStoreUnavailable

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS expiring_values (name TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL)"
)
T = TypeVar("T")


class ExpiringStore(Protocol):
    """Named values. Each is kept for `seconds` after it was written."""

    async def get(self, name: str) -> bytes | None: ...
    async def put(self, name: str, value: bytes, seconds: float) -> None: ...

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        """Put the value unless there is one. Whether it was put."""

    async def delete(self, name: str) -> bool:
        """Whether there was something to delete. Of several callers at once, one gets true."""

    async def admit(self, name: str, limit: int, seconds: float) -> float:
        """
        Count one more unless there were `limit` in the last `seconds`.

        Returns how many seconds pass until one more is admitted; 0 if this one was.
        """

    async def close(self) -> None: ...


class SharedStore(ExpiringStore, Protocol):
    """Values, sets and lists that all nodes see."""

    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        """Replace `old` by `new`. False if the value is not `old` any more."""

    async def join(self, name: str, member: str) -> bool:
        """Whether it was not a member before."""

    async def join_limited(self, name: str, member: str, limit: int, seconds: float) -> bool:
        """Join unless there are `limit` members; 0: no limit. Whether it is a member. The set expires when unused."""

    async def leave(self, name: str, member: str) -> None: ...
    async def members(self, name: str) -> set[str]: ...

    async def append(self, name: str, values: Sequence[bytes], seconds: float) -> None: ...

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        """Replace the whole list in one step."""

    async def items(self, name: str) -> list[bytes]: ...

    async def take(self, name: str, wait: float) -> bytes | None:
        """Remove and return the first item; wait that many seconds for one."""


class NoSharedStore:
    """The ExpiringStore of a process that shares nothing: it keeps nothing."""

    async def get(self, name: str) -> bytes | None:
        return None

    async def put(self, name: str, value: bytes, seconds: float) -> None: ...

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        return True

    async def delete(self, name: str) -> bool:
        return False

    async def admit(self, name: str, limit: int, seconds: float) -> float:
        return 0.0

    async def close(self) -> None: ...


class LocalStore:
    """The ExpiringStore of a single process, in a SQLite file. Made by `open`. One thread does the work."""

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
        query = "SELECT value FROM expiring_values WHERE name = ?"
        row = await self._run(lambda c: c.execute(query, (name,)).fetchone())
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

    async def admit(self, name: str, limit: int, seconds: float) -> float:
        def work(connection: sqlite3.Connection) -> float:
            now = time.time()
            stored = connection.execute("SELECT value FROM expiring_values WHERE name = ?", (name,)).fetchone()
            recent = [at for at in (json.loads(stored[0]) if stored else []) if at > now - seconds]
            if len(recent) >= limit:
                return float(recent[-limit] + seconds - now)
            value = json.dumps([*recent, now]).encode()
            connection.execute("INSERT OR REPLACE INTO expiring_values VALUES (?, ?, ?)", (name, value, now + seconds))
            return 0.0

        return await self._run(work)

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
