"""
Runs the embedding model in a process of its own.

In the gateway's process, loading it and embedding a text would each block the event loop for tens of milliseconds,
because onnxruntime holds the GIL. The process starts soon after the gateway, loads the model for the first text, and
ends with the gateway. The workers of one gateway share a process, which takes 250 MB: it listens on a socket, and ends
with the last of them.
"""

import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client, Connection, Pipe
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from gateway.memory.embeddings.minilm import MiniLM
    from gateway.memory.embeddings.vectors import QueryEmbedding

_EXIT_SECONDS: Final = 5.0
_FIRST_CLIENT_SECONDS: Final = 30.0
"""A shared process ends if no client connects within this time."""

_LOAD, _EMBED, _READ = "load", "embed", "read"


class ModelGone(Exception):
    """The process has ended or could not start. The message says why."""


class ModelLoader:
    """
    Loads the model in a new process each time it is called, or in the one that is shared. Raises ModelGone.

    `start` starts the next process ahead of time, because starting one takes CPU time from calls on the same core: it
    begins with normal priority, and a thread that lowers its priority can't raise it again, as the query thread would
    have to.
    """

    def __init__(self, shared: Path | None = None) -> None:
        """`shared`: the socket of the process that several gateways share. The first one starts it."""
        self._shared = shared
        self._started: ModelProcess | None = None

    def start(self) -> None:
        if self._started is None:
            self._started = ModelProcess.start() if self._shared is None else ModelProcess.join(self._shared)

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
    The client of a model process. All methods raise ModelGone.

    Documents and queries have a connection each, so that no query waits for a long document. One thread may use each.
    """

    def __init__(
        self,
        queries: "Connection[Any, Any]",
        documents: "Connection[Any, Any]",
        process: "subprocess.Popen[bytes] | None",
    ) -> None:
        """`process`: the one that ends with this client; None if it is shared."""
        self._queries = queries
        self._documents = documents
        self._process = process

    @classmethod
    def start(cls) -> Self:
        """A process for this client alone."""
        (queries, their_queries), (documents, their_documents) = Pipe(), Pipe()
        with their_queries, their_documents:
            process = _start_process("connected", their_queries.fileno(), their_documents.fileno())
        return cls(queries, documents, process)

    @classmethod
    def join(cls, path: Path) -> Self:
        """Connect to the process that listens on this socket; start it if it does not run."""
        try:
            with path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    return cls(Client(str(path)), Client(str(path)), None)
                path.unlink(missing_ok=True)
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(str(path))
                    listener.listen(64)
                    _start_process("listening", listener.fileno()).wait()  # it goes on as a daemon
                return cls(Client(str(path)), Client(str(path)), None)
        except OSError as error:
            raise ModelGone(f"its process could not be reached: {error}") from None

    def load(self) -> None:
        """Takes a second or more."""
        if problem := self._ask(self._queries, _LOAD):
            self.close()
            raise ModelGone(problem)

    def embed(self, text: str) -> bytes:
        """The vector of a text, as it is stored."""
        vector: bytes = self._ask(self._documents, _EMBED, text)
        return vector

    def read(self, text: str) -> "QueryEmbedding":
        reading: QueryEmbedding = self._ask(self._queries, _READ, text)
        return reading

    def close(self) -> None:
        """Close the connections, which ends the process if no other client has any."""
        for connection in (self._queries, self._documents):
            connection.close()
        if self._process is None:
            return
        try:
            self._process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, connection: "Connection[Any, Any]", kind: str, text: str = "") -> Any:
        try:
            connection.send((kind, text))
            return connection.recv()
        except (EOFError, OSError):
            raise ModelGone("its process has ended") from None


def _start_process(role: str, *files: int) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", __name__, role, *map(str, files)]
    try:
        return subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL, env=_environ())
    except OSError as error:
        raise ModelGone(f"its process could not start: {error}") from None


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
    role, *files = sys.argv[1:]
    server = _ModelServer()
    if role == "connected":
        for file in files:
            server.serve(Connection(int(file)))
    else:
        if os.fork():
            return  # a daemon: it may outlive the worker that started it
        threading.Thread(target=server.accept, args=(socket.socket(fileno=int(files[0])),), daemon=True).start()
        server.connected.wait(_FIRST_CLIENT_SECONDS)
    server.wait()


class _ModelServer:
    """Answers the requests of all connections, each on a thread of its own."""

    def __init__(self) -> None:
        self.connected = threading.Event()
        self._changed = threading.Condition()
        self._connections = 0
        self._loading = threading.Lock()
        self._model: MiniLM | None = None

    def accept(self, listener: socket.socket) -> None:
        while True:
            accepted, _ = listener.accept()
            self.serve(Connection(accepted.detach()))

    def serve(self, connection: "Connection[Any, Any]") -> None:
        with self._changed:
            self._connections += 1
        self.connected.set()
        threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def wait(self) -> None:
        """Until no connection is open."""
        with self._changed:
            self._changed.wait_for(lambda: not self._connections)

    def _answer(self, connection: "Connection[Any, Any]") -> None:
        try:
            for kind, text in _requests(connection):
                if kind == _LOAD:
                    connection.send(self._load())
                elif self._model is None:
                    break
                elif kind == _READ:
                    connection.send(self._model.read(text))
                else:
                    _lower_priority()  # of this thread: it does nothing else
                    connection.send(self._model.embed(text))
        except OSError:
            pass  # the client is gone
        finally:
            connection.close()
            with self._changed:
                self._connections -= 1
                self._changed.notify()

    def _load(self) -> str:
        """Load the model, once. Returns the problem, or nothing."""
        with self._loading:
            try:
                if self._model is None:
                    with ThreadPoolExecutor(1, initializer=_lower_priority) as loading:
                        self._model = loading.submit(_load).result()
            except Exception as error:  # whatever the runtime raises is reported to the client
                return str(error) or type(error).__name__
        return ""


def _requests(connection: "Connection[Any, Any]") -> Iterator[tuple[str, str]]:
    """Until the client closes the connection."""
    with contextlib.suppress(EOFError, OSError):
        while True:
            yield connection.recv()


def _load() -> "MiniLM":
    from gateway.memory.embeddings import minilm  # takes seconds to import

    return minilm.load()


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
