"""
The document store as HTTP clients and text agents see it.

A search leaves out superseded facts and everything past its retention. Deleting the document of a fact or topic also
deletes the log entries behind it.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from gateway.memory.documents import Document, Hit, NewDocument
from gateway.memory.facts import FactStore
from gateway.memory.memory_log import Retention
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.store import MemoryStore

_AGENT: Final = "agent:"
_MORE: Final = 20  # extra results, to replace hidden ones


class VisibleDocuments:
    """A DocumentStore over another, which was opened with the schema of the memory log."""

    def __init__(
        self, store: MemoryStore, retention: Retention, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = store
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._retention = retention
        self._now = now

    async def query(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        found, moment = [], self._now()
        for more in (0, _MORE):  # nearly always nothing is hidden
            hits = await self._store.query(text, limit=limit + more, tags=tags)
            found = [hit for hit in hits if self._is_visible(hit.document, moment)]
            if len(found) == len(hits):
                break
        return found[:limit]

    async def delete(self, document_id: str) -> None:
        await self._store.delete(document_id)
        await self._facts.document_deleted(document_id)
        await self._pins.document_deleted(document_id)

    async def create(self, new: NewDocument) -> Document:
        return await self._store.create(new)

    async def get(self, document_id: str) -> Document:
        return await self._store.get(document_id)

    async def replace(self, document_id: str, content: str, *, title: str | None = None) -> Document:
        return await self._store.replace(document_id, content, title=title)

    async def append(self, document_id: str, content: str) -> Document:
        return await self._store.append(document_id, content)

    async def newest(self, *, tags: Sequence[str], limit: int) -> list[Document]:
        return await self._store.newest(tags=tags, limit=limit)

    def _is_visible(self, document: Document, now: datetime) -> bool:
        agent = next((tag.removeprefix(_AGENT) for tag in document.tags if tag.startswith(_AGENT)), "")
        return self._retention.is_current(document, agent, now)
