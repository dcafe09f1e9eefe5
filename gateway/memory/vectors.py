"""
The vectors of documents, in the store's own file, and which documents still lack theirs.

Triggers do the bookkeeping: what is stored or changed lacks vectors from that moment on, what is deleted takes them
with it. One row holds the vectors of all parts of a document, one after the other.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from gateway.memory.embedding import MODEL

SCHEMA: Final = (
    # Made from what a store of an older version has.
    "CREATE TABLE IF NOT EXISTS unembedded_documents AS SELECT key FROM documents",
    "CREATE UNIQUE INDEX IF NOT EXISTS unembedded_by_key ON unembedded_documents (key)",
    """CREATE TABLE IF NOT EXISTS document_vectors (
        key INTEGER PRIMARY KEY,
        model TEXT NOT NULL,
        vectors BLOB NOT NULL)""",
    """CREATE TRIGGER IF NOT EXISTS vectors_missing AFTER INSERT ON documents BEGIN
        INSERT OR IGNORE INTO unembedded_documents VALUES (new.key);
    END""",
    """CREATE TRIGGER IF NOT EXISTS vectors_outdated AFTER UPDATE OF content ON documents BEGIN
        DELETE FROM document_vectors WHERE key = new.key;
        INSERT OR IGNORE INTO unembedded_documents VALUES (new.key);
    END""",
    """CREATE TRIGGER IF NOT EXISTS vectors_deleted AFTER DELETE ON documents BEGIN
        DELETE FROM document_vectors WHERE key = old.key;
        DELETE FROM unembedded_documents WHERE key = old.key;
    END""",
)

_BATCH: Final = 8  # documents; each is in the search some 50 ms after the first of its batch was begun


@dataclass(frozen=True, slots=True)
class Unembedded:
    """A document that lacks vectors."""

    key: int
    content: str


def are_there(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM document_vectors LIMIT 1").fetchone() is not None


def are_outdated(connection: sqlite3.Connection) -> bool:
    """Whether another model made them. The oldest tells, since it is renewed last."""
    row = connection.execute("SELECT model FROM document_vectors ORDER BY key LIMIT 1").fetchone()
    return row is not None and row[0] != MODEL


def renew(connection: sqlite3.Connection) -> None:
    """Have those of other models made again."""
    connection.execute(
        "INSERT OR IGNORE INTO unembedded_documents SELECT key FROM document_vectors WHERE model <> ?", (MODEL,)
    )


def missing(connection: sqlite3.Connection, wanted: Sequence[int]) -> list[Unembedded]:
    """Some documents that lack vectors: of the wanted ones if there are any, else the newest."""
    statement = "SELECT d.key, d.content FROM unembedded_documents u JOIN documents d ON d.key = u.key"
    rows = connection.execute(
        f"{statement} WHERE u.key IN (SELECT value FROM json_each(?)) LIMIT {_BATCH}", (orjson.dumps(wanted).decode(),)
    ).fetchall()
    rows = rows or connection.execute(f"{statement} ORDER BY u.key DESC LIMIT {_BATCH}").fetchall()
    return [Unembedded(key, content) for key, content in rows]


def keep(connection: sqlite3.Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
    """Keep the vectors of documents that have not changed meanwhile."""
    for document, vectors in made:
        kept = connection.execute(
            "INSERT OR REPLACE INTO document_vectors SELECT key, ?, ? FROM documents WHERE key = ? AND content = ?",
            (MODEL, vectors, document.key, document.content),
        )
        if kept.rowcount:
            connection.execute("DELETE FROM unembedded_documents WHERE key = ?", (document.key,))
