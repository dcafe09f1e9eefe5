"""
The embedded store: one SQLite file with a full-text index (FTS5) and, where there is a model, vectors.

Triggers keep the index in step: a stored or changed document is indexed at once and waits for vectors from then on; a
deleted one takes both with it. One row holds the vectors of all parts of a document, concatenated.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar, Unpack

from gateway.errors import StoreUnavailable
from gateway.memory.embeddings.embedder import MODEL
from gateway.memory.stores import documents
from gateway.memory.stores.database import (
    MOST_CANDIDATES,
    NARROW_SCOPE,
    Connection,
    MemberRow,
    Schema,
    Unembedded,
    tables,
)
from gateway.memory.stores.documents import carries, json_text, token
from gateway.memory.stores.store import MemoryStore, StoreOptions

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import SignIndex, Vectors

T = TypeVar("T")

_GIVEN_KEYS: Final = "(SELECT value AS key FROM json_each(?)) w"
_MOST_NEAR: Final = 400  # vectors: with so few, the ten nearest ones are nearly always among them
_OF_OTHERS: Final = 10  # times as many are looked at if only some documents are wanted
_POSITIVE: Final = b"1" * 128 + b"0" * 128
_MEMBER: Final = "d.tags, d.key, d.id, length(d.content), d.metadata, d.created_at, v.vectors"
_WITH_VECTORS: Final = "JOIN documents d ON d.key = w.key LEFT JOIN document_vectors v ON v.key = d.key AND v.model = ?"


class SqliteStore(MemoryStore):
    """
    A MemoryStore in one file; made by `open`. All SQL runs on two threads that the store owns, each with its own
    connection: one for queries that wait for the model, one for everything else.

    A document is on disk when `create` returns: a killed process loses nothing. A power failure can undo the last
    moments, always whole transactions.
    """

    description = "embedded"

    def __init__(
        self, path: Path, connection: sqlite3.Connection, thread: ThreadPoolExecutor, **options: Unpack[StoreOptions]
    ) -> None:
        self._path = path
        self._connection = connection
        self._thread = thread
        self._query_connection: sqlite3.Connection | None = None
        self._query_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queries")
        super().__init__(SqliteIndex(), **options)

    @classmethod
    async def open(cls, path: Path, *, schema: Schema = (), **options: Unpack[StoreOptions]) -> Self:
        """Open the file, creating it and its folder if needed. `schema` is for other tables in it."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            loop = asyncio.get_running_loop()
            connection = await loop.run_in_executor(
                thread, _connect, path, (*documents.SCHEMA, *tables("sqlite"), *schema)
            )
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            reason = (isinstance(error, OSError) and error.strerror) or error
            raise StoreUnavailable(f"can't open {path}: {reason}") from error
        return cls(path, connection, thread, **options)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Other processes wait until the transaction ends."""

        def transact(_: Connection) -> T:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                return work(self._connection)

        done = await self.look(transact)
        self._lacks_vectors.set()  # the work may have created documents
        return done

    async def look(self, work: Callable[[Connection], T]) -> T:
        return await self._on(self._thread, lambda: work(self._connection))

    async def ask(self, work: Callable[[Connection], T]) -> T:
        def read() -> T:
            if self._query_connection is None:
                self._query_connection = sqlite3.connect(self._path)
            self._query_connection.execute("BEGIN")
            try:
                return work(self._query_connection)
            finally:
                self._query_connection.rollback()

        return await self._on(self._query_thread, read)

    async def _on(self, thread: ThreadPoolExecutor, work: Callable[[], T]) -> T:
        if not self._open:
            raise StoreUnavailable("the embedded store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the embedded store failed: {error}") from error

    async def _disconnect(self) -> None:
        def close_queries() -> None:
            if self._query_connection is not None:
                self._query_connection.close()

        for thread, close in ((self._query_thread, close_queries), (self._thread, self._connection.close)):
            await asyncio.get_running_loop().run_in_executor(thread, close)
            thread.shutdown(wait=False)

    async def overwrite_deleted(self) -> None:
        await self.look(lambda connection: connection.execute("PRAGMA secure_delete = ON").fetchall())


def _connect(path: Path, schema: Schema) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its side files the mode of the main file. Do not open and close the file here: that would drop this
    # process's locks on it (POSIX advisory locks), and another process that closes it would then delete its WAL.
    path.touch(mode=0o600)
    path.chmod(0o600)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        for step in schema:
            if isinstance(step, str):
                connection.execute(step)
                continue
            exists = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (step.table,)
            if connection.execute(*exists).fetchone():
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    if connection.execute(*exists).fetchone():  # another process may have been faster
                        step.apply(connection)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class SqliteIndex:
    """An Index in SQLite. Searches of the whole store keep the signs of all vectors in memory: 48 bytes each."""

    def __init__(self) -> None:
        self._signs: SignIndex | None = None
        self._read_signs = 0

    # Search

    def state(self, connection: Connection, tags: tuple[str, ...]) -> Hashable | None:
        if not tags or _rarest(connection, tags)[1] > NARROW_SCOPE:
            return None
        # The first number changes with other connections' writes, the second with ours.
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
        match = _word_match(*words)
        rows = connection.execute(
            f"""SELECT rowid, -bm25(document_words, 1, 1, 0) AS score FROM document_words
                WHERE document_words MATCH ? ORDER BY score DESC LIMIT {MOST_CANDIDATES}""",
            (f"{_scope_match(*tags)} AND {match}" if tags else match,),
        )
        scores = dict.fromkeys(self._nearest(connection, tags, near), 0.0) | dict(rows)
        found = connection.execute(
            f"SELECT {_MEMBER} FROM {_GIVEN_KEYS} {_WITH_VECTORS}", (json_text(list(scores)), MODEL)
        )
        return [(scores[row[1]], row) for row in found]

    def _nearest(self, connection: Connection, tags: tuple[str, ...], near: "Vectors | None") -> list[int]:
        """The documents whose vectors have the most signs in common with `near`: enough to compare a few exactly."""
        if near is None:
            return []
        if self._signs is None:
            from gateway.memory.embeddings.vectors import SignIndex  # numpy takes a while to import

            self._signs = SignIndex()
        new = connection.execute(
            "SELECT number, key, signs FROM vector_signs WHERE number > ? ORDER BY number", (self._read_signs,)
        ).fetchall()
        if new:
            self._signs.update([(key, signs) for _, key, signs in new])
            self._read_signs = new[-1][0]
        nearest = self._signs.nearest(_signs(near.astype("<f4").tobytes()), _MOST_NEAR * (_OF_OTHERS if tags else 1))
        if tags:
            statement = f"SELECT d.key, d.tags FROM {_GIVEN_KEYS} JOIN documents d ON d.key = w.key"
            own = {
                key
                for key, own_tags in connection.execute(statement, (json_text(list(nearest)),))
                if carries(own_tags, tags)
            }
            nearest = [key for key in nearest if key in own]
        return nearest[:_MOST_NEAR]

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
        """Rebuild the full-text index, which otherwise still contains a deleted document's words."""
        connection.execute("INSERT INTO document_words (document_words) VALUES ('rebuild')")

    # Vectors

    def has_vectors(self, connection: Connection) -> bool:
        return connection.execute("SELECT 1 FROM document_vectors LIMIT 1").fetchone() is not None

    def renew_vectors(self, connection: Connection) -> None:
        """Only the oldest row is checked: it is renewed last. A store of an older version has no signs yet."""
        oldest = connection.execute("SELECT model FROM document_vectors ORDER BY key LIMIT 1").fetchone()
        if oldest and oldest != (MODEL,):
            connection.execute(
                "INSERT OR IGNORE INTO unembedded_documents SELECT key FROM document_vectors WHERE model <> ?", (MODEL,)
            )
        if not connection.execute("SELECT 1 FROM vector_signs LIMIT 1").fetchone():
            rows = connection.execute("SELECT key, vectors FROM document_vectors")
            _keep_signs(connection, rows)

    def missing_vectors(self, connection: Connection, wanted: Sequence[int], limit: int) -> list[Unembedded]:
        statement = "SELECT d.key, d.content FROM unembedded_documents u JOIN documents d ON d.key = u.key"
        rows = connection.execute(
            f"{statement} WHERE u.key IN (SELECT value FROM json_each(?)) LIMIT ?", (json_text(list(wanted)), limit)
        ).fetchall()
        return rows or connection.execute(f"{statement} ORDER BY u.key DESC LIMIT ?", (limit,)).fetchall()

    def keep_vectors(self, connection: Connection, made: Iterable[tuple[Unembedded, bytes]]) -> None:
        keep = "INSERT OR REPLACE INTO document_vectors SELECT key, ?, ? FROM documents WHERE key = ? AND content = ?"
        for (key, content), vectors in made:
            if connection.execute(keep, (MODEL, vectors, key, content)).rowcount:
                connection.execute("DELETE FROM unembedded_documents WHERE key = ?", (key,))
                connection.execute("DELETE FROM vector_signs WHERE key = ?", (key,))
                _keep_signs(connection, [(key, vectors)])


def _keep_signs(connection: Connection, embedded: Iterable[tuple[int, bytes]]) -> None:
    statement = "INSERT INTO vector_signs (key, signs) VALUES (?, ?)"
    connection.executemany(statement, ((key, _signs(vectors)) for key, vectors in embedded))


def _signs(vectors: bytes) -> bytes:
    """One bit for each number of some vectors: whether it is positive. The sign is the first bit of its last byte."""
    digits = vectors[3::4].translate(_POSITIVE)
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


def _rarest(connection: Connection, tags: tuple[str, ...]) -> tuple[str, int]:
    """The tag that the fewest documents have, and their number."""
    counts = dict.fromkeys(tags, 0)
    marks = ", ".join("?" * len(tags))
    counts.update(connection.execute(f"SELECT tag, documents FROM document_tags WHERE tag IN ({marks})", tags))
    return min(counts.items(), key=lambda item: item[1])


def _scope_match(*tags: str) -> str:
    return f"scope : ({' AND '.join(map(token, tags))})"


def _word_match(*words: str) -> str:
    quoted = " OR ".join(f'"{word}"' for word in words)
    return f"{{title content}} : ({quoted})"
