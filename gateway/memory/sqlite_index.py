"""
The index of the embedded store: words by FTS5, vectors as bytes.

Triggers do the bookkeeping: what is stored or changed is in the index at once, and lacks vectors from that moment on;
what is deleted takes both with it. One row holds the vectors of all parts of a document, one after the other.
"""

import sqlite3
from collections.abc import Hashable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import orjson

from gateway.memory.database import Connection
from gateway.memory.embeddings.embedder import MODEL
from gateway.memory.index import MOST_CANDIDATES, NARROW_SCOPE, MemberRow, Unembedded, carries, token

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import Vectors

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS document_tags (
        tag TEXT PRIMARY KEY,
        documents INTEGER NOT NULL) WITHOUT ROWID""",
    """CREATE VIRTUAL TABLE IF NOT EXISTS document_words USING fts5(
        title, content, scope, content='documents', content_rowid='key', tokenize='porter unicode61')""",
    # An index over another table's text is kept in step by triggers (FTS5 documentation, 4.4.3).
    """CREATE TRIGGER IF NOT EXISTS documents_inserted AFTER INSERT ON documents BEGIN
        INSERT INTO document_words (rowid, title, content, scope)
            VALUES (new.key, new.title, new.content, new.scope);
        INSERT INTO document_tags SELECT value, 1 FROM json_each(new.tags) WHERE true
            ON CONFLICT (tag) DO UPDATE SET documents = documents + 1;
    END""",
    """CREATE TRIGGER IF NOT EXISTS documents_deleted AFTER DELETE ON documents BEGIN
        INSERT INTO document_words (document_words, rowid, title, content, scope)
            VALUES ('delete', old.key, old.title, old.content, old.scope);
        UPDATE document_tags SET documents = documents - 1 WHERE tag IN (SELECT value FROM json_each(old.tags));
        DELETE FROM document_tags WHERE documents = 0;
    END""",
    """CREATE TRIGGER IF NOT EXISTS documents_updated AFTER UPDATE OF title, content ON documents BEGIN
        INSERT INTO document_words (document_words, rowid, title, content, scope)
            VALUES ('delete', old.key, old.title, old.content, old.scope);
        INSERT INTO document_words (rowid, title, content, scope)
            VALUES (new.key, new.title, new.content, new.scope);
    END""",
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

_MEMBER: Final = "d.tags, d.key, length(d.content), d.metadata, d.created_at, v.vectors"
_WITH_VECTORS: Final = "JOIN documents d ON d.key = w.key LEFT JOIN document_vectors v ON v.key = d.key AND v.model = ?"


class SqliteIndex:
    """An Index in SQLite. It keeps nothing itself."""

    # Search

    def state(self, connection: Connection, tags: tuple[str, ...]) -> Hashable | None:
        if not tags or _rarest(connection, tags)[1] > NARROW_SCOPE:
            return None
        # The first number tells of changes by other connections, the second of ours.
        assert isinstance(connection, sqlite3.Connection)
        return connection.execute("PRAGMA data_version").fetchone()[0], connection.total_changes

    def members(self, connection: Connection, tags: tuple[str, ...]) -> Iterable[MemberRow]:
        return connection.execute(
            f"""SELECT {_MEMBER} FROM (SELECT rowid AS key FROM document_words WHERE document_words MATCH ?) w
                {_WITH_VECTORS}""",
            (_scope_match(_rarest(connection, tags)[0]), MODEL),
        )

    def having(self, connection: Connection, tags: tuple[str, ...], words: Sequence[str]) -> dict[str, list[int]]:
        scope_match = _scope_match(_rarest(connection, tags)[0])
        query = "SELECT rowid FROM document_words WHERE document_words MATCH ?"
        matches = {word: f"{scope_match} AND {_word_match(word)}" for word in words}
        return {word: [key for (key,) in connection.execute(query, (match,))] for word, match in matches.items()}

    def candidates(
        self, connection: Connection, tags: tuple[str, ...], words: Sequence[str], near: "Vectors | None"
    ) -> Iterable[tuple[float, MemberRow]]:
        """Words decide alone: every vector of the store would have to be looked at."""
        if not words:
            return []
        match = _word_match(*words)
        rows = connection.execute(
            f"""SELECT w.score, {_MEMBER} FROM (
                    SELECT rowid AS key, -bm25(document_words, 1, 1, 0) AS score FROM document_words
                    WHERE document_words MATCH ? ORDER BY score DESC LIMIT {MOST_CANDIDATES}) w {_WITH_VECTORS}""",
            (f"{_scope_match(*tags)} AND {match}" if tags else match, MODEL),
        )
        return ((score, row) for score, *row in rows)

    def newest(self, connection: Connection, tags: tuple[str, ...], limit: int) -> list[int]:
        if self.state(connection, tags) is not None:
            rows = connection.execute(
                """SELECT d.key, d.tags FROM document_words w JOIN documents d ON d.key = w.rowid
                    WHERE document_words MATCH ? ORDER BY d.created_at DESC, d.key DESC""",
                (_scope_match(_rarest(connection, tags)[0]),),
            )
        else:
            rows = connection.execute("SELECT key, tags FROM documents ORDER BY created_at DESC, key DESC")
        return list(islice((key for key, own_tags in rows if carries(own_tags, tags)), limit))

    def purge(self, connection: Connection) -> None:
        """A deleted document's words stand in the full text index until it is made anew."""
        connection.execute("INSERT INTO document_words (document_words) VALUES ('rebuild')")

    # Vectors

    def has_vectors(self, connection: Connection) -> bool:
        return connection.execute("SELECT 1 FROM document_vectors LIMIT 1").fetchone() is not None

    def renew_vectors(self, connection: Connection) -> None:
        """The oldest tells whether there are any, since it is renewed last."""
        row = connection.execute("SELECT model FROM document_vectors ORDER BY key LIMIT 1").fetchone()
        if row is not None and row[0] != MODEL:
            connection.execute(
                "INSERT OR IGNORE INTO unembedded_documents SELECT key FROM document_vectors WHERE model <> ?", (MODEL,)
            )

    def missing_vectors(self, connection: Connection, wanted: Sequence[int], limit: int) -> list[Unembedded]:
        statement = "SELECT d.key, d.content FROM unembedded_documents u JOIN documents d ON d.key = u.key"
        rows = connection.execute(
            f"{statement} WHERE u.key IN (SELECT value FROM json_each(?)) LIMIT ?",
            (orjson.dumps(wanted).decode(), limit),
        ).fetchall()
        rows = rows or connection.execute(f"{statement} ORDER BY u.key DESC LIMIT ?", (limit,)).fetchall()
        return [Unembedded(key, content) for key, content in rows]

    def keep_vectors(self, connection: Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
        for document, vectors in made:
            kept = connection.execute(
                "INSERT OR REPLACE INTO document_vectors SELECT key, ?, ? FROM documents WHERE key = ? AND content = ?",
                (MODEL, vectors, document.key, document.content),
            )
            if kept.rowcount:
                connection.execute("DELETE FROM unembedded_documents WHERE key = ?", (document.key,))


def _rarest(connection: Connection, tags: tuple[str, ...]) -> tuple[str, int]:
    """The tag that fewest documents carry, and how many those are."""
    counts = dict.fromkeys(tags, 0)
    marks = ", ".join("?" * len(tags))
    counts.update(connection.execute(f"SELECT tag, documents FROM document_tags WHERE tag IN ({marks})", tags))
    return min(counts.items(), key=lambda item: item[1])


def _scope_match(*tags: str) -> str:
    return f"scope : ({' AND '.join(map(token, tags))})"


def _word_match(*words: str) -> str:
    quoted = " OR ".join(f'"{word}"' for word in words)
    return f"{{title content}} : ({quoted})"
