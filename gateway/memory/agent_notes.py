"""Notes about callers that text agents store, in the same memory that calls use."""

import textwrap
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.memory.documents import Document, DocumentStore, Hit, NewDocument
from gateway.memory.facts import Fact

SOURCE: Final = "note"
_KIND: Final = "caller-note"
_MOST_CHARACTERS: Final = 300  # of a note in a prompt


class CallerNotes:
    """The memory of callers, for text agents. An empty caller or agent stands for all. Raises StoreError."""

    def __init__(self, store: DocumentStore, forget: Callable[[str, str], Awaitable[int]]) -> None:
        self._store = store
        self._forget = forget

    async def search(self, query: str, *, caller: str, agent: str, limit: int) -> Sequence[Hit]:
        return await self._store.query(query, limit=limit, tags=_tags(caller, agent))

    async def remember(self, content: str, *, caller: str, agent: str) -> str:
        note = NewDocument("Note", content, SOURCE, (_KIND, *_tags(caller, agent)))
        return (await self._store.create(note)).id

    async def forget(self, document_id: str) -> None:
        await self._store.delete(document_id)

    async def forget_caller(self, *, caller: str, agent: str) -> int:
        return await self._forget(agent, caller)


async def newest_notes(store: DocumentStore, agent: str, caller: str, limit: int) -> list[Fact]:
    """The last notes for an agent about a caller, as facts for the prompt."""
    notes = await store.newest(tags=(_KIND, *_tags(caller, agent)), limit=limit)
    return [_as_fact(note) for note in notes]


def _as_fact(note: Document) -> Fact:
    text = textwrap.shorten(note.content, _MOST_CHARACTERS, placeholder="…")
    return Fact(note.id, text, SOURCE, 1.0, "", (), note.created_at, note.updated_at)


def _tags(caller: str, agent: str) -> tuple[str, ...]:
    return tuple(f"{kind}:{name}" for kind, name in (("agent", agent), ("caller", caller)) if name)
