"""
What happens in calls, event by event, in a file: for whoever watches now, comes back, or looks later.

Writing waits for nobody (`write_behind.py`). Whoever reads does so at their own pace, from a place in the log on:
nothing is kept in memory for a slow one. Words are kept as long as raw transcripts are, without cards, passwords and
keys: those that are spread over several turns are taken out once the call is over.
"""

import asyncio
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from gateway.calls.graceful_hangup import wait_for_event
from gateway.errors import StoreUnavailable
from gateway.finalization.summary.call_summary import SpokenLine
from gateway.history.sqlite_writer import SqliteWriter, private_database
from gateway.text.redaction import redact_lines

LOOK_SECONDS: Final = 0.05
"""How often a file that other processes write too is looked into, while somebody watches."""
MOST_AT_ONCE: Final = 500

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS events (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        caller TEXT NOT NULL,
        agent TEXT NOT NULL,
        event TEXT NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS events_by_session ON events (session, number)",
    "CREATE INDEX IF NOT EXISTS events_by_caller ON events (caller, number)",
)
# In one transaction with the insert, so that numbers rise in the order in which readers see them.
_INSERT: Final = """INSERT INTO events (number, session, caller, agent, event)
    VALUES (max(coalesce((SELECT max(number) FROM events), 0) + 1, ?), ?, ?, ?, ?)"""
_WORDS: Final = ("text", "heard", "unheard")
"""The fields of an event that hold what was said."""
_PER_MS: Final = 1000
_CURSOR: Final = re.compile(r"(\d{1,15})(?:-(\d{1,9}))?")


@dataclass(frozen=True, order=True)
class Cursor:
    """A place in the log: milliseconds since 1970, and a count within. What comes after it is new to its holder."""

    ms: int = 0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.ms}-{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """ValueError for text that is no cursor."""
        if not (found := _CURSOR.fullmatch(text)):
            raise ValueError("a cursor looks like 1770419700000-0")
        return cls(int(found[1]), int(found[2] or 0))

    @classmethod
    def now(cls) -> "Cursor":
        return cls(time.time_ns() // 1_000_000)


Entry = tuple[Cursor, dict[str, Any]]


class EventSource(Protocol):
    """A log that can be read on from any place."""

    async def head(self) -> Cursor:
        """The place of the newest event."""

    async def after(self, place: Cursor, *, wait: float = 0.0) -> list[Entry]:
        """The next events, oldest first; none when there were none for so many seconds. StoreUnavailable, or
        SharedStoreUnavailable where it is shared."""


class EventStore:
    """The file. `shared`: other processes write it too."""

    def __init__(self, path: Path, *, shared: bool = False) -> None:
        self._path = path
        self._shared = shared
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._writer = SqliteWriter("events", self._connect, committed=self._committed)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="events")
        self._connection: sqlite3.Connection | None = None

    # Whoever has something to tell

    def append(self, event: Mapping[str, Any], content: bytes) -> None:
        """`content` is the event as JSON. Returns at once."""
        whose = event["session"], event["caller"], event["agent"]
        values = (Cursor.now().ms * _PER_MS, *whose, content.decode())
        self._writer.put(lambda connection: connection.execute(_INSERT, values))

    def call_over(self, session: str) -> None:
        """The call is over: its words are gone over as a whole, since secrets may be spread over turns."""
        self._writer.put(lambda connection: _redact(connection, session))

    def unsay(self, session: str, still_said: Sequence[str]) -> None:
        """Something was taken back: of the call's words, only those that stand in these texts are kept."""
        self._writer.put(lambda connection: _unsay(connection, session, still_said))

    def delete_before(self, place: Cursor) -> None:
        older = "DELETE FROM events WHERE number < ?"
        self._writer.put(lambda connection: connection.execute(older, (_number(place),)))

    async def flushed(self) -> None:
        await self._writer.flushed()

    def close(self) -> None:
        self._writer.close()
        self._reader.submit(self._close_reader).result()
        self._reader.shutdown(wait=False)

    # Whoever wants to know

    async def head(self) -> Cursor:
        [(number,)] = await self._read("SELECT coalesce(max(number), 0) FROM events")
        return _cursor(number)

    async def after(self, place: Cursor, *, wait: float = 0.0) -> list[Entry]:
        give_up = self._loop.time() + wait
        while True:
            news = self._news
            query = f"SELECT number, event FROM events WHERE number > ? ORDER BY number LIMIT {MOST_AT_ONCE}"
            rows = await self._read(query, _number(place))
            left = give_up - self._loop.time()
            if rows or left <= 0:
                return [_entry(row) for row in rows]
            await wait_for_event(news, min(left, LOOK_SECONDS) if self._shared else left)

    # Itself

    async def _read(self, query: str, *values: Any) -> list[Any]:
        def work() -> list[Any]:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection.execute(query, values).fetchall()

        try:
            return await self._loop.run_in_executor(self._reader, work)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"the log of events can't be read: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        return private_database(self._path, _SCHEMA, synchronous="NORMAL")

    def _close_reader(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _committed(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def events_of(path: Path, session: str) -> list[dict[str, Any]]:
    """All that is kept of one call, in order. StoreUnavailable."""
    if not path.is_file():
        return []
    query = "SELECT number, event FROM events WHERE session = ? ORDER BY number"
    with _opened(path) as connection:
        rows = connection.execute(query, (session,)).fetchall()
    return [{"id": str(cursor), **event} for cursor, event in map(_entry, rows)]


def told_of(path: Path) -> set[str]:
    """The calls that something is kept of. StoreUnavailable."""
    if not path.is_file():
        return set()
    with _opened(path) as connection:
        return {session for (session,) in connection.execute("SELECT DISTINCT session FROM events")}


def forget_events(path: Path, sessions: Iterable[str], caller: str = "", agent: str = "") -> int:
    """Delete all of these calls, and whatever else there is of a caller; how many events those were."""
    if not path.is_file():
        return 0
    with _opened(path) as connection, connection:
        connection.execute("PRAGMA secure_delete = ON")
        of_calls = [connection.execute("DELETE FROM events WHERE session = ?", (id_,)) for id_ in sessions]
        others = "DELETE FROM events WHERE caller = ? AND caller <> '' AND ? IN ('', agent)"
        of_caller = connection.execute(others, (caller, agent))
        return sum(cursor.rowcount for cursor in (*of_calls, of_caller))


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(private_database(path, _SCHEMA, synchronous="NORMAL")) as connection:
            yield connection
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path.name} failed: {error}") from error


def _redact(connection: sqlite3.Connection, session: str) -> None:
    query = "SELECT number, event FROM events WHERE session = ? ORDER BY number"
    rows = [(number, orjson.loads(event)) for number, event in connection.execute(query, (session,))]
    for field in _WORDS:
        spoken = [(number, event) for number, event in rows if event.get(field)]
        clean = redact_lines([SpokenLine(event.get("speaker", "agent"), event[field]) for _, event in spoken])
        for (number, event), line in zip(spoken, clean, strict=True):
            if line.text != event[field]:
                event[field] = line.text
                stored = orjson.dumps(event).decode()
                connection.execute("UPDATE events SET event = ? WHERE number = ?", (stored, number))


def _unsay(connection: sqlite3.Connection, session: str, still_said: Sequence[str]) -> None:
    connection.execute("PRAGMA secure_delete = ON")
    query = "SELECT number, event FROM events WHERE session = ?"
    for number, stored in connection.execute(query, (session,)).fetchall():
        event = orjson.loads(stored)
        words = [event[field] for field in _WORDS if event.get(field)]
        if not all(any(part in text for text in still_said) for part in words):
            connection.execute("DELETE FROM events WHERE number = ?", (number,))


def _number(place: Cursor) -> int:
    return place.ms * _PER_MS + place.count


def _cursor(number: int) -> Cursor:
    return Cursor(*divmod(number, _PER_MS))


def _entry(row: tuple[int, str]) -> Entry:
    return _cursor(row[0]), orjson.loads(row[1])
