"""
The durable log of live calls: turns, events and what a restart needs, in one SQLite file per node.

A call only queues its rows; one thread writes them, so audio never waits for the disk. A row with a position is a live
event and is kept as long as raw transcripts are. A row without one serves only to recover the call, and goes when the
call's finalization job has been stored. A killed process loses no row older than 100 ms.
"""

import asyncio
import contextlib
import logging
import queue
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.errors import StoreUnavailable
from gateway.memory.stores.database import tables
from gateway.response_time import ResponseTime
from gateway.session import Consent, Speaker, TrustLevel, Turn, Voicemail, VoiceSession
from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact_lines

FILE_NAME: Final = "call-log.db"
MAX_QUEUED: Final = 100_000
"""Writes kept while the disk accepts none; beyond it the oldest are dropped and the loss is logged."""
MAX_EVENTS: Final = 500
"""Events returned by one read."""

# Evaluated in the transaction that writes it, so that positions rise in the order in which readers see them.
_NEXT_POSITION: Final = "max(coalesce((SELECT max(position) FROM entries), 0) + 1, ?)"
INSERT_ROW: Final = "INSERT INTO main.entries (session, caller, agent, position, entry) VALUES (?, ?, ?, NULL, ?)"
_INSERT_EVENT: Final = INSERT_ROW.replace("NULL", _NEXT_POSITION)
_PUBLISH: Final = f"UPDATE entries SET position = {_NEXT_POSITION}, entry = ? WHERE id = ?"
# Rows without a header belong to a caller who was erased during the call.
_RELEASE: Final = """DELETE FROM entries WHERE session = ? AND position IS NULL
    AND NOT EXISTS (SELECT 1 FROM live_calls WHERE session = ? AND node <> ?)"""
_POSITIONS_PER_MS: Final = 1000

_log = logging.getLogger(__name__)

Row = Mapping[str, Any]
"""One row as JSON: a live event, or a part of the session: `state`, `known_as`, `trust`, `consent`, `voicemail`,
`off_record`, `taken_back`."""


@dataclass(frozen=True)
class CallLogTimeouts:
    """All in seconds."""

    gather: float = 0.02
    """
    Rows that arrive within this time are written together.

    The thread shares the interpreter with the audio. Woken for each turn of 300 calls it delayed frames by 9 to 31 ms
    at p99 in four runs; woken this rarely, by 4 to 10 ms. A turn is on disk a few milliseconds later.
    """
    retry: float = 1.0
    """Between attempts while the disk rejects writes."""
    poll: float = 0.05
    """How often a file that other processes also write is read while someone watches."""


@dataclass(frozen=True, order=True)
class Cursor:
    """A position among live events: milliseconds since 1970 and a count within."""

    ms: int = 0
    count: int = 0

    def __str__(self) -> str:
        return f"{self.ms}-{self.count}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Raises ValueError."""
        if not (found := re.fullmatch(r"(\d{1,15})(?:-(\d{1,9}))?", text)):
            raise ValueError("a cursor looks like 1770419700000-0")
        return cls(int(found[1]), int(found[2] or 0))

    @classmethod
    def now(cls) -> "Cursor":
        return cls(time.time_ns() // 1_000_000)

    @classmethod
    def at(cls, position: int) -> "Cursor":
        return cls(*divmod(position, _POSITIONS_PER_MS))

    @property
    def position(self) -> int:
        return self.ms * _POSITIONS_PER_MS + self.count


Entry = tuple[Cursor, dict[str, Any]]
"""A live event and its position."""


@dataclass
class LogRow:
    """A row queued for writing. Its id is known once it has been written."""

    session: str
    caller: str
    agent: str
    id: int | None = None


@dataclass(frozen=True)
class RecoveredCall:
    """A call that was live when its process died. `header` is what was given to `open_call`."""

    session: VoiceSession
    header: dict[str, Any]
    node: str = ""
    """The process that owned it."""


@dataclass(frozen=True)
class LoggedTurn:
    """A turn, and the response time of an answer if it is known."""

    turn: Turn
    response: ResponseTime | None = None
    answer: int | None = None
    """The number of an answer in live events."""


class CallLog:
    """
    The log of one node and the thread that writes it. Methods that write return at once.

    Several processes may share the file (`shared`). Each releases only the calls that carry its name.
    """

    def __init__(
        self, path: Path, node: str = "", *, shared: bool = False, timeouts: CallLogTimeouts | None = None
    ) -> None:
        self._path = path
        self._node = node
        self._shared = shared
        self._timeouts = timeouts or CallLogTimeouts()
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._writer = _Writer(path, self._timeouts, self._committed)
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="call log reader")
        self._connection: sqlite3.Connection | None = None

    # Live calls

    def open_call(self, session: VoiceSession, header: dict[str, Any]) -> None:
        """Record a call that begins, or goes on with a new media stream. `header` is what its recovery needs."""
        stored = orjson.dumps({"session": {**session.as_json(), "turns": []}, "header": header})
        self._execute("INSERT OR REPLACE INTO live_calls VALUES (?, ?, ?)", session.id, stored.decode(), self._node)

    def take_over(self, session: VoiceSession, header: dict[str, Any]) -> None:
        """Record a call that another node began, with all its turns."""
        self._execute("DELETE FROM entries WHERE session = ? AND position IS NULL", session.id)
        self.open_call(session, header)
        for entry in ({"restart": True}, *rows_of_turns(session.turns), *rows_beside_turns(session)):
            self.append(LogRow(session.id, session.number or session.caller, session.agent), entry)

    def claim(self, session_id: str) -> None:
        """Own a call that a dead process left."""
        self._execute("UPDATE live_calls SET node = ? WHERE session = ?", self._node, session_id)

    def release(self, session_id: str) -> None:
        """Delete what only recovery needs: the call's finalization job, or another node, has everything."""
        self._execute(_RELEASE, session_id, session_id, self._node)
        self._execute("DELETE FROM live_calls WHERE session = ? AND node = ?", session_id, self._node)

    async def unfinished(self) -> list[RecoveredCall]:
        """The calls that an earlier process left behind. Raises StoreUnavailable."""
        await self.flushed()
        return await asyncio.to_thread(recovered_calls, self._path)

    async def rows(self, session_id: str) -> list[Row]:
        """What is on disk of one call, from any process; empty if the disk cannot be read."""
        with contextlib.suppress(StoreUnavailable):
            return await asyncio.to_thread(rows_of_call, self._path, session_id)
        return []

    # Rows

    def append(self, row: LogRow, entry: Row) -> None:
        """Write a row that is not a live event, or not yet."""
        stored = orjson.dumps(entry).decode()

        def work(connection: sqlite3.Connection) -> None:
            row.id = connection.execute(INSERT_ROW, (row.session, row.caller, row.agent, stored)).lastrowid

        self._writer.put(work)

    def publish(self, row: LogRow, event: bytes, *, appended: bool = False) -> None:
        """Write a live event, as JSON; `appended`: the row is there and becomes one."""
        stored, now = event.decode(), Cursor.now().position

        def work(connection: sqlite3.Connection) -> None:
            if appended and row.id is not None:  # None: the row was dropped while the disk was full
                connection.execute(_PUBLISH, (now, stored, row.id))
            else:
                connection.execute(_INSERT_EVENT, (row.session, row.caller, row.agent, now, stored))

        self._writer.put(work)

    def retract(self, row: LogRow, turns: Iterable[str], rest: Iterable[Row]) -> None:
        """Delete these turns, by name, and replace all else that the log has of the session."""
        names = frozenset(turns)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("PRAGMA secure_delete = ON")
            query = "SELECT id, position, entry FROM entries WHERE session = ? ORDER BY id"
            answers: dict[int, bool] = {}  # whether the answer of that number is retracted
            for id_, position, stored in connection.execute(query, (row.session,)).fetchall():
                match orjson.loads(stored):
                    case {"event": "function_finished", "arguments": _, "result": _, **others}:
                        # It may quote what was retracted.
                        entry = orjson.dumps(others | {"event": "function_finished"}).decode()
                        connection.execute("UPDATE entries SET entry = ? WHERE id = ?", (entry, id_))
                        gone = False
                    case {"event": "turn", "speaker": "caller", "at": at}:
                        gone = f"caller {at}" in names
                    case {"event": "turn", "answer": answer, "at": at}:
                        gone = answers.setdefault(answer, f"agent {at}" in names)
                    case {"event": "interruption", "answer": answer}:
                        gone = answers.get(answer, False)
                    case _:
                        gone = position is None
                if gone:
                    connection.execute("DELETE FROM entries WHERE id = ?", (id_,))

        self._writer.put(work)
        for entry in rest:
            self.append(row, entry)

    def redact(self, session_id: str) -> None:
        """Remove secrets that were spoken over several turns. Each single text was redacted on the way in."""

        def work(connection: sqlite3.Connection) -> None:
            query = "SELECT id, entry FROM entries WHERE session = ? ORDER BY id"
            rows = [(id_, orjson.loads(entry)) for id_, entry in connection.execute(query, (session_id,))]
            for name in ("text", "heard", "unheard"):
                spoken = [(id_, entry) for id_, entry in rows if entry.get(name)]
                clean = redact_lines([SpokenLine(entry.get("speaker", "agent"), entry[name]) for _, entry in spoken])
                for (id_, entry), line in zip(spoken, clean, strict=True):
                    if line.text != entry[name]:
                        entry[name] = line.text
                        stored = orjson.dumps(entry).decode()
                        connection.execute("UPDATE entries SET entry = ? WHERE id = ?", (stored, id_))

        self._writer.put(work)

    def delete_before(self, cursor: Cursor) -> None:
        self._execute("DELETE FROM entries WHERE position < ?", cursor.position)

    async def flushed(self) -> None:
        """Wait until everything queued so far is on disk."""
        await self._writer.flushed()

    def close(self) -> None:
        """Write what is queued, then end both threads."""
        self._writer.close()
        if self._connection is not None:
            self._reader.submit(self._connection.close).result()
        self._reader.shutdown(wait=False)

    # Live events

    async def head(self) -> Cursor:
        """The position of the newest event."""
        [(position,)] = await self._read("SELECT coalesce(max(position), 0) FROM entries")
        return Cursor.at(position)

    async def after(self, cursor: Cursor, *, wait: float = 0.0) -> list[Entry]:
        """The next events, oldest first; waits up to `wait` seconds for one. Raises StoreUnavailable."""
        deadline = self._loop.time() + wait
        while True:
            news = self._news
            query = f"SELECT position, entry FROM entries WHERE position > ? ORDER BY position LIMIT {MAX_EVENTS}"
            rows = await self._read(query, cursor.position)
            left = deadline - self._loop.time()
            if rows or left <= 0:
                return [(Cursor.at(position), orjson.loads(entry)) for position, entry in rows]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._timeouts.poll) if self._shared else left):
                    await news.wait()

    async def _read(self, query: str, *values: Any) -> list[Any]:
        """On a connection of its own: watchers read all the time, and opening one takes a millisecond."""

        def work() -> list[Any]:
            if self._connection is None:
                self._connection = open_call_log(self._path)
            return self._connection.execute(query, values).fetchall()

        try:
            return await self._loop.run_in_executor(self._reader, work)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailable(f"{self._path.name} cannot be read: {error}") from error

    def _execute(self, statement: str, *values: Any) -> None:
        self._writer.put(lambda connection: connection.execute(statement, values))

    def _committed(self) -> None:
        def wake() -> None:
            self._news.set()
            self._news = asyncio.Event()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(wake)


# Turns and rows


def turns_from_rows(rows: Iterable[Row]) -> list[LoggedTurn]:
    """
    The turns in the order spoken. The pieces of one answer are one turn; an unfinished answer counts as far as it got.
    Words of the caller that came later than the answer to them go before it.

    A row that equals its predecessor is skipped: a shared row whose acknowledgement was lost is there twice.
    """
    turns: dict[object, LoggedTurn] = {}
    last: Row = {}
    for number, row in enumerate(rows):
        if row == last and "at" in row:
            continue
        last = row
        match row:
            case {"restart": True}:
                turns.clear()
            case {"event": "turn", "speaker": "caller", "text": text, "at": at}:
                turns["caller", number] = LoggedTurn(Turn(Speaker.CALLER, text, datetime.fromisoformat(at)))
                if row.get("late"):
                    turns = dict(sorted(turns.items(), key=lambda item: item[1].turn.at))
            case {"event": "turn", "speaker": "agent", "text": text, "answer": answer, "at": at}:
                by_operator = row.get("by_operator", False)
                turn = Turn(Speaker.AGENT, text, datetime.fromisoformat(at), by_operator=by_operator)
                logged = LoggedTurn(turn, _response_time(row), answer)
                if before := turns.get(answer):
                    turn = replace(before.turn, text=f"{before.turn.text} {text}", unheard="")
                    logged = LoggedTurn(turn, before.response or logged.response, answer)
                turns[answer] = logged
            case {"event": "answer_started", "answer": answer} if answer in turns:
                before = turns[answer]
                turns[answer] = replace(before, response=before.response or _response_time(row))
            case {"event": "interruption", "heard": heard, "unheard": unheard, "answer": answer} if answer in turns:
                before = turns[answer]
                turns[answer] = replace(before, turn=replace(before.turn, text=heard, unheard=unheard))
    return list(turns.values())


def _response_time(row: Row) -> ResponseTime | None:
    if row.get("latency") is None:
        return None
    return ResponseTime.from_json({**row["stages"], "counted_from": row.get("counted_from")})


def rows_of_turns(turns: Sequence[Turn], *, open_answer: int | None = None) -> list[Row]:
    """
    The rows that `turns_from_rows` reads as these turns. `open_answer`: the last turn is an answer still being spoken.

    Past answers get numbers below zero, which no later answer has.
    """
    rows: list[Row] = []
    for number, turn in enumerate(turns, 1):
        row: dict[str, Any] = {"event": "turn", "speaker": turn.speaker, "text": turn.text, "at": turn.at.isoformat()}
        if turn.speaker is Speaker.AGENT:
            row["answer"] = open_answer if open_answer is not None and number == len(turns) else -number
            row["text"] = turn.text if turn.heard else f"{turn.text} {turn.unheard}".strip()
            row |= {"by_operator": True} if turn.by_operator else {}
        rows.append(row)
        if not turn.heard:
            rows.append({"event": "interruption", "heard": turn.text, "unheard": turn.unheard, "answer": row["answer"]})
    return rows


def rows_beside_turns(session: VoiceSession) -> list[Row]:
    """The rows for everything in a session that changes during the call, except its turns."""
    record = {"off_record": session.off_record, "taken_back": session.taken_back}
    identity = {"known_as": [session.caller, session.number], "trust": int(session.trust)}
    return [{"state": session.state}, record, identity, {"consent": session.consent, "voicemail": session.voicemail}]


def restore(session: VoiceSession, rows: Sequence[Row]) -> None:
    """Set a session to what its rows say: the turns, and the last value of everything else."""
    last = {name: value for row in rows if "event" not in row for name, value in row.items()}
    session.turns = [logged.turn for logged in turns_from_rows(rows)]
    session.state = dict(last.get("state", {}))
    session.off_record = bool(last.get("off_record"))
    session.taken_back = list(last.get("taken_back", []))
    session.caller, session.number = last.get("known_as", (session.caller, session.number))
    session.trust = TrustLevel(last.get("trust", session.trust))
    session.consent = Consent(last.get("consent", session.consent))
    session.voicemail = Voicemail(last.get("voicemail", session.voicemail))


# The file, without a running log: for queries, reports and erasure. All raise StoreUnavailable.


def events_of_call(path: Path, session: str) -> list[dict[str, Any]]:
    """The live events of one call, in order, each with its cursor as `id`."""
    query = "SELECT position, entry FROM entries WHERE session = ? AND position IS NOT NULL ORDER BY position"
    rows = _read(path, query, session)
    return [{"id": str(Cursor.at(position)), **orjson.loads(entry)} for position, entry in rows]


def rows_of_call(path: Path, session: str) -> list[Row]:
    """All rows of one call, in the order written."""
    rows = _read(path, "SELECT entry FROM entries WHERE session = ? ORDER BY id", session)
    return [orjson.loads(entry) for (entry,) in rows]


def recovered_calls(path: Path) -> list[RecoveredCall]:
    calls = []
    for session_id, stored, node in _read(path, "SELECT session, header, node FROM live_calls ORDER BY session"):
        kept = orjson.loads(stored)
        session = VoiceSession.from_json(kept["session"])
        restore(session, rows_of_call(path, session_id))
        calls.append(RecoveredCall(session, kept["header"], node))
    return calls


def live_sessions(path: Path) -> list[dict[str, Any]]:
    """The sessions of calls that are live or were when their process died, without turns."""
    return [orjson.loads(header)["session"] for (header,) in _read(path, "SELECT header FROM live_calls")]


def logged_sessions(path: Path) -> set[str]:
    """The ids of all calls that have a row."""
    return {session for (session,) in _read(path, "SELECT DISTINCT session FROM entries")}


def erase_calls(path: Path, sessions: Iterable[str], caller: str = "", agent: str = "") -> int:
    """Delete everything of these calls, and of a caller with one agent or all (empty). Returns the number of rows."""
    if not path.is_file():
        return 0
    ids = [(session,) for session in sessions]
    with _opened(path) as connection, connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.executemany("DELETE FROM live_calls WHERE session = ?", ids)
        before = connection.total_changes
        connection.executemany("DELETE FROM entries WHERE session = ?", ids)
        of_caller = "DELETE FROM entries WHERE caller = ? AND caller <> '' AND ? IN ('', agent)"
        connection.execute(of_caller, (caller, agent))
        connection.execute(
            "DELETE FROM entries WHERE position IS NULL AND session NOT IN (SELECT session FROM live_calls)"
        )
        return connection.total_changes - before


def _read(path: Path, query: str, *values: Any) -> list[Any]:
    if not path.is_file():
        return []
    with _opened(path) as connection:
        return connection.execute(query, values).fetchall()


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(open_call_log(path)) as connection:
            yield connection
    except (sqlite3.Error, OSError) as error:
        raise StoreUnavailable(f"{path.name} failed: {error}") from error


def open_call_log(path: Path) -> sqlite3.Connection:
    """The log as a file that only its owner may read, in a folder of the same kind. A commit survives a power cut."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    connection = sqlite3.connect(path, timeout=10)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    for statement in tables("call_log"):
        connection.execute(statement)
    return connection


# The writer

_Work = Callable[[sqlite3.Connection], object]
_Item = _Work | asyncio.Future[None]


class _Writer:
    """
    The thread that writes the file. What arrives within `gather` seconds is one transaction.

    A full disk stops the writing, not the calls; it resumes when there is room.
    """

    def __init__(self, path: Path, timeouts: CallLogTimeouts, committed: Callable[[], None]) -> None:
        self._path = path
        self._timeouts = timeouts
        self._committed = committed
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="call log", daemon=True)
        self._thread.start()

    def put(self, work: _Work) -> None:
        """Run this in one of the next transactions, in order. It is repeated if the transaction fails."""
        self._queue.put(work)

    async def flushed(self) -> None:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put(written)
        await written

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(timeout=10)

    def _write_all(self) -> None:
        connection: sqlite3.Connection | None = None
        waiting: list[_Item] = []
        failing = closing = False
        while not closing:
            closing = self._gather(waiting, timeout=self._timeouts.retry if failing else None)
            works = [item for item in waiting if not isinstance(item, asyncio.Future)]
            try:
                connection = connection or open_call_log(self._path)
                with connection:
                    for work in works:
                        work(connection)
            except (sqlite3.Error, OSError) as error:
                if not failing:
                    fields = {"file": self._path.name, "reason": str(error)}
                    _log.error("call log cannot be written, calls continue without it", extra=fields)
                failing = True
                if surplus := works[:-MAX_QUEUED]:
                    _log.error("call log entries dropped", extra={"entries": len(surplus)})
                    for work in surplus:
                        waiting.remove(work)
                continue
            if failing:
                _log.info("call log can be written again", extra={"file": self._path.name})
            failing = False
            for item in waiting:
                if isinstance(item, asyncio.Future):
                    item.get_loop().call_soon_threadsafe(_resolve, item)
            waiting.clear()
            self._committed()
        if connection is not None:
            connection.close()

    def _gather(self, waiting: list[_Item], timeout: float | None) -> bool:
        """Add what has arrived since the last commit; true when nothing more will."""
        try:
            item = self._queue.get(timeout=timeout)
            time.sleep(self._timeouts.gather)
            while item is not None:
                waiting.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return False
        return True


def _resolve(written: asyncio.Future[None]) -> None:
    if not written.done():
        written.set_result(None)
