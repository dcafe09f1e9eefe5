"""
Undoing what calls left behind: everything of one caller, or what one call taught.

A remote store is asked first. Only what is kept here tells which documents there are meant, so while it can't be
reached nothing is deleted, and the same again goes on where it stopped.
"""

import asyncio
import contextlib
import logging
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

import orjson

from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.finalization.document import SOURCE as CALL_SOURCE
from gateway.finalization.job_table import JobTable
from gateway.history.call_log import FILE_NAME, erase_calls, live_sessions, logged_sessions
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.llm.responder import hashed_caller
from gateway.memory.database import Connection
from gateway.memory.documents import carrying
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import RememClient
from gateway.memory.sqlite import SqliteStore
from gateway.memory.state import CallerStateStore
from gateway.memory.store import MemoryStore
from gateway.session import VoiceSession
from gateway.settings import Secret, Settings

PATIENCE: Final = 10.0
"""How long whoever else has a database is waited for."""
_SCRUB_TRIES: Final = 5
_MOST_REMOTE: Final = 100
_CHUNK_BYTES: Final = 1 << 20
_AT_ONCE: Final = 500

# That somebody was forgotten, and when; not who.
SCHEMA: Final = ("CREATE TABLE IF NOT EXISTS forgotten (caller TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID",)

_SESSIONS: Final = """
    SELECT session_id, agent FROM calls WHERE caller = :caller AND :agent IN ('', agent)
    UNION SELECT session_id, agent FROM caller_state_log WHERE caller = :caller AND :agent IN ('', agent)
    UNION SELECT session_id, agent FROM memory_entries
        WHERE caller = :caller AND :agent IN ('', agent) AND substr(session_id, 1, 8) <> 'by-hand:'"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLocations:
    """Where calls leave something, beside the store."""

    data_dir: Path
    archive_dir: Path
    record_dir: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> "DataLocations":
        return cls(settings.data_dir, settings.voice_session_archive_dir, settings.record_dir)

    @property
    def log(self) -> Path:
        return self.data_dir / FILE_NAME

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(folder for folder in (self.data_dir, self.archive_dir, self.record_dir) if folder is not None)


@dataclass(frozen=True)
class CallerData:
    """
    What there is of a caller, with one agent or all (empty).

    `sessions` are the ids of calls, each with its agent; `unfinished` those of them that are live, or whose ending is
    not done.
    """

    caller: str
    agent: str
    sessions: Mapping[str, str]
    unfinished: frozenset[str]
    documents: int
    files: tuple[Path, ...]

    def __bool__(self) -> bool:
        return bool(self.sessions or self.documents or self.files)


@dataclass(frozen=True)
class ErasureResult:
    """
    What was deleted, by kind, and what could not be.

    `remote_left` counts documents that the remote store did not delete. `unscrubbed` are databases whose freed pages
    may still hold words: another process kept them busy, or there was no room to rewrite them.
    """

    deleted: Mapping[str, int]
    remote_left: int = 0
    unscrubbed: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.remote_left and not self.unscrubbed


class SharedData(Protocol):
    """Where nodes keep something of calls for each other. Raises SharedStoreUnavailable."""

    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int: ...


class Eraser:
    """
    Takes back what was learned. Raises StoreError.

    `store` holds what is known of callers; `local`, where that is another one, this node's endings; `shared` what nodes
    keep for each other.
    """

    def __init__(
        self,
        store: MemoryStore,
        places: DataLocations,
        remem: RememClient | None,
        secret: Secret,
        *,
        local: SqliteStore | None = None,
        shared: SharedData | None = None,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._shared = shared
        self._local = local or store
        self._places = places
        self._remem = remem
        self._secret = secret
        self._patience = patience
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._state = CallerStateStore(store)

    async def revert(self, call: FinishedCall) -> ErasureResult:
        """Make it as if a call had taught nothing, and see that it stays so. Its line in the book of calls stays."""
        removed, left = await self._delete_remote([call.session_id])
        return ErasureResult(
            {
                "fact statements": await self._facts.revert(call.session_id),
                "topic entries": await self._pins.revert(call.session_id),
                "state entries": await self._state.revert(call.session_id),
                "documents": await self._store.run(
                    lambda connection: _delete_call(connection, call.session_id, call.agent)
                ),
                "endings": await self._local.run(lambda connection: _delete_endings(connection, [call.session_id])),
                "remote documents": removed,
            },
            left,
        )

    async def traces(self, caller: str, agent: str = "") -> CallerData:
        """Look for everything of a caller. Changes nothing."""
        sessions = await self._store.look(lambda connection: _sessions(connection, caller, agent))
        open_ones = [job.session.as_json() for job in await JobTable(self._local).open_ones()]
        live = await asyncio.to_thread(live_sessions, self._places.log)
        unfinished = {call["id"]: call["agent"] for call in open_ones + live if _is_of(call, caller, agent)}
        sessions |= unfinished
        tagged, tokens = _tagged(caller, agent)
        count = f"SELECT count(*) FROM documents WHERE {tagged}"
        (documents,) = await self._store.look(lambda connection: connection.execute(count, tokens).fetchone())
        files = await asyncio.to_thread(lambda: tuple(_files(self._places, sessions, caller, agent)))
        return CallerData(caller, agent, sessions, frozenset(unfinished), documents, files)

    async def forget(self, traces: CallerData) -> ErasureResult:
        """
        Delete all of it and leave a tombstone without content. Calls that are going on leave nothing either.

        The line in the book of calls goes last: until then a second try finds whatever the first has left.
        """
        caller, agent = traces.caller, traces.agent
        agents = {*traces.sessions.values(), agent} - {""}
        removed, left = await self._delete_remote(traces.sessions, [(name, caller) for name in sorted(agents)])
        await self._store.run(lambda connection: _take_back(connection, traces.sessions))  # no ending writes any more
        await asyncio.to_thread(_delete_files, traces.files)
        logged = await asyncio.to_thread(erase_calls, self._places.log, [*traces.sessions], caller, agent)
        for store in (self._store, self._local):
            await store.overwrite_deleted()
        deleted = {
            "files": len(traces.files),
            "call log entries": logged,
            "fact statements": await self._facts.forget(agent or None, caller),
            "topic entries": await self._pins.forget(agent or None, caller),
            "state entries": sum([await self._state.forget(name, caller) for name in sorted(agents)]),
            "endings": await self._local.run(lambda connection: _delete_endings(connection, traces.sessions)),
            "documents": await self._store.run(lambda connection: self._delete_rest(connection, traces)),
            "calls": len(await CallsTable(self._store).forget(caller=caller, agent=agent)),
            "remote documents": removed,
        }
        unscrubbed = await self._scrub_files()
        unscrubbed += [] if await self._store.scrub() else ["the database"]
        if self._shared is not None:
            try:
                deleted["entries in Redis"] = await self._shared.forget(traces.sessions, caller, agent)
            except SharedStoreUnavailable:
                unscrubbed.append("Redis")
        return ErasureResult(deleted, left, tuple(unscrubbed))

    async def is_forgotten(self, session: VoiceSession) -> bool:
        """Whether the caller was forgotten since this call began, at whatever node: then it is to leave nothing."""
        names = [
            hashed_caller(agent, caller, self._secret)
            for agent in ("", session.agent)
            for caller in (session.caller, session.number)
            if caller
        ]

        def work(connection: Connection) -> str | None:
            query = f"SELECT max(at) FROM forgotten WHERE caller IN ({', '.join('?' * len(names))})"
            row: tuple[str | None] = connection.execute(query, names).fetchone()
            return row[0]

        at = await self._store.look(work) if names else None
        if at is None or datetime.fromisoformat(at) < session.started_at:
            return False
        await self._store.run(lambda connection: _take_back(connection, [session.id]))
        return True

    async def sweep(self) -> int:
        """
        Delete what is here of calls that were forgotten at another node, or went on afterwards; how many those were.

        The ending of such a call leaves nothing, but as long as it goes on it is written down.
        """
        files = await asyncio.to_thread(lambda: dict(_call_files(self._places)))
        logged = await asyncio.to_thread(logged_sessions, self._places.log)
        calls = sorted(logged.union(files.values()))
        forgotten = await self._store.look(lambda connection: _forgotten(connection, calls))
        if forgotten:
            await asyncio.to_thread(_delete_files, [path for path, of in files.items() if of in forgotten])
            await asyncio.to_thread(erase_calls, self._places.log, forgotten)
            if self._shared is not None:
                with contextlib.suppress(SharedStoreUnavailable):  # it keeps nothing for long
                    await self._shared.forget(forgotten, "", "")
            if busy := await self._scrub_files():
                _log.warning("freed pages may hold words of a forgotten call", extra={"databases": ", ".join(busy)})
        return len(forgotten)

    async def clear_away(self) -> None:
        """A call is over whose caller was forgotten, or took back words: what was written down meanwhile goes too."""
        if not await self.sweep():
            await _scrub(self._places.log, self._patience)

    async def holding(self, words: Sequence[str]) -> list[str]:
        """The files and tables that hold one of these words, in whatever case."""
        files = await asyncio.to_thread(holding, words, self._places)
        return [*map(str, files), *await self._store.tables_holding(words)]

    def _delete_rest(self, connection: Connection, traces: CallerData) -> int:
        """What no book of its own sees to, in a transaction; how many documents that was."""
        tagged, tokens = _tagged(traces.caller, traces.agent)
        documents = connection.execute(f"DELETE FROM documents WHERE {tagged}", tokens).rowcount
        documents += sum([_delete_call(connection, *session) for session in traces.sessions.items()])
        self._store.index.purge(connection)
        tombstone = hashed_caller(traces.agent, traces.caller, self._secret), datetime.now(UTC).isoformat()
        connection.execute(
            "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT (caller) DO UPDATE SET at = excluded.at", tombstone
        )
        return documents

    async def forget_caller(self, agent: str, caller: str) -> int:
        """All that an agent remembers of a caller, as far as this can be done at once; how many things that was."""
        traces = await self.traces(caller, agent)
        if not traces:
            return 0
        undone = await self.forget(traces)
        if not undone.is_complete:
            fields = {"remote_documents": undone.remote_left, "databases": ", ".join(undone.unscrubbed)}
            _log.warning("a caller could not be forgotten everywhere", extra=fields)
        return sum(undone.deleted.values())

    async def _scrub_files(self) -> list[str]:
        """Leave nothing of what was deleted in the databases here; the names of those that others keep busy."""
        databases = sorted(self._places.data_dir.glob("*.db"))
        return [path.name for path in databases if not await _scrub(path, self._patience)]

    async def _delete_remote(self, sessions: Iterable[str], pairs: Sequence[tuple[str, str]] = ()) -> tuple[int, int]:
        """Of these sessions, and of these agents with these callers; how many were deleted, and how many were not."""
        if self._remem is None:
            return 0, 0
        found = [await self._remem.find_by_session(session_id) for session_id in sessions]
        ids = {document_id for document_id in found if document_id is not None}
        for agent, caller in pairs:
            ids |= {document.id for document in await self._remem.past_calls(agent, caller, _MOST_REMOTE, timeout=10)}
        # A server that names no ids can't be asked to delete one.
        deleted = [bool(document_id) and await self._remem.delete(document_id) for document_id in sorted(ids)]
        return sum(deleted), len(deleted) - sum(deleted)


def holding(words: Sequence[str], places: DataLocations) -> list[Path]:
    """The files that hold one of these words, in whatever case."""
    pattern = re.compile(b"|".join(re.escape(word.encode()) for word in words), re.IGNORECASE)
    overlap = max(len(word.encode()) for word in words)
    paths = {path.resolve() for folder in places.folders for path in folder.rglob("*") if path.is_file()}
    return sorted(path for path in paths if _holds(path, pattern, overlap))


def _holds(path: Path, pattern: re.Pattern[bytes], overlap: int) -> bool:
    seen = b""
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                seen = seen[-overlap:] + chunk
                if pattern.search(seen):
                    return True
    except FileNotFoundError:  # a running gateway deletes some of its own
        return False
    except OSError as error:
        raise StoreUnavailable(f"{path} can't be read: {error.strerror}") from None
    return False


# One call


def _delete_call(connection: Connection, session_id: str, agent: str) -> int:
    """Its documents, and how many those were; a late repeat of its ending is to bring back no state either."""
    connection.execute("INSERT INTO caller_state_saves VALUES (?, ?) ON CONFLICT DO NOTHING", (session_id, agent))
    return connection.execute("DELETE FROM documents WHERE source_id = ?", (session_id,)).rowcount


def _delete_endings(connection: Connection, sessions: Iterable[str]) -> int:
    statement = "DELETE FROM endings WHERE session_id = ?"
    return sum([connection.execute(statement, (session_id,)).rowcount for session_id in sessions])


def _sessions(connection: Connection, caller: str, agent: str) -> dict[str, str]:
    """The calls that left something, each with its agent."""
    sessions = dict(connection.execute(_SESSIONS, {"caller": caller, "agent": agent}).fetchall())
    tagged, tokens = carrying(f"caller:{caller}")
    query = f"SELECT source_id, metadata FROM documents WHERE source = ? AND source_id <> '' AND {tagged}"
    for session_id, metadata in connection.execute(query, (CALL_SOURCE, *tokens)):
        with_agent = orjson.loads(metadata).get("agent") or ""
        if agent in ("", with_agent):
            sessions.setdefault(session_id, with_agent)
    return sessions


def _forgotten(connection: Connection, sessions: Sequence[str]) -> set[str]:
    """Those of them that nobody may know of any more. A call that was only reverted is still in the book."""
    forgotten: set[str] = set()
    for first in range(0, len(sessions), _AT_ONCE):
        some = sessions[first : first + _AT_ONCE]
        query = f"""SELECT session_id FROM reverted_sessions WHERE session_id IN ({", ".join("?" * len(some))})
            AND session_id NOT IN (SELECT session_id FROM calls)"""
        forgotten |= {session_id for (session_id,) in connection.execute(query, some)}
    return forgotten


def _tagged(caller: str, agent: str) -> tuple[str, tuple[str, ...]]:
    return carrying(f"caller:{caller}", *([f"agent:{agent}"] if agent else []))


def _take_back(connection: Connection, sessions: Iterable[str]) -> None:
    """Nothing that these calls still teach is taken in."""
    rows = [(session_id,) for session_id in sessions]
    connection.executemany("INSERT INTO reverted_sessions VALUES (?) ON CONFLICT DO NOTHING", rows)


def _is_of(session: Mapping[str, Any], caller: str, agent: str) -> bool:
    return caller in (session["caller"], session.get("number")) and agent in ("", session["agent"])


# Files


def _call_files(places: DataLocations) -> Iterator[tuple[Path, str]]:
    """Transcripts and recordings, each with the session it is of."""
    for path in places.archive_dir.glob("voice-session-*.*"):
        yield path, f"voice-session:{path.stem.removeprefix('voice-session-')}"
    for path in places.record_dir.glob("*.jsonl") if places.record_dir is not None else ():
        yield path, f"voice-session:{path.stem}"


def _files(places: DataLocations, sessions: Iterable[str], caller: str, agent: str) -> Iterator[Path]:
    uuids = {session_id.removeprefix("voice-session:") for session_id in sessions}
    for name in (f"voice-session-{uuid}.{suffix}" for uuid in sorted(uuids) for suffix in ("txt", "part")):
        if (path := places.archive_dir / name).is_file():
            yield path
    for path in sorted(places.record_dir.glob("*.jsonl")) if places.record_dir is not None else ():
        # A call without a word is recorded too, and nothing else knows of it.
        if path.stem in uuids or _is_recording_of(path, caller, agent):
            yield path


def _is_recording_of(path: Path, caller: str, agent: str) -> bool:
    with path.open("rb") as file:
        try:
            call = orjson.loads(file.readline())["content"]
            return bool(_is_of({**call, "agent": call["agent"]["name"]}, caller, agent))
        except (ValueError, KeyError, TypeError):
            return False


def _delete_files(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{path} can't be deleted: {error.strerror}") from None


# Databases


async def _scrub(path: Path, patience: float) -> bool:
    """Leave nothing of what was deleted in the file or its log; false when others keep it busy."""
    for _ in range(_SCRUB_TRIES):  # who finds another's checkpoint under way is turned away at once
        if await asyncio.to_thread(_vacuum, path, patience / _SCRUB_TRIES):
            return True
        await asyncio.sleep(patience / 100)
    return False


def _vacuum(path: Path, patience: float) -> bool:
    with closing(sqlite3.connect(path, timeout=patience)) as connection:
        try:
            # Else a new page may be made in memory that still has the words of an old one.
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute("VACUUM")
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        except sqlite3.Error:
            return False
    return not busy
