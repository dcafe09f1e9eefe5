"""
Runs the embedding model in a process of its own.

In the gateway's process, loading it and embedding a text would each block the event loop for tens of milliseconds,
because onnxruntime holds the GIL. The process starts soon after the gateway, loads the model for the first text, and
ends with the gateway.
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

_EXIT_SECONDS: Final = 5.0
_LOAD: Final = "load"


class ModelGone(Exception):
    """The process has ended or could not start. The message says why."""


class ModelLoader:
    """
    Loads the model in a new process each time it is called. Raises ModelGone.

    `start` starts the next process ahead of time, because starting one takes CPU time from calls on the same core: it
    begins with normal priority, and a thread that lowers its priority can't raise it again, as the query thread would
    have to.
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
    The client of a model process. All methods, and the constructor, raise ModelGone.

    Documents and queries have a pipe each, so that no query waits for a long document. One thread may use each pipe.
    """

    def __init__(self) -> None:
        self._queries, queries = Pipe()
        self._documents, documents = Pipe()
        pipes = (queries.fileno(), documents.fileno())
        command = [sys.executable, "-m", __name__, *map(str, pipes)]
        try:
            self._process = subprocess.Popen(command, pass_fds=pipes, stdin=subprocess.DEVNULL, env=_environ())
        except OSError as error:
            raise ModelGone(f"its process could not start: {error}") from None
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
        """Close the pipes, which ends the process."""
        for pipe in (self._queries, self._documents):
            pipe.close()
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, pipe: "Connection[Any, Any]", text: str) -> Any:
        try:
            pipe.send(text)
            return pipe.recv()
        except (EOFError, OSError):
            raise ModelGone("its process has ended") from None


def _environ() -> dict[str, str]:
    """
    The environment with huge pages switched on, where the C library supports them.

    Every text reads all weights; on a virtual machine much of that time went into page table walks.
    """
    tunables = filter(None, [os.environ.get("GLIBC_TUNABLES"), "glibc.malloc.hugetlb=1"])
    return {**os.environ, "GLIBC_TUNABLES": ":".join(tunables)}


# In the process


def main() -> None:
    # A signal may be sent to the whole process group; this process is needed until the last call has ended.
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)
    queries, documents = (Connection(int(pipe)) for pipe in sys.argv[1:])
    try:
        queries.recv()  # the request to load the model
    except (EOFError, OSError):
        return
    try:
        with ThreadPoolExecutor(1, initializer=_lower_priority) as loading:
            model = loading.submit(_load).result()
    except Exception as error:  # whatever the runtime raises is reported to the client
        queries.send(str(error) or type(error).__name__)
        return
    queries.send("")
    threading.Thread(target=_embed_documents, args=(model, documents), daemon=True).start()
    _serve(queries, model.read)


def _load() -> "MiniLM":
    from gateway.memory.embeddings import minilm  # takes seconds to import

    return minilm.load()


def _embed_documents(model: "MiniLM", documents: "Connection[Any, Any]") -> None:
    _lower_priority()
    _serve(documents, model.embed)


def _serve(pipe: "Connection[Any, Any]", work: Any) -> None:
    """Answer requests until the pipe is closed."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(work(pipe.recv()))


def _lower_priority() -> None:
    """
    Run only when nothing else needs the processor: live calls come first.

    Even a thread with the highest nice value finishes its time slice, and the frames of all calls on its core wait for
    that: up to 4 ms were measured. SCHED_IDLE is preempted at once.
    """
    if sys.platform == "linux":  # elsewhere the scheduling policy is not per thread
        with contextlib.suppress(OSError):  # not essential
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


if __name__ == "__main__":
    main()
