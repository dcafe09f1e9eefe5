"""
Deletes what calls left behind: everything of one caller (erasure), or what one call taught (revert).

The remote store comes first: only local data says which of its documents to delete. So while it is unreachable nothing
is deleted, and a repeated erasure continues where the last one stopped. This module is in `history` and not in `memory`
because it also deletes the call log, finished calls, finalization jobs, transcripts and recordings.
"""

import asyncio
import contextlib
import logging
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import orjson

from gateway.calls.recording_files import PLAIN, RecordingCipher, header
from gateway.cluster.store import NoSharedStore
from gateway.errors import RecordingError, SharedStoreUnavailable, StoreUnavailable
from gateway.finalization.document import SOURCE as CALL_SOURCE
from gateway.finalization.job_table import JobTable
from gateway.finalization.remote_copies import sent_copies
from gateway.history.api_tokens import forget_bound_tokens
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.call_log import FILE_NAME, erase_calls, live_sessions, logged_sessions
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.llm.responder import hashed_caller
from gateway.memory.facts import FactStore
from gateway.memory.pin_codes import PinCodeStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import RememClient
from gateway.memory.state import CallerStateStore
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import BY_SOURCE_ID, carrying
from gateway.session import VoiceSession
from gateway.settings import Secret, Settings

if TYPE_CHECKING:
    from gateway.history.stores import Stores

SCRUB_TIMEOUT: Final = 10.0
"""Seconds to wait for a database that another process keeps busy."""

# A tombstone: a hash of the caller and the time of the erasure.
SCHEMA: Final = ("CREATE TABLE IF NOT EXISTS forgotten (caller TEXT PRIMARY KEY, at TEXT NOT NULL) WITHOUT ROWID",)

_SESSIONS: Final = " UNION ".join(
    f"SELECT session_id, agent FROM {table} WHERE caller = :caller AND :agent IN ('', agent)"
    for table in ("finished_calls", "archived_calls", "caller_state", "memory_entries")
)

# A caller without calls may have these, set by the operator.
_OTHER_ROWS: Final = " UNION ALL ".join(
    f"SELECT 1 FROM {table} WHERE caller = :caller AND :agent IN ('', agent)"
    for table in ("pin_codes", "pin_code_failures", "api_tokens", "webhook_messages")
)

# A call that was only reverted is still among the finished or archived calls.
_ERASED: Final = """SELECT session_id FROM reverted_sessions
    WHERE session_id NOT IN (SELECT session_id FROM finished_calls)
    AND session_id NOT IN (SELECT session_id FROM archived_calls)"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataLocations:
    """The folders where calls leave data, besides the stores."""

    data_dir: Path
    archive_dir: Path
    record_dir: Path | None = None
    recordings: RecordingCipher = PLAIN

    @classmethod
    def of(cls, settings: Settings) -> "DataLocations":
        cipher = RecordingCipher(settings.record_key)
        return cls(settings.data_dir, settings.voice_session_archive_dir, settings.record_dir, cipher)

    @property
    def log(self) -> Path:
        return self.data_dir / FILE_NAME

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(folder for folder in (self.data_dir, self.archive_dir, self.record_dir) if folder is not None)


@dataclass(frozen=True)
class CallerData:
    """
    What is stored of a caller, with one agent or all (empty).

    `sessions` maps session ids to agents; `unfinished` are those that are live or whose finalization job is not done.
    `unreadable` counts recordings of calls without a word whose caller is unknown, because they can't be decrypted.
    """

    caller: str
    agent: str
    sessions: Mapping[str, str]
    unfinished: frozenset[str]
    documents: int
    files: tuple[Path, ...]
    unreadable: int = 0
    other_rows: int = 0

    def __bool__(self) -> bool:
        return bool(self.sessions or self.documents or self.files or self.other_rows)


@dataclass(frozen=True)
class ErasureResult:
    """
    What was deleted, by kind, and what could not be.

    `remote_left` counts documents that the remote store did not delete. `unscrubbed` are databases whose freed pages
    may still hold words: another process kept them busy, or there was no room to rewrite them. `unreadable` counts
    recordings that can't be decrypted and may be of the caller.
    """

    deleted: Mapping[str, int]
    remote_left: int = 0
    unscrubbed: tuple[str, ...] = ()
    unreadable: int = 0

    @property
    def is_complete(self) -> bool:
        return not (self.remote_left or self.unscrubbed or self.unreadable)


class SharedData(Protocol):
    """What nodes keep of calls for each other. Raises SharedStoreUnavailable."""

    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int: ...

    async def forget_live(self, session_id: str) -> None:
        """Delete the turns and events of a call that is over. Its finalization goes on."""

    async def rewrite_files(self) -> bool:
        """Remove what was deleted from its files too. Returns whether that was possible."""


class NoSharedData:
    """There is one node."""

    async def forget(self, sessions: Collection[str], caller: str, agent: str) -> int:
        return 0

    async def forget_live(self, session_id: str) -> None: ...

    async def rewrite_files(self) -> bool:
        return True


class Eraser:
    """Raises StoreError. `secret` is the key of the tombstones' hashes."""

    def __init__(
        self,
        stores: "Stores",
        locations: DataLocations,
        remem: RememClient | None,
        secret: Secret,
        shared: SharedData,
        *,
        scrub_timeout: float = SCRUB_TIMEOUT,
    ) -> None:
        self._store = stores.memory
        self._local = stores.local
        self._locations = locations
        self._remem = remem
        self._secret = secret
        self._shared = shared
        self._scrub_timeout = scrub_timeout
        self._facts = FactStore(self._store)
        self._topics = PinnedTopicStore(self._store)
        self._state = CallerStateStore(self._store)
        self._pin_codes = PinCodeStore(self._store, NoSharedStore())

    async def revert(self, call: FinishedCall) -> ErasureResult:
        """Delete what a call taught, for good. The call stays in the table of finished calls."""
        removed, left = await self._delete_remote([call.session_id])
        deleted = {
            "fact statements": await self._facts.revert(call.session_id),
            "topic entries": await self._topics.revert(call.session_id),
            "state entries": await self._state.revert(call.session_id),
            "documents": await ArchivedCalls(self._store).drop_document(call.session_id)
            + await self._store.run(lambda connection: _delete_documents(connection, call.session_id, call.agent)),
            "finalization jobs": await self._local.run(lambda connection: _delete_jobs(connection, [call.session_id])),
            "remote documents": removed,
        }
        return ErasureResult(deleted, left)

    async def find(self, caller: str, agent: str = "") -> CallerData:
        """Search for everything of a caller. Changes nothing."""
        tagged, tokens = _tagged(caller, agent)

        def work(connection: Connection) -> tuple[dict[str, str], int, int]:
            rows = connection.execute(_SESSIONS, {"caller": caller, "agent": agent})
            sessions = {session_id: name for session_id, name in rows if not session_id.startswith("by-hand:")}
            query = f"SELECT source_id, metadata FROM documents WHERE source = ? AND source_id <> '' AND {tagged}"
            for session_id, metadata in connection.execute(query, (CALL_SOURCE, *tokens)):
                sessions.setdefault(session_id, orjson.loads(metadata).get("agent") or "")
            (count,) = connection.execute(f"SELECT count(*) FROM documents WHERE {tagged}", tokens).fetchone()
            others = connection.execute(_OTHER_ROWS, {"caller": caller, "agent": agent}).fetchall()
            return sessions, count, len(others)

        sessions, documents, others = await self._store.look(work)
        jobs = [job.session.as_json() for job in await JobTable(self._local).unfinished()]
        live = await asyncio.to_thread(live_sessions, self._locations.log)
        unfinished = {call["id"]: call["agent"] for call in jobs + live if _is_of(call, caller, agent)}
        sessions |= unfinished
        files, unreadable = await asyncio.to_thread(_files, self._locations, sessions, caller, agent)
        return CallerData(caller, agent, sessions, frozenset(unfinished), documents, files, unreadable, others)

    async def find_all(self, caller: str, agent: str = "") -> list[CallerData]:
        """
        Of a caller, and of every other identifier that has called from this number.

        For operators: on a shared number these are other people.
        """
        others = await CallsTable(self._store).callers_from(caller, agent)
        return [await self.find(key, agent) for key in (caller, *others)]

    async def erase_all(self, found: Sequence[CallerData]) -> ErasureResult:
        results = [await self.erase(data) for data in found]
        deleted = Counter[str]()
        for result in results:
            deleted.update(result.deleted)
        unscrubbed = dict.fromkeys(name for result in results for name in result.unscrubbed)
        remote_left, unreadable = sum(result.remote_left for result in results), max(data.unreadable for data in found)
        return ErasureResult(deleted, remote_left, tuple(unscrubbed), unreadable)

    async def erase(self, data: CallerData) -> ErasureResult:
        """
        Delete all of it and leave a tombstone. Live calls will leave nothing either.

        The finished calls go last: until then a repeated erasure finds what the first one has left.
        """
        caller, agent = data.caller, data.agent
        agents = {*data.sessions.values(), agent} - {""}
        copies = await sent_copies(self._store, caller, agent)
        unknown = [key for key, remote_id in copies.items() if not remote_id]
        known = set(filter(None, copies.values()))
        pairs = [(name, caller) for name in sorted(agents)]
        removed, left = await self._delete_remote([*data.sessions, *unknown], pairs, known)
        await self._store.run(lambda connection: _revert(connection, data.sessions))  # no job writes from here on
        await asyncio.to_thread(_delete_files, data.files)
        logged = await asyncio.to_thread(erase_calls, self._locations.log, [*data.sessions], caller, agent)
        for store in (self._store, self._local):
            await store.overwrite_deleted()
        deleted = {
            "files": len(data.files),
            "call log entries": logged,
            "fact statements": await self._facts.forget(agent or None, caller),
            "topic entries": await self._topics.forget(agent or None, caller),
            "state entries": sum([await self._state.forget(name, caller) for name in sorted(agents)]),
            "PIN codes": await self._pin_codes.forget(agent, caller),
            "API tokens": await self._store.run(lambda connection: forget_bound_tokens(connection, agent, caller)),
            "finalization jobs": await self._local.run(lambda connection: _delete_jobs(connection, data.sessions)),
            "documents": await self._store.run(lambda connection: self._delete_documents(connection, data)),
            "archived calls": await ArchivedCalls(self._store).forget(caller=caller, agent=agent),
            "calls": len(await CallsTable(self._store).forget(caller=caller, agent=agent)),
            "remote documents": removed,
        }
        # A gateway that runs may have logged the last events of a call since.
        await asyncio.to_thread(erase_calls, self._locations.log, [*data.sessions], caller, agent)
        unscrubbed = await self._scrub_files()
        unscrubbed += [] if await self._store.scrub() else ["the database"]
        try:
            deleted["entries in Redis"] = await self._shared.forget(data.sessions, caller, agent)
            unscrubbed += [] if await self._shared.rewrite_files() else ["the files of Redis"]
        except SharedStoreUnavailable:
            unscrubbed.append("Redis")
        return ErasureResult(deleted, left, tuple(unscrubbed), data.unreadable)

    async def erase_caller(self, agent: str, caller: str) -> int:
        """Find and erase in one step, as far as possible now. Returns how many items were deleted."""
        data = await self.find(caller, agent)
        if not data:
            return 0
        result = await self.erase(data)
        if not result.is_complete:
            databases = ", ".join(result.unscrubbed)
            fields = {"remote_documents": result.remote_left, "databases": databases, "recordings": result.unreadable}
            _log.warning("caller could not be erased everywhere", extra=fields)
        return sum(result.deleted.values())

    async def is_erased(self, session: VoiceSession) -> bool:
        """Whether the caller was erased since this call began, on any node: then it must leave nothing."""
        callers = list(filter(None, (session.caller, session.number)))
        if not callers:
            return False
        hashes = [hashed_caller(agent, caller, self._secret) for agent in ("", session.agent) for caller in callers]
        query = f"SELECT max(at) FROM forgotten WHERE caller IN ({', '.join('?' * len(hashes))})"
        [(at,)] = await self._store.fetch(query, *hashes)
        if at is None or datetime.fromisoformat(at) < session.started_at:
            return False
        await self._store.run(lambda connection: _revert(connection, [session.id]))
        return True

    async def sweep(self) -> int:
        """
        Delete what this node has of calls that were erased on another node, or that continued after the erasure.

        Finalization leaves nothing of such a call, but its turns are logged while it is live. Returns how many.
        """
        found = await asyncio.to_thread(lambda: list(_call_files(self._locations)))
        files = {path: f"voice-session:{uuid}" for path, uuid in found}
        logged = await asyncio.to_thread(logged_sessions, self._locations.log)
        rows = await self._store.fetch(_ERASED)
        erased = logged.union(files.values()).intersection(session_id for (session_id,) in rows)
        if erased:
            await asyncio.to_thread(_delete_files, [path for path, session_id in files.items() if session_id in erased])
            await asyncio.to_thread(erase_calls, self._locations.log, erased)
            with contextlib.suppress(SharedStoreUnavailable):  # it expires there soon
                await self._shared.forget(erased, "", "")
                await self._shared.rewrite_files()
            if busy := await self._scrub_files():
                _log.warning("freed pages may hold words of an erased call", extra={"databases": ", ".join(busy)})
        return len(erased)

    async def clear_away(self, session_id: str) -> None:
        """After a call whose caller was erased, or retracted turns: delete what was logged in the meantime."""
        if not await self.sweep():
            await _scrub(self._locations.log, self._scrub_timeout)
        with contextlib.suppress(SharedStoreUnavailable):  # it expires there soon
            await self._shared.forget_live(session_id)
            await self._shared.rewrite_files()

    async def holding(self, words: Sequence[str]) -> list[str]:
        """The files and tables that contain one of these words, ignoring case; none without words."""
        if not words:
            return []
        files = await asyncio.to_thread(holding, words, self._locations)
        return [*map(str, files), *await self._store.tables_holding(words)]

    def _delete_documents(self, connection: Connection, data: CallerData) -> int:
        """Delete all remaining documents and leave the tombstone, in one transaction."""
        tagged, tokens = _tagged(data.caller, data.agent)
        documents = connection.execute(f"DELETE FROM documents WHERE {tagged}", tokens).rowcount
        documents += sum([_delete_documents(connection, *session) for session in data.sessions.items()])
        self._store.index.purge(connection)
        sent = (data.caller, data.agent)
        connection.execute("DELETE FROM remote_copies WHERE caller = ? AND ? IN ('', agent)", sent)
        connection.execute("DELETE FROM webhook_messages WHERE caller = ? AND ? IN ('', agent)", sent)
        tombstone = hashed_caller(data.agent, data.caller, self._secret), datetime.now(UTC).isoformat()
        statement = "INSERT INTO forgotten VALUES (?, ?) ON CONFLICT (caller) DO UPDATE SET at = excluded.at"
        connection.execute(statement, tombstone)
        return documents

    async def _scrub_files(self) -> list[str]:
        """Overwrite what was deleted in the databases of this node. Returns the names of those that are busy."""
        databases = sorted(self._locations.data_dir.glob("*.db"))
        return [path.name for path in databases if not await _scrub(path, self._scrub_timeout)]

    async def _delete_remote(
        self, sessions: Iterable[str], pairs: Sequence[tuple[str, str]] = (), known: Collection[str] = ()
    ) -> tuple[int, int]:
        """
        Documents of these sessions, of these (agent, caller) pairs, and with these ids.

        Returns how many were deleted, and how many could not be.
        """
        if self._remem is None:
            return 0, 0
        found = [await self._remem.find_by_session(session_id) for session_id in sessions]
        ids = {*known, *(document_id for document_id in found if document_id is not None)}
        for agent, caller in pairs:
            ids |= {document.id for document in await self._remem.past_calls(agent, caller, 100, timeout=10)}
        # A server that reports no ids cannot be asked to delete one.
        deleted = [bool(document_id) and await self._remem.delete(document_id) for document_id in sorted(ids)]
        return sum(deleted), len(deleted) - sum(deleted)


def holding(words: Sequence[str], locations: DataLocations) -> list[Path]:
    """The files that contain one of these words, ignoring case. Encrypted recordings are searched in clear."""
    pattern = re.compile(b"|".join(re.escape(word.encode()) for word in words), re.IGNORECASE)
    overlap = max(len(word.encode()) for word in words)

    def holds(path: Path) -> bool:
        seen = b""
        try:
            if path.suffix == ".jsonl" and any(map(pattern.search, locations.recordings.lines(path))):
                return True
            with path.open("rb") as file:
                while chunk := file.read(1 << 20):
                    seen = seen[-overlap:] + chunk
                    if pattern.search(seen):
                        return True
        except FileNotFoundError:  # deleted by the running gateway
            return False
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be read: {error.strerror}") from None
        except RecordingError as error:
            raise StoreUnavailable(str(error)) from None
        return False

    paths = {path.resolve() for folder in locations.folders for path in folder.rglob("*") if path.is_file()}
    return sorted(filter(holds, paths))


# Tables


def _delete_documents(connection: Connection, session_id: str, agent: str) -> int:
    """Delete a call's documents and the name in them, and keep a late retry of its job from saving state."""
    connection.execute("INSERT INTO caller_state_saves VALUES (?, ?) ON CONFLICT DO NOTHING", (session_id, agent))
    connection.execute("DELETE FROM webhook_messages WHERE session_id = ?", (session_id,))
    statement = "UPDATE call_details SET caller_name = '', folded_name = '' WHERE session_id = ?"
    connection.execute(statement, (session_id,))
    return connection.execute(f"DELETE FROM documents WHERE {BY_SOURCE_ID}", (session_id,)).rowcount


def _delete_jobs(connection: Connection, sessions: Iterable[str]) -> int:
    statement = "DELETE FROM finalization_jobs WHERE session_id = ?"
    return sum([connection.execute(statement, (session_id,)).rowcount for session_id in sessions])


def _tagged(caller: str, agent: str) -> tuple[str, tuple[str, ...]]:
    return carrying(f"caller:{caller}", *([f"agent:{agent}"] if agent else []))


def _revert(connection: Connection, sessions: Iterable[str]) -> None:
    """Ignore everything that these calls would still add to memory."""
    rows = [(session_id,) for session_id in sessions]
    connection.executemany("INSERT INTO reverted_sessions VALUES (?) ON CONFLICT DO NOTHING", rows)


def _is_of(session: Mapping[str, Any], caller: str, agent: str) -> bool:
    return caller in (session["caller"], session.get("number")) and agent in ("", session["agent"])


# Files


def _call_files(locations: DataLocations) -> Iterator[tuple[Path, str]]:
    """Transcripts and recordings, each with the uuid of its call."""
    for path in sorted(locations.archive_dir.glob("voice-session-*.*")):
        yield path, path.stem.removeprefix("voice-session-")
    for path in sorted(locations.record_dir.glob("*.jsonl")) if locations.record_dir is not None else ():
        yield path, path.stem


def _files(locations: DataLocations, sessions: Iterable[str], caller: str, agent: str) -> tuple[tuple[Path, ...], int]:
    """The caller's files, and the number of recordings that can't be decrypted and may be of the caller."""
    uuids = {session_id.removeprefix("voice-session:") for session_id in sessions}
    found, unreadable = [], 0
    for path, uuid in _call_files(locations):
        if uuid in uuids:
            found.append(path)
        elif path.suffix == ".jsonl":  # a call without a word is recorded too, and stored nowhere else
            try:
                call = header(path, locations.recordings)
                if _is_of({**call, "agent": call["agent"]["name"]}, caller, agent):
                    found.append(path)
            except RecordingError:
                unreadable += 1
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                pass  # not a recording, or another caller is erased at the same time
    return tuple(found), unreadable


def _delete_files(paths: Iterable[Path]) -> None:
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnavailable(f"{path} cannot be deleted: {error.strerror}") from None


async def _scrub(path: Path, timeout: float) -> bool:
    """Overwrite what was deleted in the file and its log; false if other processes keep it busy."""
    attempts = 5  # during another process's checkpoint SQLite refuses at once

    def vacuum() -> bool:
        with closing(sqlite3.connect(path, timeout=timeout / attempts)) as connection:
            try:
                # Without it a new page may be built in memory from one that still holds the words.
                connection.execute("PRAGMA secure_delete = ON")
                connection.execute("VACUUM")
                busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            except sqlite3.Error:
                return False
        return not busy

    for _ in range(attempts):
        if await asyncio.to_thread(vacuum):
            return True
        await asyncio.sleep(timeout / 100)
    return False
