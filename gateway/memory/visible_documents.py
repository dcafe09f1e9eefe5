"""
The document store as HTTP clients and text agents see it.

A search leaves out superseded facts and everything past its retention. Deleting the document of a fact or topic also
deletes the log entries behind it.
"""

import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gateway.errors import DocumentNotFound
from gateway.memory.facts import Fact, FactStore
from gateway.memory.memory_log import Retention
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.stores.documents import Document, Hit, NewDocument
from gateway.memory.stores.search import snippet
from gateway.memory.stores.store import MemoryStore

NOTE: Final = "note"
"""The source of the notes that text agents store about callers."""

_NOTE_TAG: Final = "caller-note"
CALL_TITLE: Final = "Voice Call Summary"
CALL_TAG: Final = "voice-session"
DEFAULT_NAMESPACE: Final = "default"
"""Where documents are that name no namespace, such as all of the gateway's own."""
NAMESPACE_TAG: Final = "namespace:"

_MORE: Final = 20  # extra results, to replace hidden ones
_MOST: Final = 1000


@dataclass(frozen=True, slots=True)
class Namespaces:
    """The namespaces that a request reads; `*` stands for all. A document has its namespace as a tag."""

    names: tuple[str, ...] = (DEFAULT_NAMESPACE,)

    @property
    def include_default(self) -> bool:
        return not {"*", DEFAULT_NAMESPACE}.isdisjoint(self.names)

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags that every document of these namespaces has, for the search index."""
        return () if len(self.names) > 1 or self.include_default else namespace_tags(self.names[0])

    def admit(self, document: Document) -> bool:
        return "*" in self.names or namespace_of(document) in self.names


def namespace_tags(name: str) -> tuple[str, ...]:
    return (f"{NAMESPACE_TAG}{name}",) if name not in ("", DEFAULT_NAMESPACE) else ()


def namespace_of(document: Document) -> str:
    names = (tag.removeprefix(NAMESPACE_TAG) for tag in document.tags if tag.startswith(NAMESPACE_TAG))
    return next(names, DEFAULT_NAMESPACE)


class VisibleDocuments:
    """A view of `store`, which was opened with the schema of the memory log: what a search finds, and deletion."""

    def __init__(
        self, store: MemoryStore, retention: Retention, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self.store = store
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._retention = retention
        self._now = now

    async def query(
        self, text: str, *, limit: int, tags: Sequence[str] = (), accepts: Callable[[Document], bool] = lambda _: True
    ) -> list[Hit]:
        """
        The documents nearest to `text` among those with every one of `tags` that `accepts` does not leave out.

        The title of all calls asks for calls, newest first: their words are all the same.
        """
        found, moment = [], self._now()
        is_title = text.strip().casefold() == CALL_TITLE.casefold()
        for asked in (limit, limit + _MORE, _MOST):  # nearly always nothing is hidden
            hits = await self.store.query(text, limit=asked, tags=tags)
            if is_title:
                calls = await self.store.newest(tags=(CALL_TAG, *tags), limit=asked)
                newest = [Hit(call, snippet(call.content, (), None), 1 / (60 + n)) for n, call in enumerate(calls, 1)]
                known = {call.id for call in calls}
                hits = [*newest, *(hit for hit in hits if hit.document.id not in known)]
            found = [hit for hit in hits if accepts(hit.document) and self._is_visible(hit.document, moment)]
            if len(found) >= limit or len(hits) < asked:
                break
        return found[:limit]

    async def delete(self, document_id: str) -> None:
        await self.store.delete(document_id)
        await self._facts.document_deleted(document_id)
        await self._pins.document_deleted(document_id)

    def oldest_fact(self, agent: str) -> datetime | None:
        """The time before which facts are hidden; None without a limit."""
        return self._retention.oldest(agent, self._now())

    def _is_visible(self, document: Document, now: datetime) -> bool:
        agent = next((tag.removeprefix("agent:") for tag in document.tags if tag.startswith("agent:")), "")
        return self._retention.is_current(document, agent, now)


class CallerNotes:
    """The memory of callers, for text agents, and their notes in it. An empty caller or agent stands for all."""

    def __init__(self, documents: VisibleDocuments, forget: Callable[[str, str], Awaitable[int]]) -> None:
        self._documents = documents
        self._forget = forget

    async def search(self, query: str, *, caller: str, agent: str, limit: int) -> Sequence[Hit]:
        return await self._documents.query(query, limit=limit, tags=_tags(caller, agent))

    async def remember(self, content: str, *, caller: str, agent: str) -> str:
        note = NewDocument("Note", content, NOTE, (_NOTE_TAG, *_tags(caller, agent)))
        return (await self._documents.store.create(note)).id

    async def forget(self, document_id: str, *, caller: str, agent: str) -> None:
        """Delete a document of this caller and agent. Raises DocumentNotFound."""
        tags = (await self._documents.store.get(document_id)).tags
        if not set(_tags(caller, agent)) <= set(tags):
            raise DocumentNotFound(document_id)
        await self._documents.delete(document_id)

    async def forget_caller(self, *, caller: str, agent: str) -> int:
        return await self._forget(agent, caller)


async def newest_notes(store: MemoryStore, agent: str, caller: str, limit: int) -> list[Fact]:
    """The last notes for an agent about a caller, as facts for the prompt: at most 300 characters of each."""
    notes = await store.newest(tags=(_NOTE_TAG, *_tags(caller, agent)), limit=limit)
    texts = [textwrap.shorten(note.content, 300, placeholder="…") for note in notes]
    return [
        Fact(note.id, text, NOTE, 1.0, "", (), note.created_at, note.updated_at)
        for note, text in zip(notes, texts, strict=True)
    ]


def _tags(caller: str, agent: str) -> tuple[str, ...]:
    return tuple(f"{kind}:{name}" for kind, name in (("agent", agent), ("caller", caller)) if name)
