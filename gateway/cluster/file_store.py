"""
The board in a file: what several workers on one machine share.

One thread does the work. Nobody is woken by a write, so who waits for a list's next item looks again and again; on one
machine that costs some microseconds a time.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Self, TypeVar

from gateway.errors import SharedStoreUnavailable

LOOK_SECONDS: Final = 0.05
SWEEP_SECONDS: Final = 60.0

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY, value BLOB NOT NULL, expires REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS sets (name TEXT, member TEXT, PRIMARY KEY (name, member)) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS items (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, value BLOB NOT NULL, expires REAL NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS items_by_name ON items (name, number)",
    "CREATE TABLE IF NOT EXISTS boot (id TEXT NOT NULL)",
)
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

T = TypeVar("T")


class FileStore:
    """
    A Board in one SQLite file. Made by `open`.

    What has expired is decided by the time since the machine was started: all its processes have that in common, and
    nobody sets it. What was written before that start is gone.
    """

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._thread = thread
        self._swept_at = 0.0

    @classmethod
    async def open(cls, path: Path) -> Self:
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="board")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise SharedStoreUnavailable(f"can't open {path}: {error}") from error
        return cls(connection, thread)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown(wait=False)

    @property
    def era(self) -> str:
        return _boot()

    # Values

    async def get(self, name: str) -> bytes | None:
        return await self._read(lambda c: _value(c, name))

    async def put(self, name: str, value: bytes, seconds: float) -> None:
        await self._run(lambda c: _put(c, name, value, seconds))

    async def add(self, name: str, value: bytes, seconds: float) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if _value(connection, name) is not None:
                return False
            _put(connection, name, value, seconds)
            return True

        return await self._run(work)

    async def swap(self, name: str, old: bytes, new: bytes, seconds: float) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            if _value(connection, name) != old:
                return False
            _put(connection, name, new, seconds)
            return True

        return await self._run(work)

    async def delete(self, name: str) -> bool:
        def work(connection: sqlite3.Connection) -> bool:
            there = _value(connection, name) is not None or bool(_items(connection, name))
            connection.execute("DELETE FROM names WHERE name = ?", (name,))
            connection.execute("DELETE FROM items WHERE name = ?", (name,))
            return there

        return await self._run(work)

    # Sets

    async def join(self, name: str, member: str) -> bool:
        insert = "INSERT OR IGNORE INTO sets VALUES (?, ?)"
        return await self._run(lambda c: c.execute(insert, (name, member)).rowcount > 0)

    async def leave(self, name: str, member: str) -> None:
        await self._run(lambda c: c.execute("DELETE FROM sets WHERE name = ? AND member = ?", (name, member)))

    async def members(self, name: str) -> set[str]:
        rows = await self._read(lambda c: c.execute("SELECT member FROM sets WHERE name = ?", (name,)).fetchall())
        return {member for (member,) in rows}

    # Lists

    async def append(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        await self._run(lambda c: _append(c, name, values, seconds))

    async def rewrite(self, name: str, values: Sequence[bytes], seconds: float) -> None:
        def work(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM items WHERE name = ?", (name,))
            _append(connection, name, values, seconds)

        await self._run(work)

    async def items(self, name: str) -> list[bytes]:
        return await self._read(lambda c: _items(c, name))

    async def take(self, name: str, wait: float) -> bytes | None:
        give_up = time.monotonic() + wait
        while not await self._read(lambda c: _items(c, name)):
            if time.monotonic() > give_up:
                return None
            await asyncio.sleep(LOOK_SECONDS)
        return await self._run(lambda c: _take(c, name))

    # Itself

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` in one transaction, alone."""
        return await self._read(lambda _: self._transact(work))

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)
        except (sqlite3.Error, RuntimeError) as error:
            raise SharedStoreUnavailable(f"the shared file failed: {error}") from error

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            if time.monotonic() > self._swept_at + SWEEP_SECONDS:
                self._swept_at = time.monotonic()
                connection.execute("DELETE FROM names WHERE expires < ?", (self._swept_at,))
                connection.execute("DELETE FROM items WHERE expires < ?", (self._swept_at,))
            return work(connection)


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    for statement in _SCHEMA:
        connection.execute(statement)
    _forget_before_boot(connection)
    return connection


def _boot() -> str:
    """Another one whenever the machine is started."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def _forget_before_boot(connection: sqlite3.Connection) -> None:
    boot = _boot()
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute("SELECT id FROM boot").fetchall() != [(boot,)]:
            for table in ("boot", "names", "sets", "items"):
                connection.execute(f"DELETE FROM {table}")
            connection.execute("INSERT INTO boot VALUES (?)", (boot,))


def _value(connection: sqlite3.Connection, name: str) -> bytes | None:
    query = "SELECT value FROM names WHERE name = ? AND expires > ?"
    row = connection.execute(query, (name, time.monotonic())).fetchone()
    return row[0] if row else None


def _put(connection: sqlite3.Connection, name: str, value: bytes, seconds: float) -> None:
    connection.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", (name, value, time.monotonic() + seconds))


def _append(connection: sqlite3.Connection, name: str, values: Sequence[bytes], seconds: float) -> None:
    expires = time.monotonic() + seconds
    rows = [(name, value, expires) for value in values]
    connection.execute("UPDATE items SET expires = ? WHERE name = ?", (expires, name))  # a list is kept as one
    connection.executemany("INSERT INTO items (name, value, expires) VALUES (?, ?, ?)", rows)


def _items(connection: sqlite3.Connection, name: str) -> list[bytes]:
    query = "SELECT value FROM items WHERE name = ? AND expires > ? ORDER BY number"
    return [value for (value,) in connection.execute(query, (name, time.monotonic()))]


def _take(connection: sqlite3.Connection, name: str) -> bytes | None:
    first = "SELECT min(number) FROM items WHERE name = ? AND expires > ?"
    remove = f"DELETE FROM items WHERE number = ({first}) RETURNING value"
    row = connection.execute(remove, (name, time.monotonic())).fetchone()
    return row[0] if row else None
