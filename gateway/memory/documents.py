"""Documents and the store that keeps them, as every other room sees it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Document:
    """One stored document. Times are aware and in UTC."""

    id: str
    title: str
    content: str
    source: str
    tags: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    metadata: dict[str, Any] = field(default_factory=dict)
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class NewDocument:
    """
    What is given to create a document.

    `source_id` names the thing it tells of, at its origin: a store keeps one document for each. Without
    `created_at` it is the moment of storing.
    """

    title: str
    content: str
    source: str = "api"
    tags: tuple[str, ...] = ()
    created_at: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a query found. Scores are tiny; they rank and mean nothing else."""

    document: Document
    snippet: str
    score: float


class DocumentStore(Protocol):
    """Keeps documents. All methods raise StoreUnavailable; those that take an id raise DocumentNotFound."""

    async def create(self, new: NewDocument) -> Document:
        """Keep a new document, or return the one already kept under the same `source_id`."""

    async def get(self, document_id: str) -> Document: ...

    async def replace(self, document_id: str, content: str, *, title: str | None = None) -> Document:
        """Give it other content; the title stays when none is given, the tags always."""

    async def append(self, document_id: str, content: str) -> Document:
        """Put `content` after what is there, on a new line."""

    async def delete(self, document_id: str) -> None: ...

    async def query(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        """The documents nearest to `text` that carry every one of `tags`, best first."""

    async def newest(self, *, tags: Sequence[str], limit: int) -> list[Document]:
        """The last documents that carry every one of `tags`, newest first."""


def parse_tags(value: object) -> tuple[str, ...]:
    """Tags from a comma separated string or a list: trimmed, none empty, none twice, in order; else ValueError."""
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("tags must be a string or a list of strings")
    return tuple(dict.fromkeys(tag for item in items if (tag := item.strip())))


def wire_time(time: datetime) -> str:
    """A time in UTC as clients of the store read it."""
    return time.isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """
    An ISO 8601 time as UTC; one without an offset is UTC already. ValueError otherwise.

    So for the first and last year there is, which not every zone's clock can show: they are written for no time at all.
    """
    try:
        time = datetime.fromisoformat(text)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("not an ISO 8601 time") from None
    if time.year in (MINYEAR, MAXYEAR):
        raise ValueError("not an ISO 8601 time that a clock can show")
    return time
