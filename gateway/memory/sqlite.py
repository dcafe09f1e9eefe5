"""
The embedded store: one SQLite file with a full text index.

A tag is data, never a pattern: the index holds a number for each tag, and the tags of what it finds are compared
whole. A query looks at its scope first and ranks only there, so its cost follows the size of the scope and not that
of the store. All SQL runs on one thread that the store owns.
"""

import asyncio
import hashlib
import math
import os
import re
import sqlite3
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, TypeVar

import orjson

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.memory.documents import Document, Hit, NewDocument

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
)

_FIELDS: Final = "id, title, content, source, tags, created_at, updated_at, metadata, source_id"
_NARROW_SCOPE: Final = 5000  # documents; above this FTS5 ranks faster than we do, and tags tell little
_MOST_WORDS: Final = 64
_MOST_QUERY_CHARACTERS: Final = 2000  # Remem's own clients cut here
_SNIPPET_CHARACTERS: Final = 500
_FILL_SCORE: Final = 0.001
_K1: Final = 1.2  # BM25's usual saturation, and a gentle preference for short documents
_B: Final = 0.4

# They stand in nearly every document: costly to look up, and they say nothing about which one is meant.
_STOP_WORDS: Final = frozenset(
    """a an and are as at be been but by can could did do does for from had has have he her him his how i if in is it
    its me my of on or our s she so t that the their them they this to was we were what when where which who whom
    whose why will with would you your""".split()
)


class SqliteStore:
    """
    A DocumentStore in one file. Made by `open`; `close` it.

    A document is on disk when `create` returns: a killed process loses nothing. A power cut can take back the last
    moments, always whole transactions.
    """

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, now: Callable[[], datetime]) -> None:
        self._connection = connection
        self._thread = thread
        self._now = now
        self._open = True

    @classmethod
    async def open(
        cls, path: Path, *, schema: Sequence[str] = (), now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> Self:
        """Open the file, making it and its folder if need be. `schema` is for other tables that live in it."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            loop = asyncio.get_running_loop()
            connection = await loop.run_in_executor(thread, _connect, path, (*_SCHEMA, *schema))
        except (sqlite3.Error, OSError) as error:
            thread.shutdown(wait=False)
            raise StoreUnavailable(f"can't open {path}: {error}") from error
        return cls(connection, thread, now)

    async def close(self) -> None:
        """Finish what is under way and close the file. Doing it twice does no harm."""
        if self._open:
            self._open = False
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
        return await self.run(lambda connection: _create(connection, new, moment))

    async def get(self, document_id: str) -> Document:
        return await self.look(lambda connection: _get(connection, document_id))

    async def replace(self, document_id: str, content: str, *, title: str | None = None) -> Document:
        moment = self._now()
        return await self.run(lambda connection: _replace(connection, document_id, content, title, moment))

    async def append(self, document_id: str, content: str) -> Document:
        moment = self._now()

        def work(connection: sqlite3.Connection) -> Document:
            before = _get(connection, document_id).content
            return _replace(connection, document_id, f"{before}\n{content}", None, moment)

        return await self.run(work)

    async def delete(self, document_id: str) -> None:
        def work(connection: sqlite3.Connection) -> None:
            if not connection.execute("DELETE FROM documents WHERE id = ?", (document_id,)).rowcount:
                raise DocumentNotFound(document_id)

        await self.run(work)

    async def query(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        return await self.look(lambda connection: _query(connection, text, limit, tuple(tags)))

    async def newest(self, *, tags: Sequence[str], limit: int) -> list[Document]:
        return await self.look(lambda connection: _newest(connection, tuple(tags), limit))


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
            " ".join(_token(tag) for tag in new.tags),
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


# Scope


def _token(tag: str) -> str:
    """A tag in the index: a number, which the stemmer leaves alone."""
    return str(int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=16).digest(), "big"))


def _rarest(connection: sqlite3.Connection, tags: tuple[str, ...]) -> tuple[str, int]:
    """The tag that fewest documents carry, and how many those are."""
    counts = dict.fromkeys(tags, 0)
    marks = ", ".join("?" * len(tags))
    counts.update(connection.execute(f"SELECT tag, documents FROM document_tags WHERE tag IN ({marks})", tags))
    return min(counts.items(), key=lambda item: item[1])


def _in_scope(connection: sqlite3.Connection, tags: tuple[str, ...], columns: str) -> Iterator[tuple[str, ...]]:
    """`columns` of the documents that carry every tag, newest first."""
    if not tags:
        yield from connection.execute(f"SELECT {columns} FROM documents d ORDER BY created_at DESC, key DESC")
        return
    rows = connection.execute(
        f"""SELECT d.tags, {columns} FROM document_words w JOIN documents d ON d.key = w.rowid
            WHERE document_words MATCH ? ORDER BY d.created_at DESC, d.key DESC""",
        (_scope_match(_rarest(connection, tags)[0]),),
    )
    yield from (rest for own_tags, *rest in rows if set(tags) <= set(orjson.loads(own_tags)))


def _scope_match(*tags: str) -> str:
    return f"scope : ({' AND '.join(_token(tag) for tag in tags)})"


def _newest(connection: sqlite3.Connection, tags: tuple[str, ...], limit: int) -> list[Document]:
    columns = ", ".join(f"d.{name}" for name in _FIELDS.split(", "))
    rows = _in_scope(connection, tags, columns)
    return [_document(row) for _, row in zip(range(limit), rows, strict=False)]


# Search


def _query(connection: sqlite3.Connection, text: str, limit: int, tags: tuple[str, ...]) -> list[Hit]:
    words = _words(text)
    if tags and _rarest(connection, tags)[1] <= _NARROW_SCOPE:
        keys = _ranked_in_scope(connection, words, tags)[:limit]
    else:
        keys = _ranked_overall(connection, words, tags, limit)
    found = [document for key in keys if (document := _find(connection, "key = ?", key))]
    hits = [Hit(document, _snippet(document.content, words), 1 / (60 + rank)) for rank, document in enumerate(found, 1)]
    return hits + _fill(connection, tags, found, limit) if tags else hits


def _words(text: str) -> list[str]:
    """What to look for: plain words only, so nothing in a query can act as search syntax."""
    words = dict.fromkeys(re.findall(r"[^\W_]+", text[:_MOST_QUERY_CHARACTERS].lower()))
    return ([word for word in words if word not in _STOP_WORDS] or list(words))[:_MOST_WORDS]


def _ranked_in_scope(connection: sqlite3.Connection, words: list[str], tags: tuple[str, ...]) -> list[int]:
    """
    Keys of matching documents, best first: BM25 with the scope's own statistics.

    FTS5's bm25() counts each word over the whole store first, which would let strangers' documents slow down and
    colour the search. A word counts once for a document, however often it stands there.
    """
    sizes = {int(key): int(size) for key, size in _in_scope(connection, tags, "d.key, length(d.content)")}
    average = sum(sizes.values()) / len(sizes) if sizes else 0
    scope = _scope_match(_rarest(connection, tags)[0])
    scores: dict[int, float] = defaultdict(float)
    for word in words:
        rows = connection.execute(
            "SELECT rowid FROM document_words WHERE document_words MATCH ?", (f"{scope} AND {_word_match([word])}",)
        )
        keys = [key for (key,) in rows if key in sizes]
        rarity = math.log(1 + (len(sizes) - len(keys) + 0.5) / (len(keys) + 0.5))
        for key in keys:
            scores[key] += rarity / (1 + _K1 * (1 - _B + _B * sizes[key] / max(average, 1)))
    return sorted((key for key in sizes if key in scores), key=lambda key: -scores[key])


def _ranked_overall(connection: sqlite3.Connection, words: list[str], tags: tuple[str, ...], limit: int) -> list[int]:
    if not words:
        return []
    match = _word_match(words)
    rows = connection.execute(
        """SELECT d.key, d.tags FROM document_words w JOIN documents d ON d.key = w.rowid
            WHERE document_words MATCH ? ORDER BY bm25(document_words, 1, 1, 0), d.created_at DESC, d.key DESC""",
        (f"{_scope_match(*tags)} AND {match}" if tags else match,),
    )
    exact = (key for key, own_tags in rows if set(tags) <= set(orjson.loads(own_tags)))
    return [key for _, key in zip(range(limit), exact, strict=False)]


def _word_match(words: list[str]) -> str:
    quoted = " OR ".join(f'"{word}"' for word in words)
    return f"{{title content}} : ({quoted})"


def _fill(connection: sqlite3.Connection, tags: tuple[str, ...], found: list[Document], limit: int) -> list[Hit]:
    """The newest of the scope, where words found too few: who asks about a caller gets what there is."""
    known = {document.id for document in found}
    newest = _newest(connection, tags, limit) if len(found) < limit else []
    others = [document for document in newest if document.id not in known]
    return [Hit(document, _snippet(document.content, []), _FILL_SCORE) for document in others[: limit - len(found)]]


def _snippet(content: str, words: list[str]) -> str:
    """At most 500 characters of `content`, those where most of the words stand."""
    if len(content) <= _SNIPPET_CHARACTERS or not words:
        return content[:_SNIPPET_CHARACTERS].strip()
    pattern = re.compile(rf"\b(?:{'|'.join(words)})", re.IGNORECASE)
    places = [match.start() for match in pattern.finditer(content)] or [0]
    best = max(places, key=lambda start: sum(start <= place < start + _SNIPPET_CHARACTERS for place in places))
    start = content.rfind("\n", 0, best) + 1 if best else 0
    start = start if best - start <= 100 else best
    return content[start : start + _SNIPPET_CHARACTERS].strip()
