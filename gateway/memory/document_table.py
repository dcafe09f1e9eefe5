"""The table of documents, and what is done with one of them inside a transaction."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import orjson

from gateway.errors import DocumentNotFound
from gateway.memory.database import Connection
from gateway.memory.documents import Document, NewDocument
from gateway.memory.index import index_text

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS documents (
        key INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        title TEXT NOT NULL,
        content TEXT NOT NULL,
        source TEXT NOT NULL,
        tags TEXT NOT NULL,
        scope TEXT NOT NULL,
        created_at TEXT NOT NULL,
        updated_at TEXT NOT NULL,
        metadata TEXT NOT NULL,
        source_id TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX IF NOT EXISTS documents_by_source ON documents (source_id) WHERE source_id <> ''",
    "CREATE INDEX IF NOT EXISTS documents_by_age ON documents (created_at, key)",
)

_FIELDS: Final = "id, title, content, source, tags, created_at, updated_at, metadata, source_id"
_AT_ONCE: Final = 500  # a statement has room for some thousand parameters


def create_document(connection: Connection, new: NewDocument, moment: datetime) -> Document:
    """Keep it, or return the one already kept under the same `source_id`."""
    if new.source_id and (existing := find_document(connection, "source_id = ?", new.source_id)):
        return existing
    document_id = str(uuid.uuid4())
    connection.execute(
        f"INSERT INTO documents ({_FIELDS}, scope) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            document_id,
            new.title,
            new.content,
            new.source,
            orjson.dumps(list(dict.fromkeys(new.tags))).decode(),
            time_text(new.created_at or moment),
            time_text(moment),
            orjson.dumps(new.metadata).decode(),
            new.source_id,
            index_text(new.tags),
        ),
    )
    return get_document(connection, document_id)


def replace_document(
    connection: Connection, document_id: str, content: str, title: str | None, moment: datetime
) -> Document:
    connection.execute(
        "UPDATE documents SET content = ?, title = coalesce(?, title), updated_at = ? WHERE id = ?",
        (content, title, time_text(moment), document_id),
    )
    return get_document(connection, document_id)


def find_documents(connection: Connection, keys: Sequence[int]) -> list[tuple[int, Document]]:
    """Those that are still there, in the order of keys."""
    found: dict[int, Document] = {}
    for first in range(0, len(keys), _AT_ONCE):
        some = keys[first : first + _AT_ONCE]
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


def _document(row: Sequence[str]) -> Document:
    id_, title, content, source, tags, created_at, updated_at, metadata, source_id = row
    return Document(
        id=id_,
        title=title,
        content=content,
        source=source,
        tags=tuple(orjson.loads(tags)),
        created_at=datetime.fromisoformat(created_at),
        updated_at=datetime.fromisoformat(updated_at),
        metadata=orjson.loads(metadata),
        source_id=source_id,
    )


def time_text(time: datetime) -> str:
    """Always the same width, so that text order is time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
