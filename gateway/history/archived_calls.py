"""
Calls of long ago, compressed. They are no longer in the prompt, in a search, or in the lists and statistics of calls.

One row has the call as the table of finished calls had it, and its document. `gateway sessions --archived` reads them.
"""

import zlib
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.finalization.document import SOURCE as CALL_SOURCE
from gateway.history.calls_table import (
    NEWEST_FIRST,
    WITH_RECEIPT,
    CallRowFilter,
    FinishedCall,
    call_from_row,
    delete_call,
)
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.store import MemoryStore

SCHEMA: Final = tables("archived_calls")

_BATCH: Final = 100
"""Calls per transaction: live calls that read memory do not wait long for it."""
_DOCUMENT: Final = "SELECT id, title, content FROM documents WHERE source = ? AND source_id = ?"


@dataclass(frozen=True, slots=True)
class ArchivedCall:
    """`title` and `document` are empty for a call that was reverted."""

    call: FinishedCall
    title: str
    document: str


class ArchivedCalls:
    """All methods raise StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def archive(self, before: str) -> int:
        """Move the calls that started before this time, ISO text in UTC, to the archive. Returns how many."""
        moved = 0
        while count := await self._store.run(lambda connection: _archive_some(connection, before)):
            moved += count
        return moved

    async def newest(self, wanted: CallRowFilter, *, limit: int) -> list[ArchivedCall]:
        where, values = wanted.where()
        query = f"SELECT content FROM archived_calls WHERE {where} {NEWEST_FIRST}"
        return [_archived_call(*row) for row in await self._store.fetch(query, *values, limit)]

    async def find(self, session_id: str) -> ArchivedCall | None:
        """By id, or by the beginning of the uuid if only one call has it."""
        prefix = f"voice-session:{session_id.removeprefix('voice-session:')}"
        query = "SELECT content FROM archived_calls WHERE session_id >= ? AND session_id < ? LIMIT 2"
        rows = await self._store.fetch(query, prefix, prefix + "\U0010ffff")
        return _archived_call(*rows[0]) if len(rows) == 1 else None

    async def drop_document(self, session_id: str) -> int:
        """Delete the document of a call that was reverted, with its name; keep its row. Returns how many there were."""

        def work(connection: Connection) -> int:
            query = "SELECT content FROM archived_calls WHERE session_id = ?"
            row = connection.execute(query, (session_id,)).fetchone()
            stored = _unpacked(row[0]) if row else {}
            if not stored.get("document"):
                return 0
            content = _packed({**stored, "call": {**stored["call"], "caller_name": ""}, "title": "", "document": ""})
            connection.execute("UPDATE archived_calls SET content = ? WHERE session_id = ?", (content, session_id))
            return 1

        return await self._store.run(work)

    async def forget(self, *, caller: str, agent: str = "") -> int:
        """Delete a caller's calls, with one agent or all. Returns how many."""
        statement = "DELETE FROM archived_calls WHERE caller = ? AND ? IN ('', agent)"
        return await self._store.change(statement, caller, agent)


def _archive_some(connection: Connection, before: str) -> int:
    query = f"{WITH_RECEIPT} WHERE started_at < ? ORDER BY started_at LIMIT ?"
    calls = [call_from_row(row) for row in connection.execute(query, (before, _BATCH)).fetchall()]
    for call in calls:
        document = connection.execute(_DOCUMENT, (CALL_SOURCE, call.session_id)).fetchone()
        _, title, text = document or ("", "", "")
        content = _packed({"call": call.as_json(), "memory_items": call.memory_items, "title": title, "document": text})
        values = (call.session_id, call.started_at, call.agent, call.caller, call.carrier, call.outcome, content)
        connection.execute("INSERT INTO archived_calls VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", values)
        if document:
            connection.execute("DELETE FROM documents WHERE id = ?", (document[0],))
        delete_call(connection, call.session_id)
    return len(calls)


def _packed(content: Any) -> bytes:
    return zlib.compress(orjson.dumps(content), 9)


def _unpacked(content: bytes) -> dict[str, Any]:
    unpacked: dict[str, Any] = orjson.loads(zlib.decompress(content))
    return unpacked


def _archived_call(content: bytes) -> ArchivedCall:
    stored = _unpacked(content)
    return ArchivedCall(FinishedCall.from_json(stored["call"]), stored["title"], stored["document"])
