"""
The memory log: every statement about a caller, as a call's summary extracted it or an operator entered it.

Facts and pinned topics are projections of this log, computed in the order of the calls, those of the most trusted calls
first: what they add up to does not depend on less trusted ones. Removing entries (a call is
reverted, a caller forgotten, old entries expire) therefore leaves exactly what would be known without them. Each
projected item is stored as a document too, so that a search finds it.
"""

import asyncio
from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

import orjson

from gateway.memory.embeddings.embedder import MODEL
from gateway.memory.stores.database import Connection, Migration, tables
from gateway.memory.stores.documents import Document, NewDocument, carrying, create_document, json_text, time_text
from gateway.memory.stores.store import MemoryStore
from gateway.memory.summary_parser import SESSION_PREFIX
from gateway.session import TrustLevel, VoiceSession

SCHEMA: Final = (
    *tables("memory_log"),
    # Until November 2026 facts and pinned topics had a log each.
    Migration(
        "memory_log",
        """INSERT INTO memory_entries
                (source, agent, caller, session_id, position, started_at, content, document_id, logged_at)
            SELECT 'caller-fact', agent, caller, session_id, position, started_at, said, document_id, at
            FROM memory_log ORDER BY number""",
    ),
    Migration(
        "pin_log",
        """INSERT INTO memory_entries (
                source, agent, caller, session_id, position, started_at, content, model, vector, document_id, logged_at)
            SELECT 'pinned-topic', agent, caller, session_id, position, started_at, said, model, meaning, document_id,
                at FROM pin_log ORDER BY at, session_id, position""",
    ),
    Migration("memory_taken_back", "INSERT INTO reverted_sessions SELECT session_id FROM memory_taken_back"),
)


_REVERTED: Final = "SELECT 1 FROM reverted_sessions WHERE session_id = ?"
UNDO_DAYS: Final = 30
"""How long a rebuild of a caller's memory can be undone."""
EntryKey = tuple[str, int]
"""The session id and the position in the session."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One row of the log."""

    session_id: str
    position: int
    started_at: str
    content: Mapping[str, Any]
    vector: bytes
    logged_at: str

    @property
    def key(self) -> EntryKey:
        return self.session_id, self.position

    @property
    def trust(self) -> TrustLevel:
        return TrustLevel.of(self.content.get("trust"))


@dataclass(frozen=True, slots=True)
class NewEntry:
    """Content to append, with its embedding where one is needed to compare entries."""

    content: Mapping[str, Any]
    vector: bytes = b""


@dataclass(frozen=True, slots=True)
class LogChange:
    """The effect of one entry. `before` is empty for a new item, `session_id` for an operator's change of a topic."""

    op: str
    session_id: str
    before: str
    after: str
    at: datetime


class Projected(Protocol):
    """A fact or a topic, computed from the entries with these keys."""

    keys: list[EntryKey]


Item = TypeVar("Item", bound=Projected)


def by_trust(entries: Sequence[LogEntry]) -> Iterator[tuple[TrustLevel, list[LogEntry]]]:
    """For each trust level, the highest first: the entries of this level and those above, in their order."""
    for level in sorted({entry.trust for entry in entries}, reverse=True):
        yield level, [entry for entry in entries if entry.trust >= level]


Value = TypeVar("Value")


class CallerScope(NamedTuple):
    """One caller with one agent, for one kind of memory."""

    source: str
    agent: str
    caller: str

    @property
    def tags(self) -> tuple[str, ...]:
        return self.source, f"agent:{self.agent}", f"caller:{self.caller}"

    @property
    def documents(self) -> tuple[str, str]:
        """The values of the columns `source` and `tags` of this scope's documents."""
        return self.source, json_text(self.tags)


class MemoryLog(ABC, Generic[Item]):
    """The log of one kind of memory and its projection, in a store opened with SCHEMA. Raises StoreUnavailable."""

    source: ClassVar[str]
    """The source of the documents, which also names the kind of memory."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @abstractmethod
    def _project(self, entries: Sequence[LogEntry]) -> tuple[Sequence[Item], Sequence[LogChange]]:
        """The items that the entries of one caller add up to, and the changes that they made. Pure."""

    @abstractmethod
    def _document(self, item: Item, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument | None:
        """The item's document, or None if it has none yet. `ids` are those of stored documents, by source id. Pure."""

    @abstractmethod
    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        """The entries to delete when what is older than `before` expires. Pure."""

    async def history(self, agent: str, caller: str) -> list[LogChange]:
        """All changes in the order of the calls: why each item is what it is."""
        scope = self._scope(agent, caller)
        entries = await self._store.look(lambda connection: self._entries(connection, scope))
        return list((await asyncio.to_thread(self._project, entries))[1])  # hundreds of facts take most of a second

    async def is_reverted(self, session_id: str) -> bool:
        """Whether a call was reverted, or its caller forgotten."""
        return bool(await self._store.fetch(_REVERTED, session_id))

    async def revert(self, session_id: str) -> int:
        """Remove a call's entries and ignore any later ones of it. Returns how many there were."""

        def work(connection: Connection) -> int:
            connection.execute("INSERT INTO reverted_sessions VALUES (?) ON CONFLICT DO NOTHING", (session_id,))
            scopes = self._scopes(connection, "session_id = ?", session_id)
            count = self._delete_session(connection, session_id)
            for scope in scopes:
                self._rebuild(connection, scope)
                delete_undo(connection, scope.caller, scope.agent)
            return count

        return await self._store.run(work)

    async def document_deleted(self, document_id: str) -> None:
        """Remove the entries behind a document that was deleted, if it was one of this log's."""

        def work(connection: Connection) -> None:
            for scope in self._scopes(connection, "document_id = ?", document_id):
                self._rebuild(connection, scope)
                delete_undo(connection, scope.caller, scope.agent)

        await self._store.run(work)

    async def forget(self, agent: str | None, caller: str) -> int:
        """Delete a caller's entries and documents, with one agent or all. Returns how many entries there were."""
        tagged, tokens = carrying(f"caller:{caller}", *([] if agent is None else [f"agent:{agent}"]))

        def work(connection: Connection) -> int:
            condition = "source = ? AND caller = ? AND coalesce(agent = ?, true)"
            values = (self.source, caller, agent)
            connection.execute(
                f"""INSERT INTO reverted_sessions SELECT DISTINCT session_id FROM memory_entries WHERE {condition}
                    ON CONFLICT DO NOTHING""",
                values,
            )
            connection.execute(f"DELETE FROM documents WHERE source = ? AND {tagged}", (self.source, *tokens))
            delete_undo(connection, caller, agent)
            self._caller_forgotten(connection, agent, caller)
            return connection.execute(f"DELETE FROM memory_entries WHERE {condition}", values).rowcount

        return await self._store.run(work)

    async def expire(self, before: datetime, of: Callable[[str], bool] = lambda agent: True) -> int:
        """Delete what expired before this time, for the agents `of` selects. Returns how many entries there were."""
        moment = time_text(before)
        found = await self._store.look(lambda connection: self._scopes(connection, "started_at < ?", moment))

        def work(connection: Connection, scope: CallerScope) -> int:
            expired = self._expired(self._entries(connection, scope), moment)
            self._delete(connection, [entry.key for entry in expired])
            self._rebuild(connection, scope)
            return len(expired)

        # One transaction per caller, so that live calls that read memory do not wait long.
        return sum([await self._store.run(partial(work, scope=scope)) for scope in found if of(scope.agent)])

    async def replace_session(self, session: VoiceSession, entries: Sequence[NewEntry], now: datetime) -> bool:
        """
        Make these the entries of a session, unless it was reverted or forgotten. Returns if anything changed.

        Each gets the session's trust level. A session without trust teaches nothing.
        """
        scope = self._scope(session.agent, session.caller)
        entries = [replace(entry, content={**entry.content, **session.trust.mark}) for entry in entries]
        entries = entries if session.trust else []

        def work(connection: Connection) -> bool:
            rows = connection.execute(
                "SELECT content FROM memory_entries WHERE session_id = ? AND source = ? ORDER BY position",
                (session.id, self.source),
            )
            known = [content for (content,) in rows.fetchall()]
            is_reverted = connection.execute(_REVERTED, (session.id,)).fetchone()
            if is_reverted or known == [json_text(entry.content) for entry in entries]:
                return False
            self._delete_session(connection, session.id)
            self._append(connection, scope, session.id, session.started_at, entries, now)
            self._rebuild(connection, scope)
            return True

        return await self._store.run(work)

    async def delete_old_undo(self, now: datetime) -> None:
        """Delete the copies of rebuilds that can no longer be undone."""
        before = (now - timedelta(days=UNDO_DAYS)).isoformat()
        await self._store.change("DELETE FROM rebuild_undo WHERE at < ?", before)

    async def session_entries(self, session_id: str) -> list[NewEntry]:
        """What a session contributed, in its order."""
        columns = "content, model, vector"
        query = f"SELECT {columns} FROM memory_entries WHERE session_id = ? AND source = ? ORDER BY position"
        rows = await self._store.fetch(query, session_id, self.source)
        return [NewEntry(orjson.loads(content), _comparable(model, vector)) for content, model, vector in rows]

    # In a transaction

    def _scope(self, agent: str, caller: str) -> CallerScope:
        return CallerScope(self.source, agent, caller)

    def _scopes(self, connection: Connection, condition: str, value: str) -> list[CallerScope]:
        query = f"SELECT DISTINCT agent, caller FROM memory_entries WHERE source = ? AND {condition}"
        return [self._scope(*row) for row in connection.execute(query, (self.source, value)).fetchall()]

    def _entries(self, connection: Connection, scope: CallerScope) -> list[LogEntry]:
        """All entries in the order of the calls, not in the order in which the calls were finalized."""
        rows = connection.execute(
            """SELECT session_id, position, started_at, content, model, vector, logged_at
                FROM memory_entries WHERE source = ? AND agent = ? AND caller = ?
                ORDER BY started_at, session_id, position""",
            scope,
        )
        return [
            LogEntry(session_id, position, started_at, orjson.loads(content), _comparable(model, vector), logged_at)
            for session_id, position, started_at, content, model, vector, logged_at in rows.fetchall()
        ]

    def _append(
        self,
        connection: Connection,
        scope: CallerScope,
        session_id: str,
        started_at: datetime,
        entries: Sequence[NewEntry],
        now: datetime,
    ) -> None:
        connection.executemany(
            """INSERT INTO memory_entries
                    (source, agent, caller, session_id, position, started_at, content, model, vector, logged_at)
                VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
            [
                (*scope, session_id, position, time_text(started_at), json_text(entry.content))
                + (MODEL if entry.vector else "", b64encode(entry.vector).decode(), time_text(now))
                for position, entry in enumerate(entries)
            ],
        )

    def _delete(self, connection: Connection, keys: Sequence[EntryKey]) -> None:
        self._entries_deleted(connection, keys)
        statement = "DELETE FROM memory_entries WHERE source = ? AND session_id = ? AND position = ?"
        connection.executemany(statement, [(self.source, *key) for key in keys])

    def _entries_deleted(self, connection: Connection, keys: Sequence[EntryKey]) -> None:
        """Called in the transaction that deletes these entries, before they are gone."""

    def _caller_forgotten(self, connection: Connection, agent: str | None, caller: str) -> None:
        """Called in the transaction that deletes a caller's entries, with one agent or all."""

    def _delete_session(self, connection: Connection, session_id: str) -> int:
        statement = "DELETE FROM memory_entries WHERE session_id = ? AND source = ?"
        return connection.execute(statement, (session_id, self.source)).rowcount

    def _rebuild(self, connection: Connection, scope: CallerScope) -> tuple[Sequence[Item], dict[str, str]]:
        """Update the documents to match the log. Returns the items, and the ids of their documents by source id."""
        # A document that was deleted must not come back: the entries behind it go too.
        gone = """memory_entries WHERE source = ? AND agent = ? AND caller = ? AND document_id <> ''
            AND document_id NOT IN (SELECT id FROM documents WHERE source = ? AND tags = ?)"""
        columns = (*scope, *scope.documents)
        if keys := connection.execute(f"SELECT session_id, position FROM {gone}", columns).fetchall():
            self._entries_deleted(connection, keys)
            connection.execute(f"DELETE FROM {gone}", columns)
        items, _ = self._project(self._entries(connection, scope))
        now = datetime.now(UTC)
        ids: dict[str, str] = {}
        for item in items:
            if new := self._document(item, scope, ids):
                ids[new.source_id] = create_document(connection, new, now).id
        links: list[tuple[str, str, str, int, str]] = []
        for item in items:
            new = self._document(item, scope, ids)
            document_id = ids[new.source_id] if new else ""
            if new:
                values = (new.title, new.content, json_text(new.metadata))
                connection.execute(
                    """UPDATE documents SET title = ?, content = ?, metadata = ?, updated_at = ?
                        WHERE id = ? AND (title <> ? OR content <> ? OR metadata <> ?)""",
                    (*values, time_text(now), document_id, *values),
                )
            links += [(document_id, self.source, *key, document_id) for key in item.keys]
        connection.executemany(
            """UPDATE memory_entries SET document_id = ?
                WHERE source = ? AND session_id = ? AND position = ? AND document_id <> ?""",
            links,
        )
        connection.execute(
            """DELETE FROM documents WHERE source = ? AND tags = ? AND source_id <> '' AND id NOT IN (
                SELECT document_id FROM memory_entries WHERE source = ? AND agent = ? AND caller = ?)""",
            (*scope.documents, *scope),
        )
        return items, ids

    def _stored(
        self, connection: Connection, scope: CallerScope, read: Callable[[str, str, datetime, dict[str, Any]], Value]
    ) -> list[Value]:
        """A caller's documents, read from id, content, time of creation and metadata."""
        rows = connection.execute(
            "SELECT id, content, created_at, metadata FROM documents WHERE source = ? AND tags = ? AND source_id <> ''",
            scope.documents,
        )
        found = []
        for document_id, content, created_at, metadata in rows.fetchall():
            # Clients of the document API may have stored documents of this source with other metadata.
            with suppress(KeyError, TypeError, ValueError):
                found.append(read(document_id, content, datetime.fromisoformat(created_at), orjson.loads(metadata)))
        return found


@dataclass(frozen=True)
class Retention:
    """How many days facts and topics are kept, for all agents or by agent; 0 keeps them for ever."""

    days: int = 0
    by_agent: Mapping[str, int] = field(default_factory=dict)
    call_days: int = 0
    """After how many days a call is archived and no longer used; 0 for never."""

    def oldest_call(self, now: datetime) -> datetime | None:
        """The time before which calls no longer count; None without a limit."""
        return now - timedelta(days=self.call_days) if self.call_days else None

    def is_current(self, document: Document, agent: str, now: datetime) -> bool:
        """Whether a search may return a document: false for superseded facts, and for what is past its time."""
        # Clients store documents about calls too; those are not archived.
        if document.source == "voice-call" and document.source_id.startswith(SESSION_PREFIX):
            oldest = self.oldest_call(now)
            return oldest is None or document.created_at >= oldest
        last_said_at = document.metadata.get("last_said_at")
        if document.source not in ("caller-fact", "pinned-topic") or last_said_at is None:
            return True
        oldest = self.oldest(agent, now)
        in_time = oldest is None or datetime.fromisoformat(last_said_at) >= oldest
        return in_time and not document.metadata.get("superseded_by")

    def oldest(self, agent: str, now: datetime) -> datetime | None:
        """The time before which statements no longer count; None without a limit."""
        days = self.by_agent.get(agent, self.days)
        return now - timedelta(days=days) if days else None

    def limits(self, now: datetime) -> list[tuple[datetime, Callable[[str], bool]]]:
        """The arguments for `expire`: a time, and the agents it holds for."""
        own = [(now - timedelta(days=days), agent.__eq__) for agent, days in self.by_agent.items() if days]
        general = [(now - timedelta(days=self.days), lambda agent: agent not in self.by_agent)] if self.days else []
        return [*own, *general]


def delete_undo(connection: Connection, caller: str, agent: str | None) -> None:
    """Delete the copy that the last rebuild of a caller's memory made, with one agent or all."""
    connection.execute("DELETE FROM rebuild_undo WHERE caller = ? AND coalesce(agent = ?, true)", (caller, agent))


def _comparable(model: str, vector: str) -> bytes:
    """The stored vector; empty if another model made it."""
    return b64decode(vector) if model == MODEL else b""
