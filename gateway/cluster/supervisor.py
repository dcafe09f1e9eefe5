"""
`gateway serve --workers N`: several processes that answer calls on one port.

The supervisor holds the listening socket, restarts workers that died, forwards signals, and runs a private Valkey
server unless REDIS_URL is set. A worker's standard input is a socket to the supervisor: the worker writes to it when it
is ready, and drains when it closes.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from gateway import metrics
from gateway.cluster.valkey import ValkeyTimeouts, private_valkey

# -P, because the working directory would be searched first: a user's calendar.py would hide Python's.
_PYTHON: Final = (sys.executable, "-P", "-c", "import sys; from gateway.cli.main import main; sys.exit(main())")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SupervisorTimeouts:
    """In seconds."""

    restart_pauses: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0)
    """Before the restart of a worker that died young; the last one repeats."""
    young: float = 5.0

    def pause_after(self, died_young: int) -> float:
        """The pause after this many workers in a row have died young."""
        return self.restart_pauses[min(died_young, len(self.restart_pauses)) - 1] if died_young else 0.0


def supervise(
    count: int,
    listener: socket.socket,
    *,
    options: Sequence[str],
    environ: Mapping[str, str],
    data_dir: Path,
    has_redis: bool,
) -> int:
    """Run `count` workers on the socket until a signal ends them. Returns the exit code."""
    command = (*_PYTHON, "serve", "--fd", str(listener.fileno()), *options)

    async def run() -> int:
        timeouts = SupervisorTimeouts()
        if has_redis:
            return await Supervisor(command, timeouts, environ=environ, share=[listener.fileno()]).run(count)
        async with private_valkey(data_dir, environ, ValkeyTimeouts()) as valkey:
            share = [listener.fileno(), valkey.lease_fd]
            private = (*command, "--private-redis", valkey.url)
            return await Supervisor(private, timeouts, environ=environ, share=share).run(count)

    return asyncio.run(run())


def report_ready(drain: Callable[[], None]) -> None:
    """Inform the supervisor that this worker takes calls. Calls `drain` when the supervisor is gone."""
    loop, fd = asyncio.get_running_loop(), sys.stdin.fileno()

    def closed() -> None:
        loop.remove_reader(fd)
        drain()

    with contextlib.suppress(OSError):  # the supervisor is gone already, which the reader finds out
        os.write(fd, b"\n")
    loop.add_reader(fd, closed)


class Supervisor:
    """Keeps worker processes running, all with the same command and the same open files (`share`)."""

    def __init__(
        self, command: Sequence[str], timeouts: SupervisorTimeouts, *, environ: Mapping[str, str], share: Sequence[int]
    ) -> None:
        self._command = command
        self._timeouts = timeouts
        self._environ = environ
        self._share = share
        self._processes: dict[asyncio.subprocess.Process, bool] = {}
        """Whether each of them is ready."""
        self._first_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self, count: int) -> int:
        """
        Keep `count` workers running until a signal ends them. Returns the exit code.

        The first one creates the files that all of them share, so the others start when it is ready. If it never is,
        its exit code is returned.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._forward_signal, number)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_running())
            await self._first_ready.wait()
            for _ in range(count - 1):
                group.create_task(self._keep_running())
        return self._exit_code

    def _forward_signal(self, number: int) -> None:
        """A worker that is still starting gets SIGTERM: Python may lose a Ctrl-C during an import."""
        self._stopping.set()
        for process, is_ready in self._processes.items():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number if is_ready else signal.SIGTERM)

    async def _keep_running(self) -> None:
        clock, died_young = asyncio.get_running_loop().time, 0
        while not self._stopping.is_set():
            started = clock()
            code = await self._run_worker()
            if self._stopping.is_set():
                break
            if not self._first_ready.is_set():
                self._exit_code = code if code > 0 else 1
                self._stopping.set()
                break
            died_young = died_young + 1 if clock() - started < self._timeouts.young else 0
            pause = self._timeouts.pause_after(died_young)
            _log.error("a worker died, another one is started", extra={"exit_code": code, "in_seconds": pause})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()
        self._first_ready.set()

    async def _run_worker(self) -> int:
        """Run one worker to its end. Returns its exit code."""
        loop = asyncio.get_running_loop()
        ours, workers = socket.socketpair()
        with ours:
            try:
                with workers:
                    process = await asyncio.create_subprocess_exec(
                        *self._command,
                        stdin=workers.fileno(),
                        pass_fds=self._share,
                        env=self._environ,
                        start_new_session=True,  # so that Ctrl-C reaches it once, through the supervisor
                    )
            except OSError as error:  # no memory left, or no process number
                _log.error("no worker can be started", extra={"reason": error.strerror})
                return 1
            self._processes[process] = False
            if self._stopping.is_set():  # the signal came while it was being started
                process.terminate()
            loop.add_reader(ours, self._on_ready, ours, process)
            try:
                return await process.wait()
            finally:
                loop.remove_reader(ours)
                del self._processes[process]
                if folder := self._environ.get(metrics.FOLDER_VARIABLE):
                    mark_process_dead(process.pid, folder)  # type: ignore[no-untyped-call]

    def _on_ready(self, ours: socket.socket, process: asyncio.subprocess.Process) -> None:
        if ours.recv(1):
            self._processes[process] = True
            self._first_ready.set()
        asyncio.get_running_loop().remove_reader(ours)
