"""
The embedding model in a process of its own.

To load it, and to read a text with it, would hold up the event loop of the gateway: both keep the interpreter to
themselves for tens of milliseconds. The process is started soon after the gateway, loads the model when the first text
comes, and ends with the gateway.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gateway.memory.embeddings.minilm import MiniLM
    from gateway.memory.embeddings.vectors import QueryEmbedding

_ENDING_SECONDS: Final = 5.0
_LOAD: Final = "load"


class ModelGone(Exception):
    """The process has ended, or never began; says why."""


class ModelLoader:
    """
    Loads the model, each time it is called, in a process of its own. ModelGone if there is none.

    `start` starts the next process beforehand. That alone takes from calls on the same core: a process begins as
    important as any other, and a thread that steps back can't come forward again, as the one for queries would have to.
    """

    def __init__(self) -> None:
        self._started: ModelProcess | None = None

    def start(self) -> None:
        self._started = self._started or ModelProcess()

    def __call__(self) -> "ModelProcess":
        self.start()
        process, self._started = self._started, None
        assert process is not None
        process.load()
        return process

    def close(self) -> None:
        if self._started is not None:
            self._started.close()
            self._started = None


class ModelProcess:
    """
    A model that reads elsewhere, once it is loaded. Raises ModelGone, from its making on.

    Documents and queries have a line each, so that no query waits for a long document; each is one thread's to use.
    """

    def __init__(self) -> None:
        self._queries, queries = Pipe()
        self._documents, documents = Pipe()
        lines = (queries.fileno(), documents.fileno())
        command = [sys.executable, "-m", __name__, *map(str, lines)]
        try:
            self._process = subprocess.Popen(command, pass_fds=lines, stdin=subprocess.DEVNULL, env=_environ())
        except OSError as error:
            raise ModelGone(f"no process for it: {error}") from None
        finally:
            queries.close()
            documents.close()

    def load(self) -> None:
        """Takes a second or more."""
        if problem := self._ask(self._queries, _LOAD):
            self.close()
            raise ModelGone(problem)

    def embed(self, text: str) -> bytes:
        """The vector of a text, as it is stored."""
        vector: bytes = self._ask(self._documents, text)
        return vector

    def read(self, text: str) -> "QueryEmbedding":
        reading: QueryEmbedding = self._ask(self._queries, text)
        return reading

    def close(self) -> None:
        """Its lines are cut, so that it ends."""
        for line in (self._queries, self._documents):
            line.close()
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, line: "Connection[Any, Any]", text: str) -> Any:
        try:
            line.send(text)
        except OSError:
            raise ModelGone("its process has ended") from None
        return self._receive(line)

    def _receive(self, line: "Connection[Any, Any]") -> Any:
        try:
            return line.recv()
        except (EOFError, OSError):
            raise ModelGone("its process has ended") from None


def _environ() -> dict[str, str]:
    """
    With large pages, where the C library knows how.

    Each text goes through all of the weights; on a virtual machine much of the time went into finding their pages.
    """
    tunables = filter(None, [os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"])
    return {**os.environ, "GLIBC_TUNABLES": ":".join(tunables)}


# In the process


def main() -> None:
    # Who stops a gateway may tell all its processes; this one is needed until the last call has ended.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    queries, documents = (Connection(int(line)) for line in sys.argv[1:])
    try:
        queries.recv()  # to load it
    except (EOFError, OSError):
        return
    try:
        with ThreadPoolExecutor(1, initializer=_step_back) as loading:
            model = loading.submit(_load).result()
    except Exception as error:  # whatever a foreign runtime raises: told to those who wait
        queries.send(str(error) or type(error).__name__)
        return
    queries.send("")
    threading.Thread(target=_embed_documents, args=(model, documents), daemon=True).start()
    _serve(queries, model.read)


def _load() -> "MiniLM":
    from gateway.memory.embeddings import minilm  # takes a while

    return minilm.load()


def _embed_documents(model: "MiniLM", documents: "Connection[Any, Any]") -> None:
    _step_back()
    _serve(documents, model.embed)


def _serve(line: "Connection[Any, Any]", work: Any) -> None:
    """Until the line is cut."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            line.send(work(line.recv()))


def _step_back() -> None:
    """
    For everything else that wants the processor: calls are going on, and nobody waits long for this.

    However nice a thread is, it may finish its slice, in which the frames of all calls wait on its core: 4 ms were
    seen. An idle one may not.
    """
    if sys.platform == "linux":  # elsewhere a thread has no policy of its own
        with contextlib.suppress(OSError):  # it is a courtesy
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
