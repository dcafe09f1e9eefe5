"""Notes that a text agent leaves about a caller, beside what calls have left: one memory for both."""

from collections.abc import Sequence
from typing import Final

from gateway.memory.documents import DocumentStore, Hit, NewDocument
from gateway.memory.pins import PinBook
from gateway.memory.state import CallerState

SOURCE: Final = "note"
_AT_ONCE: Final = 1000


class CallerNotes:
    """What is known of callers, for text agents. An empty caller or agent stands for all. Raises StoreError."""

    def __init__(self, store: DocumentStore, state: CallerState, pins: PinBook) -> None:
        self._store = store
        self._state = state
        self._pins = pins

    async def search(self, query: str, *, caller: str, agent: str, limit: int) -> Sequence[Hit]:
        return await self._store.query(query, limit=limit, tags=_tags(caller, agent))

    async def remember(self, content: str, *, caller: str, agent: str) -> str:
        note = NewDocument("Note", content, SOURCE, ("caller-note", *_tags(caller, agent)))
        return (await self._store.create(note)).id

    async def forget(self, document_id: str) -> None:
        await self._store.delete(document_id)

    async def forget_caller(self, *, caller: str, agent: str) -> int:
        forgotten = await self._state.forget(agent, caller) + await self._pins.forget(agent, caller)
        while documents := await self._store.newest(tags=_tags(caller, agent), limit=_AT_ONCE):
            for document in documents:
                await self._store.delete(document.id)
            forgotten += len(documents)
        return forgotten


def _tags(caller: str, agent: str) -> tuple[str, ...]:
    return tuple(f"{kind}:{name}" for kind, name in (("agent", agent), ("caller", caller)) if name)
