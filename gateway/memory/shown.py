"""What a search tells of, whoever asks: not of facts that were superseded, nor of what is too old to be told."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Protocol

from gateway.memory import facts, pins
from gateway.memory.documents import Document, DocumentStore, Hit
from gateway.memory.retention import Retention

_AGENT: Final = "agent:"
_MORE: Final = 20  # asked for in place of what is not to be told


class Search(Protocol):
    """As a DocumentStore's `query`."""

    async def __call__(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]: ...


def shown(
    store: DocumentStore, retention: Retention, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> Search:
    """The store's search without what is not to be told any more; what is too old is not, from the moment it is."""

    async def search(text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        found, moment = [], now()
        for more in (0, _MORE):  # nearly always all of it may be told
            hits = await store.query(text, limit=limit + more, tags=tags)
            found = [hit for hit in hits if _is_shown(hit.document, retention, moment)]
            if len(found) == len(hits):
                break
        return found[:limit]

    return search


def _is_shown(document: Document, retention: Retention, now: datetime) -> bool:
    agent = next((tag.removeprefix(_AGENT) for tag in document.tags if tag.startswith(_AGENT)), "")
    oldest = retention.oldest(agent, now)
    return facts.is_shown(document, oldest) and pins.is_shown(document, oldest)
