"""
Texts as vectors, off the event loop.

Documents and queries have a thread each, so that no query waits for a long document. Both ask the same model, which is
in a process of its own.
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
"""Stands beside every stored vector: those of two models can't be compared. However it is multiplied, it is one."""

_PATIENCE: Final = 1.0
_MOST_REMEMBERED: Final = 256

_log = logging.getLogger(__name__)

_Answer = TypeVar("_Answer")


class Model(Protocol):
    """Reads texts, one at a time for each method. Raises ModelGone when it is of no more use."""

    def embed(self, text: str) -> bytes: ...

    def read(self, text: str) -> "QueryEmbedding": ...

    def close(self) -> None: ...


class Embedder:
    """
    Turns texts into vectors, with a model that is loaded when the first one comes; `close` it.

    Without a usable model it answers None to everything, after one line in the log.
    """

    def __init__(self, load: Callable[[], Model] | None = None) -> None:
        """`load` takes a second or more, on a thread; ModelGone if there is no model. By default, in a process."""
        self._loader = ModelLoader()
        self._load = load or self._loader
        self._model: Model | None = None
        self._choosing = threading.Lock()
        self._queries = ThreadPoolExecutor(1, "query embedding")
        self._documents = ThreadPoolExecutor(1, "document embedding")
        self._remembered = functools.lru_cache(_MOST_REMEMBERED)(self._read)
        self._open = True

    def close(self) -> None:
        """Take no more; what is under way is finished, and nobody waits for it. Doing it twice does no harm."""
        if self._open:
            self._open = False
            self._documents.submit(self._unload)
        for thread in (self._queries, self._documents):
            thread.shutdown(wait=False)

    async def get_ready(self) -> None:
        """Do of the loading what takes from calls, while there are few of them."""
        if self._load is self._loader:
            await asyncio.get_running_loop().run_in_executor(self._documents, self._start)

    async def warm_up(self) -> None:
        """Load the model."""
        await self.embed(())

    async def embed(self, texts: Sequence[str]) -> bytes | None:
        """
        The vectors of a document's parts, one after the other, as they are stored.

        The model reads them one by one: on one core, several at once take as long.
        """
        return await asyncio.get_running_loop().run_in_executor(self._documents, self._embed, tuple(texts))

    def read(self, text: str) -> "PendingReading":
        """Have a query read; nobody waits for it here."""
        try:
            return PendingReading(self._queries.submit(self._remembered, text))
        except RuntimeError:  # it was closed meanwhile
            return PendingReading(None)

    # On the threads

    def _start(self) -> None:
        with self._choosing, contextlib.suppress(ModelGone):  # whoever loads it will tell
            if self._model is None:
                self._loader.start()

    def _embed(self, texts: tuple[str, ...]) -> bytes | None:
        try:
            return self._ask(lambda model: b"".join(map(model.embed, texts)))
        except ModelGone:
            return None

    def _read(self, text: str) -> "QueryEmbedding":
        return self._ask(lambda model: model.read(text))

    def _ask(self, question: Callable[[Model], _Answer]) -> _Answer:
        """A model that was lost on the way is loaded again, once."""
        model = self._chosen(instead_of=None)
        try:
            return question(model)
        except ModelGone:
            return question(self._chosen(instead_of=model))

    def _chosen(self, *, instead_of: Model | None) -> Model:
        with self._choosing:
            if self._model is None:
                self._model = self._loaded()
            elif self._model is instead_of and not isinstance(self._model, _NoModel):
                _log.warning("embedding model was lost, and is loaded again")
                self._model.close()
                self._model = self._loaded()
            return self._model

    def _loaded(self) -> Model:
        try:
            return self._load()
        except ModelGone as error:
            # Memory without vectors is still memory.
            _log.warning("no embedding model, the store searches by words alone", extra={"reason": str(error)})
            return _NoModel()

    def _unload(self) -> None:
        self._queries.shutdown(wait=True)
        with self._choosing:
            if self._model is not None:
                self._model.close()
            self._loader.close()
            self._model = _NoModel()


class PendingReading:
    """A query that the model reads at this moment."""

    def __init__(self, future: "Future[QueryEmbedding] | None") -> None:
        self._future = future

    def result(self) -> "QueryEmbedding | None":
        """Waits. None also when it takes too long, as while the model is loaded: words alone can answer too."""
        try:
            return self._future.result(_PATIENCE) if self._future is not None else None
        except (TimeoutError, CancelledError, ModelGone):
            return None


class _NoModel:
    def embed(self, text: str) -> bytes:
        raise ModelGone("there is none")

    def read(self, text: str) -> "QueryEmbedding":
        raise ModelGone("there is none")

    def close(self) -> None:
        pass
