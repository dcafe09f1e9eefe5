"""
The embedded store: one SQLite file with a full text index and, where there is a model, vectors.

All SQL runs on one thread that the store owns. A document is found by its words as soon as it is stored, by its
meaning a little later: vectors are made in the background, for the newest documents first.
"""

import asyncio
import logging
import os
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

import orjson

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.memory import search, vectors
from gateway.memory.documents import Document, Hit, NewDocument
from gateway.memory.embedding import Embedder
from gateway.memory.passages import parts, snippet

if TYPE_CHECKING:
    from gateway.memory.minilm import Reading

T = TypeVar("T")

_SCHEMA: Final = (
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
    *vectors.SCHEMA,
)

_FIELDS: Final = "id, title, content, source, tags, created_at, updated_at, metadata, source_id"
_FILL_SCORE: Final = 0.001
_RETRY_SECONDS: Final = 10.0

_log = logging.getLogger(__name__)


class SqliteStore:
    """
    A DocumentStore in one file. Made by `open`; `close` it.

    A document is on disk when `create` returns: a killed process loses nothing. A power cut can take back the last
    moments, always whole transactions.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        thread: ThreadPoolExecutor,
        now: Callable[[], datetime],
        embedder: Embedder | None,
        embed_after: float,
    ) -> None:
        self._connection = connection
        self._thread = thread
        self._now = now
        self._open = True
        self._scopes = search.Scopes()
        self._embedder = embedder
        self._has_vectors = False
        self._wanted: list[int] = []  # documents that a query would have liked to know by meaning
        self._lacks_vectors = asyncio.Event()
        self._embedding = asyncio.create_task(self._embed_all(embedder, embed_after)) if embedder else None

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        schema: Sequence[str] = (),
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        embedder: Embedder | None = None,
        embed_after: float = 2.0,
    ) -> Self:
        """
        Open the file, making it and its folder if need be. `schema` is for other tables that live in it.

        With an embedder, which is the store's to close from then on, documents are also found by their meaning. It
        starts on them after some seconds: whoever has just opened the store has other things to do.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            loop = asyncio.get_running_loop()
            connection = await loop.run_in_executor(thread, _connect, path, (*_SCHEMA, *schema))
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise StoreUnavailable(f"can't open {path}: {error}") from error
        return cls(connection, thread, now, embedder, embed_after)

    async def close(self) -> None:
        """Finish what is under way and close the file. Doing it twice does no harm."""
        if self._open:
            self._open = False
            if self._embedder and self._embedding:
                self._embedding.cancel()
                await asyncio.wait([self._embedding])
                self._embedder.close()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connection.close)
            self._thread.shutdown(wait=False)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """
        Do `work` on the store's thread in one transaction: all of it is kept, or nothing when it raises.

        No other process writes meanwhile, so that what `work` reads is still true when it writes.
        """
        return await self.look(lambda _: self._transact(work))

    async def look(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do `work` that changes nothing. It waits for nobody who writes."""
        if not self._open:
            raise StoreUnavailable("the embedded store is closed")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._connection)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the embedded store failed: {error}") from error

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            return work(self._connection)

    # Documents

    async def create(self, new: NewDocument) -> Document:
        moment = self._now()
        return await self._store(lambda connection: _create(connection, new, moment))

    async def get(self, document_id: str) -> Document:
        return await self.look(lambda connection: _get(connection, document_id))

    async def replace(self, document_id: str, content: str, *, title: str | None = None) -> Document:
        moment = self._now()
        return await self._store(lambda connection: _replace(connection, document_id, content, title, moment))

    async def append(self, document_id: str, content: str) -> Document:
        moment = self._now()

        def work(connection: sqlite3.Connection) -> Document:
            before = _get(connection, document_id).content
            return _replace(connection, document_id, f"{before}\n{content}", None, moment)

        return await self._store(work)

    async def delete(self, document_id: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute("DELETE FROM documents WHERE id = ?", (document_id,)).rowcount:
                raise DocumentNotFound(document_id)

        await self.run(work)

    async def query(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        every = tuple(tags)
        reading = await self._read(text, every)
        question = search.Question(text, reading)
        return await self.look(lambda connection: _query(connection, question, limit, every, self._scopes))

    async def newest(self, *, tags: Sequence[str], limit: int) -> list[Document]:
        return await self.look(lambda connection: _newest(connection, tuple(tags), limit))

    async def by_source_ids(self, source_ids: Iterable[str]) -> list[Document]:
        """The documents that were made of these; one that there is none of is left out."""
        ids = list(source_ids)

        def work(connection: sqlite3.Connection) -> list[Document]:
            found = (_find(connection, "source_id = ? AND source_id <> ''", id_) for id_ in ids)
            return [document for document in found if document]

        return await self.look(work)

    async def _store(self, work: Callable[[sqlite3.Connection], Document]) -> Document:
        document = await self.run(work)
        self._lacks_vectors.set()
        return document

    # Vectors

    async def _read(self, text: str, tags: tuple[str, ...]) -> "Reading | None":
        """A question as the model sees it. No model is loaded before a document has vectors."""
        if self._embedder is None or not self._open:
            return None
        self._has_vectors = self._has_vectors or await self.look(vectors.are_there)
        if not self._has_vectors:
            return None
        # The scope is looked up meanwhile, so that the search finds it at hand.
        reading, _ = await asyncio.gather(
            self._embedder.read(text), self.look(lambda connection: self._prepare(connection, tags))
        )
        return reading

    def _prepare(self, connection: sqlite3.Connection, tags: tuple[str, ...]) -> None:
        if search.is_narrow(connection, tags):
            self._wanted = self._scopes.get(connection, tags).without_vectors or self._wanted

    async def _embed_all(self, embedder: Embedder, after: float) -> None:
        """Give documents their vectors, until cancelled or there is no model."""
        await asyncio.sleep(after)
        while True:
            try:
                if await self.look(vectors.are_there):  # then a question is likely, and should not wait for the model
                    await embedder.warm_up()
                if await self.look(vectors.are_outdated):
                    await self.run(vectors.renew)
                while await self._embed_some(embedder):
                    pass
                return
            except StoreUnavailable as error:
                _log.warning("vectors can't be kept", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _embed_some(self, embedder: Embedder) -> bool:
        """The next few documents, or wait until there are some; false without a model."""
        self._lacks_vectors.clear()
        documents = await self.look(lambda connection: vectors.missing(connection, self._wanted))
        if not documents:
            return await self._lacks_vectors.wait()
        made: list[tuple[vectors.Unembedded, bytes]] = []
        for document in documents:
            embedded = await embedder.embed(parts(document.content))
            if embedded is None:
                return False
            made.append((document, embedded))
        await self.run(lambda connection: vectors.keep(connection, made))
        return True


# The file


def _connect(path: Path, schema: Sequence[str]) -> sqlite3.Connection:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # SQLite gives its side files the mode of the main one.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    path.chmod(0o600)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        with connection:
            for statement in schema:
                connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


# One document


def _create(connection: sqlite3.Connection, new: NewDocument, moment: datetime) -> Document:
    if new.source_id and (existing := _find(connection, "source_id = ?", new.source_id)):
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
            _time_text(new.created_at or moment),
            _time_text(moment),
            orjson.dumps(new.metadata).decode(),
            new.source_id,
            search.index_text(new.tags),
        ),
    )
    return _get(connection, document_id)


def _replace(
    connection: sqlite3.Connection, document_id: str, content: str, title: str | None, moment: datetime
) -> Document:
    connection.execute(
        "UPDATE documents SET content = ?, title = coalesce(?, title), updated_at = ? WHERE id = ?",
        (content, title, _time_text(moment), document_id),
    )
    return _get(connection, document_id)


def _get(connection: sqlite3.Connection, document_id: str) -> Document:
    if document := _find(connection, "id = ?", document_id):
        return document
    raise DocumentNotFound(document_id)


def _find(connection: sqlite3.Connection, condition: str, value: str | int) -> Document | None:
    row = connection.execute(f"SELECT {_FIELDS} FROM documents WHERE {condition}", (value,)).fetchone()
    return _document(row) if row else None


def _document(row: tuple[str, ...]) -> Document:
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


def _time_text(time: datetime) -> str:
    """Always the same width, so that text order is time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


# Search


def _query(
    connection: sqlite3.Connection,
    question: search.Question,
    limit: int,
    tags: tuple[str, ...],
    scopes: search.Scopes,
) -> list[Hit]:
    if search.is_narrow(connection, tags):
        matches = search.search_scope(connection, scopes.get(connection, tags), tags, question)
        return _hits(connection, matches[:limit], question.words)
    hits = _hits(connection, search.search_all(connection, tags, question)[:limit], question.words)
    return hits + _fill(connection, tags, hits, limit) if tags else hits


def _hits(connection: sqlite3.Connection, matches: Iterable[search.Match], words: Sequence[str]) -> list[Hit]:
    hits = []
    for rank, match in enumerate(matches, 1):
        if document := _find(connection, "key = ?", match.key):
            score = 1 / (60 + rank) if match.found else _FILL_SCORE
            hits.append(Hit(document, snippet(document.content, words, match.part), score))
    return hits


def _fill(connection: sqlite3.Connection, tags: tuple[str, ...], found: list[Hit], limit: int) -> list[Hit]:
    """The newest of the scope, where words found too few: who asks about a caller gets what there is."""
    known = {hit.document.id for hit in found}
    others = _newest(connection, tags, limit) if len(found) < limit else []
    fill = [Hit(document, snippet(document.content, (), None), _FILL_SCORE) for document in others]
    return [hit for hit in fill if hit.document.id not in known][: limit - len(found)]


def _newest(connection: sqlite3.Connection, tags: tuple[str, ...], limit: int) -> list[Document]:
    keys = search.newest(connection, tags, limit)
    return [document for key in keys if (document := _find(connection, "key = ?", key))]
