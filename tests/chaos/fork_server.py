"""
Starts gateways quickly: a server process imports everything once, and each gateway is a fork of it.

This file also runs as that process. It reads requests from the socket it was given: for a new gateway (environment and
folder, with the file for stderr), which it answers with the pid, or for the exit code of one that has ended.
"""

import asyncio
import atexit
import functools
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from pathlib import Path

LARGEST_REQUEST = 65_536
LOADED_SOON = (
    "gateway.cli.serve",
    "gateway.cluster.redis_store",
    "httpcore",
    "standardwebhooks",
    "uvicorn.protocols.http.h11_impl",
    "uvloop",
)
"""What a gateway imports when it starts and soon after."""
START = "import os, sys; os.chdir(sys.argv[1]); from gateway.cli.main import main; sys.exit(main(['serve']))"


class ForkServer:
    """The client in the test process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            arguments = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
        atexit.register(self._close)

    def start(self, environ: dict[str, str], folder: Path, stderr: int) -> int:
        """Start a gateway. Returns its pid. The first start takes a second."""
        return self._ask({"environ": environ, "folder": str(folder)}, [stderr])

    def exit_code(self, pid: int) -> int:
        """The exit code of a gateway that has ended; negative for a signal. May be asked once."""
        return self._ask({"ended": pid}, [])

    def _ask(self, request: dict[str, object], files: list[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            return int(self._socket.recv(32))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this run."""
    return ForkServer()


class ForkedGateway:
    """A gateway from the fork server, with the methods of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        self.pid = fork_server().start(environ, folder, nowhere)
        os.close(nowhere)
        self._pidfd = os.pidfd_open(self.pid)
        self._exit_code: int | None = None

    def send_signal(self, number: int) -> None:
        """Raises ProcessLookupError if it has ended."""
        if self._exit_code is not None:
            raise ProcessLookupError
        signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self) -> int:
        if self._exit_code is None:
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._pidfd, ended.set)
            try:
                await ended.wait()
            finally:
                asyncio.get_running_loop().remove_reader(self._pidfd)
            self._exit_code = fork_server().exit_code(self.pid)
            os.close(self._pidfd)
        return self._exit_code


def start_alone(environ: dict[str, str], folder: Path, stderr: int) -> int:
    """Start a gateway without forking, for LD_PRELOAD."""
    arguments = [sys.executable, "-c", START, str(folder)]
    return os.posix_spawn(sys.executable, arguments, environ, file_actions=[(os.POSIX_SPAWN_DUP2, stderr, 2)])


# The server process


def _serve(requests: socket.socket) -> None:
    for name in LOADED_SOON:
        importlib.import_module(name)
    from gateway.finalization.summary.summarizer import load_rules

    load_rules()
    gc.freeze()  # a collection in a gateway would copy all of the memory that it shares
    running: set[int] = set()
    while True:
        text, files, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 1)
        if not text:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return
        request = json.loads(text)
        if "ended" in request:
            _, status = os.waitpid(request["ended"], 0)
            running.discard(request["ended"])
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.dup2(files[0], 2)
            _become_gateway(**request)
        os.close(files[0])
        running.add(pid)
        requests.send(str(pid).encode())


def _become_gateway(environ: dict[str, str], folder: str) -> None:
    from gateway.cli.main import main

    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    try:
        code = main(["serve"])
    except BaseException:  # the edge of the forked process
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
