"""
Keeps documents in the remote store in line with ours: pinned topics, and calls whose facts were deleted.

A call's document is sent by its finalization job. Here it is sent again without a fact that is no longer known. What
was sent is in the table `remote_copies`, so a restart or an outage loses nothing, and nothing is sent twice.
"""

import asyncio
import hashlib
import logging
from datetime import datetime
from typing import Any, Final

import orjson

from gateway.errors import StoreError, StoreRefused
from gateway.finalization.document import SOURCE as CALL_SOURCE
from gateway.finalization.document import add_facts
from gateway.memory.remem_client import RememClient
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.store import MemoryStore

SCHEMA: Final = tables("remote_copies")

SOURCE: Final = "voice-topic"
"""Of a topic's copy. A gateway that receives it must not take it for a topic of its own."""

_TOPICS: Final = """SELECT source_id, title, content, tags, created_at FROM documents
    WHERE source = 'pinned-topic' AND source_id <> ''"""
_FACTS: Final = "SELECT content FROM memory_entries WHERE session_id = ? AND source = 'caller-fact' ORDER BY position"

_NO_LONGER_PINNED: Final = NewDocument("", "This topic is no longer pinned.\n")
"""Replaces the text of a copy in a store that deletes nothing."""

_log = logging.getLogger(__name__)


class RemoteCopies:
    """Sends what changed once a minute. One that the remote store rejects is tried again after it has changed."""

    def __init__(self, store: MemoryStore, remem: RememClient) -> None:
        self._store = store
        self._remem = remem

    async def run(self, *, every: float = 60.0) -> None:
        while True:
            try:
                if sent := await self.sync():
                    _log.info("remote copies updated", extra={"documents": sent})
            except StoreError as error:
                _log.warning("remote copies could not be updated", extra={"reason": str(error)})
            await asyncio.sleep(every)

    async def sync(self) -> int:
        """Send what changed since the last time. Returns how many documents. Raises StoreError."""
        topics, sent, sessions = await self._store.look(_read)
        changed = 0
        for key, (new, agent, caller) in topics.items():
            digest = hashlib.sha256(f"{new.title}\n{new.content}".encode()).hexdigest()
            if sent.get(key, ("", ""))[1] != digest:
                await self._send(key, agent, caller, new, digest, sent.get(key))
                changed += 1
        for key in sent.keys() - topics.keys():
            remote_id = sent[key][0] or await self._remem.find_by_session(key)
            if remote_id and not await self._remem.delete(remote_id):
                await self._remem.replace(remote_id, _NO_LONGER_PINNED)
            await self._store.change("DELETE FROM remote_copies WHERE key = ?", key)
            changed += 1
        for session_id in sessions:
            await self._send_call(session_id)
            changed += 1
        return changed

    async def _send(
        self, key: str, agent: str, caller: str, new: NewDocument, digest: str, before: tuple[str, str] | None
    ) -> None:
        if before is None:
            await self._keep(key, agent, caller, "", "")
        remote_id = before[0] if before else ""
        if before and not remote_id:
            remote_id = await self._remem.find_by_session(key) or ""
        try:
            remote_id = await (self._remem.replace(remote_id, new) if remote_id else self._remem.store(new))
        except StoreRefused as refused:
            if refused.status in (401, 403):  # a wrong key, not a wrong document
                raise
            _log.warning("remote store rejected a pinned topic", extra={"reason": str(refused)})
        await self._keep(key, agent, caller, remote_id, digest)

    async def _keep(self, *row: str) -> None:
        statement = """INSERT INTO remote_copies VALUES (?, ?, ?, ?, ?) ON CONFLICT (key)
            DO UPDATE SET remote_id = excluded.remote_id, digest = excluded.digest"""
        await self._store.change(statement, *row)

    async def _send_call(self, session_id: str) -> None:
        query = "SELECT title, content FROM documents WHERE source_id = ? AND source = ?"

        def read(connection: Connection) -> tuple[Any, list[Any]]:
            document = connection.execute(query, (session_id, CALL_SOURCE)).fetchone()
            return document, connection.execute(_FACTS, (session_id,)).fetchall()

        document, facts = await self._store.look(read)
        if document is not None and (remote_id := await self._remem.find_by_session(session_id)):
            title, content = document
            known = [orjson.loads(stored)["text"] for (stored,) in facts]
            await self._remem.replace(remote_id, NewDocument(title, add_facts(content, known)))
        await self._store.change("DELETE FROM remote_updates WHERE session_id = ?", session_id)


async def sent_copies(store: MemoryStore, caller: str, agent: str) -> dict[str, str]:
    """The copies of a caller's topics, with one agent or all: their ids in the remote store by those in ours."""
    query = "SELECT key, remote_id FROM remote_copies WHERE caller = ? AND ? IN ('', agent)"
    return dict(await store.fetch(query, caller, agent))


def _read(
    connection: Connection,
) -> tuple[dict[str, tuple[NewDocument, str, str]], dict[str, tuple[str, str]], list[str]]:
    topics: dict[str, tuple[NewDocument, str, str]] = {}
    for key, title, content, stored, created_at in connection.execute(_TOPICS).fetchall():
        tags = orjson.loads(stored)
        _, agent, caller = (tag.partition(":")[2] for tag in tags)
        moment = datetime.fromisoformat(created_at)
        # A store is searched for the key after an answer was lost, so it has to be in the text.
        new = NewDocument(title, f"{content}\n**Topic:** {key}\n", SOURCE, tuple(tags), moment, source_id=key)
        topics[key] = new, agent, caller
    rows = connection.execute("SELECT key, remote_id, digest FROM remote_copies").fetchall()
    sent = {key: (remote_id, digest) for key, remote_id, digest in rows}
    sessions = [session_id for (session_id,) in connection.execute("SELECT session_id FROM remote_updates").fetchall()]
    return topics, sent, sessions
