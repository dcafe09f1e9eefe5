"""
`gateway serve --workers N`: several processes that answer calls on one port.

The supervisor holds the listening socket, restarts workers that died, forwards signals, and runs a private Valkey
server unless REDIS_URL is set. A worker has a socket to the supervisor: the worker writes to it when it is ready, and
drains when it closes.

Workers are forks of a process that has imported the gateway, which takes most of the CPU of a start.
"""

import asyncio
import contextlib
import functools
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from prometheus_client.multiprocess import mark_process_dead

from gateway import metrics
from gateway.cluster.valkey import ValkeyTimeouts, private_valkey

_SAFE_PATH: Final = "PYTHONSAFEPATH"

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
    count: int, work: functools.partial[None], listener: socket.socket, *, data_dir: Path, has_redis: bool
) -> int:
    """Run `work` in `count` processes on one socket until a signal ends them. Returns the exit code."""

    async def run() -> int:
        timeouts = SupervisorTimeouts()
        if has_redis:
            return await Supervisor(WorkerLauncher(work, listener), timeouts).run(count)
        async with private_valkey(data_dir, os.environ, ValkeyTimeouts()) as valkey:
            with Connection(os.dup(valkey.lease_fd), readable=False) as lease:  # each worker gets a copy
                launcher = WorkerLauncher(work, listener, valkey.url, lease)
                return await Supervisor(launcher, timeouts).run(count)

    return asyncio.run(run())


def report_ready(link: socket.socket, drain: Callable[[], None]) -> None:
    """Inform the supervisor that this worker takes calls. Calls `drain` when the supervisor is gone."""
    loop = asyncio.get_running_loop()

    def closed() -> None:
        loop.remove_reader(link)
        drain()

    with contextlib.suppress(OSError):  # the supervisor is gone already, which the reader finds out
        link.send(b"\n")
    loop.add_reader(link, closed)


class WorkerLauncher:
    """
    Starts workers as forks of a process that has imported what `work` needs and does nothing else.

    A worker calls `work(link, *arguments)`, with its socket to the supervisor.
    """

    def __init__(self, work: functools.partial[None], *arguments: object) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([work.func.__module__])
        self._work = work
        self._arguments = arguments
        self._lock = threading.Lock()

    def start(self, link: socket.socket) -> BaseProcess:
        """
        Start a worker. Blocking: the first start takes as long as the imports.

        Raises OSError or EOFError without memory or process numbers.
        """
        process = self._context.Process(target=_begin, args=(self._work, link, *self._arguments))
        with self._lock:
            # The working directory would be searched first: a user's calendar.py would hide Python's.
            os.environ[_SAFE_PATH] = "1"
            try:
                process.start()
            finally:
                del os.environ[_SAFE_PATH]
        return process


def _begin(work: functools.partial[None], link: socket.socket, *arguments: object) -> None:
    os.environ.pop(_SAFE_PATH, None)
    os.setsid()  # so that Ctrl-C reaches it once, through the supervisor
    try:
        work(link, *arguments)
    finally:
        logging.shutdown()  # which a fork does not do by itself


class Supervisor:
    """Keeps worker processes running."""

    def __init__(self, launcher: WorkerLauncher, timeouts: SupervisorTimeouts) -> None:
        self._launcher = launcher
        self._timeouts = timeouts
        self._processes: dict[BaseProcess, bool] = {}
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
            _send(process, number if is_ready else signal.SIGTERM)

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
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        ours, workers = socket.socketpair()
        with ours:
            try:
                with workers:
                    process = await asyncio.to_thread(self._launcher.start, workers)
            except (OSError, EOFError) as error:
                _log.error("no worker can be started", extra={"reason": getattr(error, "strerror", "")})
                return 1
            self._processes[process] = False
            if self._stopping.is_set():  # the signal came while it was being started
                _send(process, signal.SIGTERM)
            loop.add_reader(ours, self._on_ready, ours, process)
            loop.add_reader(process.sentinel, ended.set)
            try:
                await ended.wait()
                return process.exitcode or 0
            finally:
                loop.remove_reader(process.sentinel)
                loop.remove_reader(ours)
                del self._processes[process]
                if folder := os.environ.get(metrics.FOLDER_VARIABLE):
                    mark_process_dead(process.pid, folder)  # type: ignore[no-untyped-call]

    def _on_ready(self, ours: socket.socket, process: BaseProcess) -> None:
        if ours.recv(1):
            self._processes[process] = True
            self._first_ready.set()
        asyncio.get_running_loop().remove_reader(ours)


def _send(process: BaseProcess, number: int) -> None:
    assert process.pid is not None  # it was started
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
