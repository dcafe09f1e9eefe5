"""
Turns texts into vectors, off the event loop.

Documents and queries have a thread each, so that no query waits for a long document. Both use the same model, which
runs in a process of its own.
"""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from gateway.memory.embeddings.model_process import ModelGone, ModelLoader

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import QueryEmbedding

MODEL: Final = "all-MiniLM-L6-v2 int8 8199be6f"
"""Stored with every vector: those of two models can't be compared. The float32 and int8 graphs count as one model."""

_QUERY_SECONDS: Final = 1.0
_MOST_CACHED: Final = 256

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class Model(Protocol):
    """An embedding model. Each method handles one text at a time. Raises ModelGone when it can no longer be used."""

    def embed(self, text: str) -> bytes: ...

    def read(self, text: str) -> "QueryEmbedding": ...

    def close(self) -> None: ...


class Embedder:
    """
    Turns texts into vectors with a model that is loaded for the first text; `close` it.

    Without a usable model it logs one line and returns None for everything.
    """

    def __init__(self, load: Callable[[], Model] | None = None) -> None:
        """`load` runs on a thread, may take seconds, and raises ModelGone. By default it starts a process."""
        self._load = load or ModelLoader()
        self._model: Model | None = None
        self._model_lock = threading.Lock()
        self._queries = ThreadPoolExecutor(1, "query embedding")
        self._documents = ThreadPoolExecutor(1, "document embedding")
        self._cached_read = functools.lru_cache(_MOST_CACHED)(self._read)
        self._owners = 1

    def share(self) -> "Embedder":
        """The same embedder for one more owner, who closes it too."""
        self._owners += 1
        return self

    def close(self) -> None:
        """Accept no more texts once all owners are gone, and unload the model after those under way. Idempotent."""
        self._owners -= 1
        if self._owners == 0:
            self._documents.submit(self._unload)
            for thread in (self._queries, self._documents):
                thread.shutdown(wait=False)

    async def get_ready(self) -> None:
        """Start the model's process early, since that takes CPU time from live calls."""
        if isinstance(self._load, ModelLoader):
            await asyncio.get_running_loop().run_in_executor(self._documents, self._start)

    async def warm_up(self) -> None:
        """Load the model."""
        await self.embed(())

    async def embed(self, texts: Sequence[str]) -> bytes | None:
        """
        The vectors of a document's parts, concatenated as they are stored. None without a model.

        The model embeds them one by one: on one core, a batch takes as long.
        """
        return await asyncio.get_running_loop().run_in_executor(self._documents, self._embed, tuple(texts))

    def read(self, text: str) -> "PendingReading":
        """Start to embed a query, without waiting for the result."""
        try:
            return PendingReading(self._queries.submit(self._cached_read, text))
        except RuntimeError:  # closed by another thread
            return PendingReading(None)

    # On the threads

    def _start(self) -> None:
        with self._model_lock, contextlib.suppress(ModelGone):  # loading will report it
            if self._model is None and isinstance(self._load, ModelLoader):
                self._load.start()

    def _embed(self, texts: tuple[str, ...]) -> bytes | None:
        try:
            return self._ask(lambda model: b"".join(map(model.embed, texts)))
        except ModelGone:
            return None

    def _read(self, text: str) -> "QueryEmbedding":
        return self._ask(lambda model: model.read(text))

    def _ask(self, question: Callable[[Model], _Answer]) -> _Answer:
        """Ask the model. If its process has died, load it again, once."""
        model = self._get_model(instead_of=None)
        try:
            return question(model)
        except ModelGone:
            return question(self._get_model(instead_of=model))

    def _get_model(self, *, instead_of: Model | None) -> Model:
        with self._model_lock:
            if self._model is None:
                self._model = self._load_model()
            elif self._model is instead_of and not isinstance(self._model, _NoModel):
                _log.warning("embedding model was lost, and is loaded again")
                self._model.close()
                self._model = self._load_model()
            return self._model

    def _load_model(self) -> Model:
        try:
            return self._load()
        except ModelGone as error:
            _log.warning("no embedding model, the store searches by words alone", extra={"reason": str(error)})
            return _NoModel()

    def _unload(self) -> None:
        self._queries.shutdown(wait=True)
        with self._model_lock:
            if self._model is not None:
                self._model.close()
            if isinstance(self._load, ModelLoader):
                self._load.close()
            self._model = _NoModel()


class PendingReading:
    """A query that is being embedded."""

    def __init__(self, future: "Future[QueryEmbedding] | None") -> None:
        self._future = future

    def result(self) -> "QueryEmbedding | None":
        """Wait for the embedding. None without a model, or after a second, as while it loads: words alone will do."""
        try:
            return self._future.result(_QUERY_SECONDS) if self._future is not None else None
        except (TimeoutError, CancelledError, ModelGone):
            return None


class _NoModel:
    def embed(self, text: str) -> bytes:
        raise ModelGone("no model")

    def read(self, text: str) -> "QueryEmbedding":
        raise ModelGone("no model")

    def close(self) -> None:
        pass
