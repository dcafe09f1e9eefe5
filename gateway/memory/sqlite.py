"""The embedded store: one SQLite file with a full text index and, where there is a model, vectors."""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Final, Self, TypeVar

from gateway.errors import StoreUnavailable
from gateway.memory import document_table, sqlite_index
from gateway.memory.database import Connection, Migration, Schema
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.sqlite_index import SqliteIndex
from gateway.memory.store import EMBED_AFTER, MemoryStore, utc_now

T = TypeVar("T")

_SCHEMA: Final = (*document_table.SCHEMA, *sqlite_index.SCHEMA)


class SqliteStore(MemoryStore):
    """
    A DocumentStore in one file. Made by `open`. All SQL runs on two threads that the store owns, each with its own
    connection: one for questions that wait for the model, one for everything else.

    A document is on disk when `create` returns: a killed process loses nothing. A power cut can take back the last
    moments, always whole transactions.
    """

    def __init__(
        self,
        path: Path,
        connection: sqlite3.Connection,
        thread: ThreadPoolExecutor,
        now: Callable[[], datetime],
        embedder: Embedder | None,
        embed_after: float,
    ) -> None:
        self._path = path
        self._connection = connection
        self._thread = thread
        self._asked: sqlite3.Connection | None = None
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="questions")
        super().__init__(SqliteIndex(), now, embedder, embed_after)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        schema: Schema = (),
        now: Callable[[], datetime] = utc_now,
        embedder: Embedder | None = None,
        embed_after: float = EMBED_AFTER,
    ) -> Self:
        """Open the file, making it and its folder if need be. `schema` is for other tables that live in it."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            loop = asyncio.get_running_loop()
            connection = await loop.run_in_executor(thread, _connect, path, (*_SCHEMA, *schema))
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise StoreUnavailable(f"can't open {path}: {error}") from error
        return cls(path, connection, thread, now, embedder, embed_after)

    @property
    def description(self) -> str:
        return "embedded"

    @property
    def is_away(self) -> bool:
        return False

    async def watch(self) -> None:
        """There is nothing to see: it is a file."""

    async def run(self, work: Callable[[Connection], T]) -> T:
        """No other process writes meanwhile."""
        done = await self.look(lambda _: self._transact(work))
        self._lacks_vectors.set()  # it may have made documents
        return done

    async def look(self, work: Callable[[Connection], T]) -> T:
        return await self._on(self._thread, lambda: work(self._connection))

    async def ask(self, work: Callable[[Connection], T]) -> T:
        return await self._on(self._asking, lambda: self._answered(work))

    async def _on(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if not self._open:
            raise StoreUnavailable("the embedded store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the embedded store failed: {error}") from error

    def _answered(self, work: Callable[[Connection], T]) -> T:
        if self._asked is None:
            self._asked = sqlite3.connect(self._path)
        self._asked.execute("BEGIN")
        try:
            return work(self._asked)
        finally:
            self._asked.rollback()

    def _transact(self, work: Callable[[Connection], T]) -> T:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    async def _disconnect(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._asking, lambda: self._asked.close() if self._asked is not None else None)
        await loop.run_in_executor(self._thread, self._connection.close)
        for thread in (self._asking, self._thread):
            thread.shutdown(wait=False)

    async def overwrite_deleted(self) -> None:
        await self.look(lambda connection: connection.execute("PRAGMA secure_delete = ON").fetchall())

    async def scrub(self) -> bool:
        return True  # it is a file under DATA_DIR, and whoever forgets sees to those

    async def tables_holding(self, words: Sequence[str]) -> list[str]:
        return []


def _connect(path: Path, schema: Schema) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its side files the mode of the main one. A file that is there must not be opened and closed: that
    # would drop the locks that this process has on it, and whoever else closes it would take its log away.
    path.touch(mode=0o600)
    path.chmod(0o600)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        for step in schema:
            if isinstance(step, str):
                connection.execute(step)
            else:
                _migrate(connection, step)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _migrate(connection: sqlite3.Connection, migration: Migration) -> None:
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    if not connection.execute(query, (migration.table,)).fetchone():
        return
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if connection.execute(query, (migration.table,)).fetchone():  # another process may have been faster
            for statement in migration.statements:
                connection.execute(statement)
