"""
Starts gateways quickly: a server process imports everything once, and each gateway is a fork of it.

This file also runs as that process. It reads requests (environment and folder, with the pipe for stderr) from the
socket it was given, and answers with the pid of the new gateway.
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
        request = json.dumps({"environ": environ, "folder": str(folder)}).encode()
        with self._lock:
            socket.send_fds(self._socket, [request], [stderr])
            return int(self._socket.recv(32))

    def _close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def fork_server() -> ForkServer:
    """The fork server of this run."""
    return ForkServer()


def start_alone(environ: dict[str, str], folder: Path, stderr: int) -> int:
    """Start a gateway without forking, for LD_PRELOAD."""
    arguments = [sys.executable, "-c", START, str(folder)]
    return os.posix_spawn(sys.executable, arguments, environ, file_actions=[(os.POSIX_SPAWN_DUP2, stderr, 2)])


# The server process


def _serve(requests: socket.socket) -> None:
    import redis.asyncio  # noqa: F401  (imported by gateways at start)

    import gateway.cli.main  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the gateways
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
    except BaseException:  # the edge of the forked process
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
