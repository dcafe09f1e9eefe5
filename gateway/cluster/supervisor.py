"""
`gateway serve --workers N`: several processes that answer calls on one port.

This process only watches over them: it holds the listening socket, starts a worker in place of one that died, and
passes signals on. A worker's standard input is a socket to here. The worker says on it that it is ready; when it ends,
nobody watches any more.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from gateway import metrics

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Before a worker is started in place of one that died young, in seconds; the last one repeats."""
YOUNG_SECONDS: Final = 5.0

# Without -P the working folder would come first, and a user's calendar.py before Python's.
_PYTHON: Final = (sys.executable, "-P", "-c", "import sys; from gateway.cli.main import main; sys.exit(main())")

_log = logging.getLogger(__name__)


def supervise(count: int, listener: socket.socket, *, options: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run so many workers on the socket until a signal ends them; the exit code."""
    command = (*_PYTHON, "serve", "--fd", str(listener.fileno()), *options)
    return asyncio.run(Supervisor(command, environ=environ, share=[listener.fileno()]).run(count))


def report_ready(drain: Callable[[], None]) -> None:
    """A worker says that it takes calls. When nobody watches over it any more, it drains."""
    loop, line = asyncio.get_running_loop(), sys.stdin.fileno()

    def ended() -> None:
        loop.remove_reader(line)
        drain()

    with contextlib.suppress(OSError):  # then nobody is there already, which the reader finds out
        os.write(line, b"\n")
    loop.add_reader(line, ended)


def pause_after(died_young: int) -> float:
    """How long to wait after so many workers in a row have died young."""
    return PAUSES[min(died_young, len(PAUSES)) - 1] if died_young else 0.0


class Supervisor:
    """Worker processes that run the same command, with the same open files."""

    def __init__(self, command: Sequence[str], *, environ: Mapping[str, str], share: Sequence[int] = ()) -> None:
        self._command = command
        self._environ = environ
        self._share = share
        self._processes: dict[asyncio.subprocess.Process, bool] = {}
        """Each with whether it is ready."""
        self._begun = asyncio.Event()
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self, count: int) -> int:
        """
        Keep so many workers running until a signal ends them; the exit code.

        The first one makes the files that all of them share, so the others wait until it is ready. If it never is,
        its exit code is the crew's.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._pass_on, number)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_one())
            await self._begun.wait()
            for _ in range(count - 1):
                group.create_task(self._keep_one())
        return self._exit_code

    def _pass_on(self, number: int) -> None:
        """A worker that is still starting is terminated: Python may lose a Ctrl-C in the middle of an import."""
        self._stopping.set()
        for process, is_ready in self._processes.items():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number if is_ready else signal.SIGTERM)

    async def _keep_one(self) -> None:
        """A worker, and another one whenever it dies."""
        clock, died_young = asyncio.get_running_loop().time, 0
        while not self._stopping.is_set():
            born = clock()
            code = await self._live()
            if self._stopping.is_set():
                break
            if not self._begun.is_set():
                self._exit_code = code if code > 0 else 1
                self._stopping.set()
                break
            died_young = died_young + 1 if clock() - born < YOUNG_SECONDS else 0
            pause = pause_after(died_young)
            _log.error("a worker died, another one is started", extra={"exit_code": code, "in_seconds": pause})
            await self._stopped_within(pause)
        self._begun.set()

    async def _live(self) -> int:
        """One worker from its start to its end; its exit code."""
        loop = asyncio.get_running_loop()
        line, workers_end = socket.socketpair()
        with line:
            try:
                with workers_end:
                    process = await self._start(workers_end)
            except OSError as error:  # no memory left, or no process number
                _log.error("no worker can be started", extra={"reason": error.strerror})
                return 1
            self._processes[process] = False
            if self._stopping.is_set():  # the signal came while it was being started
                process.terminate()
            loop.add_reader(line, self._heard, line, process)
            try:
                return await process.wait()
            finally:
                loop.remove_reader(line)
                del self._processes[process]
                if folder := self._environ.get(metrics.FOLDER_VARIABLE):
                    mark_process_dead(process.pid, folder)  # type: ignore[no-untyped-call]

    async def _start(self, line: socket.socket) -> asyncio.subprocess.Process:
        """In a session of its own: Ctrl-C reaches it through us, and once."""
        return await asyncio.create_subprocess_exec(
            *self._command, stdin=line.fileno(), pass_fds=self._share, env=self._environ, start_new_session=True
        )

    def _heard(self, line: socket.socket, process: asyncio.subprocess.Process) -> None:
        if line.recv(1):
            self._processes[process] = True
            self._begun.set()
        asyncio.get_running_loop().remove_reader(line)

    async def _stopped_within(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
