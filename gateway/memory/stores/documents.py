"""Documents, and the table that they are in."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from typing import Any, Final

import orjson

from gateway.errors import DocumentNotFound
from gateway.memory.stores.database import Connection, batches, tables

SCHEMA: Final = tables("documents")

_FIELDS: Final = "id, title, content, source, tags, created_at, updated_at, metadata, source_id"
BY_SOURCE_ID: Final = "source_id <> '' AND source_id = ?"
"""Without the first part SQLite does not use the index, and reads all documents."""


@dataclass(frozen=True, slots=True)
class Document:
    """A stored document. Times are aware and in UTC."""

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
    A document to create.

    `source_id` identifies its subject at its origin, such as a call: a store keeps one document for each. Without
    `created_at` the time of storing is used.
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
    """A document that a query found. Scores are tiny; they only rank."""

    document: Document
    snippet: str
    score: float


def parse_tags(value: object) -> tuple[str, ...]:
    """Tags from a comma-separated string or a list, trimmed and unique, in order. Raises ValueError."""
    if value is None:
        return ()
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise ValueError("tags must be a string or a list of strings")
    return tuple(dict.fromkeys(tag for item in items if (tag := item.strip())))


def wire_time(time: datetime) -> str:
    """A time in UTC, as the HTTP API writes it."""
    return time.isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """An ISO 8601 time as UTC; one without an offset is taken as UTC. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text)
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("not an ISO 8601 time") from None
    if time.year in (MINYEAR, MAXYEAR):  # programs write them for "no time", and not every time zone can show them
        raise ValueError("not an ISO 8601 time that a clock can show")
    return time


# Tags


def token(tag: str) -> str:
    """A tag as the search index holds it: a number, which no stemmer changes. So a tag is data, never a pattern."""
    return str(int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=16).digest(), "big"))


def index_text(tags: Sequence[str]) -> str:
    """Tags as the search index, and the column `scope`, hold them."""
    return " ".join(map(token, tags))


def carries(own_tags: str, tags: Sequence[str]) -> bool:
    """Whether a document with the stored value `own_tags` has all of `tags`."""
    return set(tags) <= set(orjson.loads(own_tags))


def carrying(*tags: str) -> tuple[str, tuple[str, ...]]:
    """A condition for documents with every tag, and its parameters. It scans the table."""
    condition = " AND ".join(["' ' || scope || ' ' LIKE ?"] * len(tags))
    return condition, tuple(f"% {token(tag)} %" for tag in tags)


# In a transaction


def create_document(connection: Connection, new: NewDocument, now: datetime, *, document_id: str = "") -> Document:
    """Store a new document, or return the one that has the same `source_id`."""
    if new.source_id and (existing := find_document(connection, BY_SOURCE_ID, new.source_id)):
        return existing
    document_id, tags = document_id or str(uuid.uuid4()), json_text(list(dict.fromkeys(new.tags)))
    created_at, updated_at, metadata = time_text(new.created_at or now), time_text(now), json_text(new.metadata)
    connection.execute(
        f"INSERT INTO documents ({_FIELDS}, scope) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (document_id, new.title, new.content, new.source, tags, created_at, updated_at, metadata, new.source_id)
        + (index_text(new.tags),),
    )
    return get_document(connection, document_id)


def find_documents(connection: Connection, keys: Sequence[int]) -> list[tuple[int, Document]]:
    """The documents that still exist, in the order of `keys`."""
    found: dict[int, Document] = {}
    for some in batches(keys):
        marks = ", ".join("?" * len(some))
        rows = connection.execute(f"SELECT key, {_FIELDS} FROM documents WHERE key IN ({marks})", some)
        found |= {key: _document(row) for key, *row in rows}
    return [(key, found[key]) for key in keys if key in found]


def get_document(connection: Connection, document_id: str) -> Document:
    if document := find_document(connection, "id = ?", document_id):
        return document
    raise DocumentNotFound(document_id)


def find_document(connection: Connection, condition: str, value: str) -> Document | None:
    row = connection.execute(f"SELECT {_FIELDS} FROM documents WHERE {condition}", (value,)).fetchone()
    return _document(row) if row else None


def json_text(value: object) -> str:
    return orjson.dumps(value).decode()


def time_text(time: datetime) -> str:
    """A time in UTC with a fixed width, so that text order is time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


def _document(row: Sequence[str]) -> Document:
    id_, title, content, source, tags, created_at, updated_at, metadata, source_id = row
    times = datetime.fromisoformat(created_at), datetime.fromisoformat(updated_at)
    return Document(id_, title, content, source, tuple(orjson.loads(tags)), *times, orjson.loads(metadata), source_id)
