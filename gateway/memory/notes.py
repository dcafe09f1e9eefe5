"""Notes that a text agent leaves about a caller, beside what calls have left: one memory for both."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from gateway.memory.documents import DocumentStore, Hit, NewDocument

SOURCE: Final = "note"


class CallerNotes:
    """What is known of callers, for text agents. An empty caller or agent stands for all. Raises StoreError."""

    def __init__(self, store: DocumentStore, forget: Callable[[str, str], Awaitable[int]]) -> None:
        self._store = store
        self._forget = forget

    async def search(self, query: str, *, caller: str, agent: str, limit: int) -> Sequence[Hit]:
        return await self._store.query(query, limit=limit, tags=_tags(caller, agent))

    async def remember(self, content: str, *, caller: str, agent: str) -> str:
        note = NewDocument("Note", content, SOURCE, ("caller-note", *_tags(caller, agent)))
        return (await self._store.create(note)).id

    async def forget(self, document_id: str) -> None:
        await self._store.delete(document_id)

    async def forget_caller(self, *, caller: str, agent: str) -> int:
        return await self._forget(agent, caller)


def _tags(caller: str, agent: str) -> tuple[str, ...]:
    return tuple(f"{kind}:{name}" for kind, name in (("agent", agent), ("caller", caller)) if name)
