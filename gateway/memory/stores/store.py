"""
The gateway's own document store, independent of the database.

A document is found by its words as soon as it is stored, and by its meaning a little later: vectors are made in the
background, newest documents first.
"""

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypedDict, TypeVar

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.memory.embeddings.embedder import Embedder, PendingReading
from gateway.memory.stores import documents, search
from gateway.memory.stores.database import Connection, Index, Unembedded
from gateway.memory.stores.documents import Document, Hit, NewDocument, time_text
from gateway.memory.stores.ranking import MEMORY, RankingOptions
from gateway.memory.stores.search import parts, snippet

T = TypeVar("T")

_FILL_SCORE: Final = 0.001
_RETRY_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 2.0  # how often to look for documents that another process stored without vectors
_BATCH: Final = 8  # documents; each is searchable about 50 ms after the batch was started

_log = logging.getLogger(__name__)


class StoreOptions(TypedDict, total=False):
    """What both databases have in common."""

    now: Callable[[], datetime]
    embedder: Embedder | None
    embed_after: float
    """Seconds before the first document is embedded, so that startup is not slowed down."""
    ranking: RankingOptions


class MemoryStore(ABC):
    """
    Documents in a database that other tables share; `close` it, which closes the embedder too.

    All methods raise StoreUnavailable; those that take an id raise DocumentNotFound.
    """

    def __init__(
        self,
        index: Index,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        embedder: Embedder | None = None,
        embed_after: float = 2.0,
        ranking: RankingOptions = MEMORY,
    ) -> None:
        self.index = index
        self._now = now
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._scopes = search.SearchScopes(index, ranking)
        self._embedder = embedder
        self._has_vectors = False
        self._wanted: list[int] = []  # documents that a query found without vectors
        self._lacks_vectors = asyncio.Event()
        self._embedding = asyncio.create_task(self._embed_all(embedder, embed_after)) if embedder else None

    # The database

    description: ClassVar[str]
    """The kind of database, for operators."""

    @property
    def is_away(self) -> bool:
        """Whether the last attempt to reach the database failed."""
        return False

    async def watch(self) -> None:
        """Check the database until cancelled, and log when it goes away or comes back."""
        return  # a file is always there

    @abstractmethod
    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in one serializable transaction, off the event loop; it is rolled back when `work` raises."""

    @abstractmethod
    async def look(self, work: Callable[[Connection], T]) -> T:
        """Run `work` that only reads, without waiting for writers."""

    @abstractmethod
    async def ask(self, work: Callable[[Connection], T]) -> T:
        """Run reading `work` that may wait for the model, in one snapshot, without delaying `look`."""

    async def fetch(self, query: str, *values: Any) -> list[Any]:
        """The rows of one query."""
        return await self.look(lambda connection: connection.execute(query, values).fetchall())

    async def change(self, statement: str, *values: Any) -> int:
        """Run one statement. Returns how many rows it changed."""
        return await self.run(lambda connection: connection.execute(statement, values).rowcount)

    async def close(self) -> None:
        """Finish the work under way. Idempotent."""
        if self._open:
            self._open = False
            if self._embedder and self._embedding:
                self._embedding.cancel()
                await asyncio.wait([self._embedding])
                self._embedder.close()
            await self._disconnect()

    @abstractmethod
    async def _disconnect(self) -> None: ...

    # Erasure. It rewrites the files under DATA_DIR itself, so the store must do so only for a database elsewhere.

    async def overwrite_deleted(self) -> None:
        """Overwrite deleted rows from now on, where the database can."""
        return

    async def scrub(self) -> bool:
        """Free the space of deleted rows. Returns whether that was possible."""
        return True

    async def tables_holding(self, words: Sequence[str]) -> list[str]:
        """The tables that contain one of these words, in any case, except files under DATA_DIR."""
        return []

    # Documents

    async def create(self, new: NewDocument) -> Document:
        """Store a new document, or return the one that has the same `source_id`."""
        moment = self._now()
        return await self.run(lambda connection: documents.create_document(connection, new, moment))

    async def put(self, new: NewDocument) -> Document:
        """Store a document in place of the one with the same `source_id`, which keeps its id and time of creation."""
        moment = self._now()

        def work(connection: Connection) -> Document:
            old = documents.find_document(connection, documents.BY_SOURCE_ID, new.source_id) if new.source_id else None
            if old is None:
                return documents.create_document(connection, new, moment)
            # Deleted and stored again, so that the index follows a change of tags.
            connection.execute("DELETE FROM documents WHERE id = ?", (old.id,))
            again = replace(new, created_at=new.created_at or old.created_at)
            return documents.create_document(connection, again, moment, document_id=old.id)

        return await self.run(work)

    async def get(self, document_id: str) -> Document:
        return await self.look(lambda connection: documents.get_document(connection, document_id))

    async def replace(self, document_id: str, content: str, *, title: str | None = None) -> Document:
        """Replace the content, and the title if one is given. The tags stay."""
        return await self._edit(document_id, lambda old: content, title)

    async def append(self, document_id: str, content: str) -> Document:
        """Add `content` at the end, on a new line."""
        return await self._edit(document_id, lambda old: f"{old}\n{content}", None)

    async def _edit(self, document_id: str, edit: Callable[[str], str], title: str | None) -> Document:
        moment = time_text(self._now())

        def work(connection: Connection) -> Document:
            content = edit(documents.get_document(connection, document_id).content)
            connection.execute(
                "UPDATE documents SET content = ?, title = coalesce(?, title), updated_at = ? WHERE id = ?",
                (content, title, moment, document_id),
            )
            return documents.get_document(connection, document_id)

        return await self.run(work)

    async def delete(self, document_id: str) -> None:
        if not await self.change("DELETE FROM documents WHERE id = ?", document_id):
            raise DocumentNotFound(document_id)

    async def related(self, ids: Collection[str], text: str, *, tags: Sequence[str]) -> dict[str, float]:
        """
        How near each document with every one of `tags` is to some of them and to a text, weighted by its age; by id.

        Empty for a wide scope. Needs no model: the documents are compared by their vectors, the text by its words.
        """

        def work(connection: Connection) -> dict[str, float]:
            scope = self._scopes.get(connection, tuple(tags))
            if scope is None:
                return {}
            words = search.look_up(connection, self.index, scope, search.Question(text))
            return scope.related(words, ids)

        return await self.ask(work)

    async def newest(self, *, tags: Sequence[str], limit: int) -> list[Document]:
        """The last documents with every one of `tags`, newest first."""
        return await self.look(lambda connection: self._newest(connection, tuple(tags), limit))

    async def by_source_ids(self, source_ids: Iterable[str]) -> list[Document]:
        """The documents with these source ids, as far as they exist."""
        ids = list(source_ids)

        def work(connection: Connection) -> list[Document]:
            found = (documents.find_document(connection, documents.BY_SOURCE_ID, id_) for id_ in ids)
            return [document for document in found if document]

        return await self.look(work)

    # Search

    async def query(self, text: str, *, limit: int, tags: Sequence[str] = ()) -> list[Hit]:
        """The documents nearest to `text` among those with every one of `tags`, best first."""
        every = tuple(tags)
        return await self.ask(lambda connection: self._query(connection, text, limit, every))

    def _query(self, connection: Connection, text: str, limit: int, tags: tuple[str, ...]) -> list[Hit]:
        """Search by words while the model, which takes longest, embeds the question."""
        embedding: PendingReading | None = None
        if self._embedder is not None and self._open:
            self._has_vectors = self._has_vectors or self.index.has_vectors(connection)
            if self._has_vectors:  # else the model need not be loaded
                embedding = self._embedder.read(text)
        scope = self._scopes.get(connection, tags)
        if scope is not None:
            if self._has_vectors and len(scope.without_vectors) < len(scope.members):
                _ = scope.space  # computed now, while the model works
            words = search.look_up(connection, self.index, scope, search.Question(text))
        question = search.Question(text, embedding.result() if embedding else None)
        if scope is None:
            matches = search.search_all(connection, self.index, tags, question, self._scopes.options)
            hits = _hits(connection, matches[:limit], question.words)
            return hits + self._fill(connection, tags, hits, limit) if tags else hits
        if question.reading is not None and scope.without_vectors:
            self._wanted = scope.without_vectors
            self._loop.call_soon_threadsafe(self._lacks_vectors.set)
        return _hits(connection, scope.ranked(words, question, tags)[:limit], question.words)

    def _fill(self, connection: Connection, tags: tuple[str, ...], found: list[Hit], limit: int) -> list[Hit]:
        """The newest documents of the scope, where words found too few: a query about a caller always gets results."""
        known = {hit.document.id for hit in found}
        others = self._newest(connection, tags, limit) if len(found) < limit else []
        fill = [Hit(document, snippet(document.content, (), None), _FILL_SCORE) for document in others]
        return [hit for hit in fill if hit.document.id not in known][: limit - len(found)]

    def _newest(self, connection: Connection, tags: tuple[str, ...], limit: int) -> list[Document]:
        keys = self.index.newest(connection, tags, limit)
        return [document for _, document in documents.find_documents(connection, keys)]

    # Vectors

    async def _embed_all(self, embedder: Embedder, after: float) -> None:
        """Embed documents until cancelled, or until there is no model."""
        await asyncio.sleep(after)
        problem = ""
        while True:
            try:
                if await self.look(self.index.has_vectors):  # a query is likely, and should not wait for the model
                    await embedder.warm_up()
                else:
                    await embedder.get_ready()
                await self.run(self.index.renew_vectors)
                while await self._embed_some(embedder):
                    pass
                return
            except StoreUnavailable as error:
                if problem != str(error):
                    problem = str(error)
                    _log.warning("vectors can't be kept", extra={"reason": problem})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _embed_some(self, embedder: Embedder) -> bool:
        """Embed the next few documents, or wait for some. Returns False without a model."""
        self._lacks_vectors.clear()
        waiting = await self.look(lambda connection: self.index.missing_vectors(connection, self._wanted, _BATCH))
        if not waiting:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_SECONDS):  # wait_for can swallow a cancellation on 3.11
                    await self._lacks_vectors.wait()
            return True
        made: list[tuple[Unembedded, bytes]] = []
        for key, content in waiting:
            embedded = await embedder.embed(parts(content))
            if embedded is None:
                return False
            made.append(((key, content), embedded))
        await self.run(lambda connection: self.index.keep_vectors(connection, made))
        return True


def _hits(connection: Connection, matches: Iterable[search.Match], words: Sequence[str]) -> list[Hit]:
    ranked = {match.key: (rank, match) for rank, match in enumerate(matches, 1)}
    hits = []
    for key, document in documents.find_documents(connection, list(ranked)):
        rank, match = ranked[key]
        score = 1 / (60 + rank) if match.found else _FILL_SCORE
        hits.append(Hit(document, snippet(document.content, words, match.part), score))
    return hits
