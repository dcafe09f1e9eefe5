"""
Writing to a database without waiting for it: work is queued, one thread does it.

What has gathered since the last commit is one transaction: many calls share one flush of the disk. SQLite's log drops
a half-written last record and keeps all before it. A full disk stops the writing, not whoever queues; it resumes when
there is room.
"""

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

GATHER_SECONDS: Final = 0.02
"""
What comes within so long of each other goes to disk together.

The thread shares the interpreter with the audio. Woken for each turn of 300 calls it had frames wait 9 to 31 ms at p99,
in four runs; woken so rarely, 4 to 10. A turn is on disk a few milliseconds after this; 100 are promised.
"""
RETRY_SECONDS: Final = 1.0
MOST_WAITING: Final = 100_000
"""Pieces of work kept while the disk takes none; beyond it the oldest are given up, and the log says so."""

_log = logging.getLogger(__name__)

Work = Callable[[sqlite3.Connection], object]
_Item = Work | asyncio.Future[None]


class SqliteWriter:
    """
    One database file and the thread that writes it. `name` is what the log calls it.

    `connect` is called on the thread. `committed` is called there after each commit, and must return at once.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], sqlite3.Connection],
        *,
        committed: Callable[[], None] = lambda: None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._committed = committed
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name=name, daemon=True)
        self._thread.start()

    # Whoever has something to write

    def put(self, work: Work) -> None:
        """Have this done in one of the next transactions, in the order of calls."""
        self._queue.put(work)

    async def flushed(self) -> None:
        """Wait until everything put so far is on disk."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(written)
        await written

    def close(self) -> None:
        """Write what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join(timeout=10)

    # The thread's side

    def _write_all(self) -> None:
        connection: sqlite3.Connection | None = None
        waiting: list[_Item] = []
        failing = closing = False
        while not closing:
            closing = self._gather(waiting, patience=RETRY_SECONDS if failing else None)
            try:
                connection = connection or self._connect()
                with connection:
                    for work in _works(waiting):
                        work(connection)
            except (sqlite3.Error, OSError) as error:
                if not failing:
                    fields = {"file": self._name, "reason": str(error)}
                    _log.error("file can't be written, calls go on without it", extra=fields)
                failing = True
                self._drop_oldest(waiting)
                continue
            if failing:
                _log.info("file is written again", extra={"file": self._name})
            failing = False
            _announce(item for item in waiting if isinstance(item, asyncio.Future))
            waiting.clear()
            self._committed()
        if connection is not None:
            connection.close()

    def _gather(self, waiting: list[_Item], patience: float | None) -> bool:
        """Add what has come since the last commit to `waiting`; true when there will be no more."""
        try:
            item = self._queue.get(timeout=patience)
            time.sleep(GATHER_SECONDS)
            while item is not None:
                waiting.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return False
        return True

    def _drop_oldest(self, waiting: list[_Item]) -> None:
        surplus = _works(waiting)[:-MOST_WAITING]
        if surplus:
            _log.error("entries were given up", extra={"file": self._name, "entries": len(surplus)})
            for item in surplus:
                waiting.remove(item)


def private_database(path: Path, schema: Iterable[str], *, synchronous: str) -> sqlite3.Connection:
    """A database that only its owner may read, in a folder of the same kind."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    for statement in schema:
        connection.execute(statement)
    return connection


def _works(items: Iterable[_Item]) -> list[Work]:
    return [item for item in items if not isinstance(item, asyncio.Future)]


def _announce(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        waiter.get_loop().call_soon_threadsafe(_settle, waiter)


def _settle(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
