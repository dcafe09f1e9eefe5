"""
Texts as vectors, off the event loop.

Documents and queries have a thread each, so that no query waits for a long document. Both work on the same model. The
one for documents steps back for everything else that wants the processor: calls are going on.
"""

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.memory.minilm import MiniLM, Reading

MODEL: Final = "all-MiniLM-L6-v2 int8 8199be6f"
"""Stands beside every stored vector: those of two models can't be compared."""

_PATIENCE: Final = 1.0
_MOST_REMEMBERED: Final = 256
_BACKGROUND_NICENESS: Final = 10

_log = logging.getLogger(__name__)


def load_minilm() -> "MiniLM":
    """The model in its package. It takes a second, and memory that a gateway without documents can save."""
    from gateway.memory import minilm

    return minilm.load()


class Embedder:
    """
    Turns texts into vectors, with a model that is loaded when the first one comes; `close` it.

    Without a usable model it answers None to everything, after one line in the log.
    """

    def __init__(self, load: Callable[[], "MiniLM"] = load_minilm) -> None:
        self._load = load
        self._loading = threading.Lock()
        self._queries = ThreadPoolExecutor(1, "query embedding")
        self._documents = ThreadPoolExecutor(1, "document embedding")
        self._remembered = functools.lru_cache(_MOST_REMEMBERED)(self._read)

    def close(self) -> None:
        """Take no more; what is under way is finished, and nobody waits for it. Doing it twice does no harm."""
        for thread in (self._queries, self._documents):
            thread.shutdown(wait=False)

    async def warm_up(self) -> None:
        """Load the model."""
        await self.embed(())

    async def embed(self, texts: Sequence[str]) -> bytes | None:
        """
        The vectors of a document's parts, one after the other, as they are stored.

        The model reads them one by one: on one core, several at once take as long.
        """
        return await asyncio.get_running_loop().run_in_executor(self._documents, self._embed, tuple(texts))

    async def read(self, text: str) -> "Reading | None":
        """A query; None also when that takes too long, as while the model is loaded: words alone can answer too."""
        try:
            async with asyncio.timeout(_PATIENCE):
                return await asyncio.get_running_loop().run_in_executor(self._queries, self._remembered, text)
        except TimeoutError:
            return None

    # On the threads

    def _embed(self, texts: tuple[str, ...]) -> bytes | None:
        model = self._model
        _step_back()  # not before: whoever imports a module holds up all other threads
        return None if model is None else b"".join(model.embed(text) for text in texts)

    def _read(self, text: str) -> "Reading | None":
        return None if self._model is None else self._model.read(text)

    @property
    def _model(self) -> "MiniLM | None":
        with self._loading:
            return self._loaded

    @functools.cached_property
    def _loaded(self) -> "MiniLM | None":
        try:
            return self._load()
        except Exception as error:  # whatever a foreign runtime raises: memory without vectors is still memory
            _log.warning("no embedding model, the store searches by words alone", extra={"reason": str(error)})
            return None


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        with contextlib.suppress(OSError):  # it is a courtesy
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BACKGROUND_NICENESS)
