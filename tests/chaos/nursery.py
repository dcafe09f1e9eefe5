"""
Gateways that start quickly: everything is imported once, and each gateway is a fork of that.

This file runs as a process of its own. It reads requests from the socket it was given (environment and folder, with
the pipe for stderr), and answers with the number of the process that serves from then on.
"""

import atexit
import functools
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
START = "import os, sys; os.chdir(sys.argv[1]); from gateway.cli.main import main; sys.exit(main(['serve']))"


class Nursery:
    """The test's side."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        with theirs:
            arguments = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(arguments, pass_fds=[theirs.fileno()])
        atexit.register(self._close)

    def start(self, environ: dict[str, str], folder: Path, stderr: int) -> int:
        """Start a gateway; its process id. Takes a moment, the first time a second."""
        request = json.dumps({"environ": environ, "folder": str(folder)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [stderr])
            return int(self._socket.recv(32))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    """The one of this run."""
    return Nursery()


def start_alone(environ: dict[str, str], folder: Path, stderr: int) -> int:
    """Start a gateway from nothing, for one whose C library is to be another."""
    arguments = [sys.executable, "-c", START, str(folder)]
    return os.posix_spawn(sys.executable, arguments, environ, file_actions=[(os.POSIX_SPAWN_DUP2, stderr, 2)])


# Its own side


def _tend(requests: socket.socket) -> None:
    import redis.asyncio  # noqa: F401  (what a gateway would import when it starts)

    import gateway.cli.main  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        request, [*pipes], _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.dup2(pipes[0], 2)
            _become_gateway(**json.loads(request))
        os.close(pipes[0])
        requests.send(str(pid).encode())


def _become_gateway(environ: dict[str, str], folder: str) -> None:
    from gateway.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(folder)
    try:
        code = main(["serve"])
    except BaseException:  # the edge of the process: nothing of the nursery runs here any more
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _tend(socket.socket(fileno=int(sys.argv[1])))
