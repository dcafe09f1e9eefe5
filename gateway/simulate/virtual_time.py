"""
An event loop with a clock of its own: it jumps to the next timer instead of waiting for it, or runs at some speed.

A call of minutes runs in milliseconds, and always in the same order. `gateway replay` runs recorded calls on it, and
so does a test that is marked, or a whole module:

    pytestmark = pytest.mark.virtual_time

    async def test_token_expires():
        await asyncio.sleep(31)          # returns at once; loop.time() has moved by 31

The marked test and its fixtures run on this loop; the hook is in tests/conftest.py. Only `loop.time()` and what is
built on it (`sleep`, `timeout`, `wait_for`, `call_later`) are virtual. `time.monotonic()` and `datetime.now()` are not,
so code under test reads the loop's clock, or takes one.

The clock stands still while a thread started by `run_in_executor` works, while a socket or pipe has something to read,
and, on Linux, while the kernel carries data from one socket of the loop to another. It does not know about other
processes or about threads of any other kind: such tests belong on the real clock.
"""

import asyncio
import contextlib
import fcntl
import math
import selectors
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LEAST_WAIT: Final = 0.001
"""Seconds; shorter waits are added up, because the system rounds them up."""
_DELIVERY_WAIT: Final = 0.0002
_LONGEST_DELIVERY: Final = 1.0
"""Real seconds. A busy kernel takes milliseconds to carry data over loopback, at a high speed seconds of the clock."""
_KNOWS_DELIVERY: Final = sys.platform == "linux"
_RECEIVED: Final = struct.Struct("=128xQ")
_SENT: Final = struct.Struct("=200xQQ")
"""In Linux's `tcp_info`: bytes that were received, bytes that were sent, and those of them that were sent again."""


class Deadlock(RuntimeError):
    """Every task waits, and no timer, thread or socket is left that could wake one."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`speed`: seconds of its clock in a real second while the loop is idle. Infinite: the clock jumps."""

    def __init__(self, speed: float = math.inf) -> None:
        self._now = 1000.0
        self._threads_at_work = 0
        super().__init__(_JumpingSelector(self, speed))

    def time(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds

    @property
    def waits_for_threads(self) -> bool:
        return self._threads_at_work > 0

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._threads_at_work += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, *args: Any) -> None:
        self._threads_at_work += 1  # the one that joins the executor's threads
        try:
            await super().shutdown_default_executor(*args)
        finally:
            self._threads_at_work -= 1

    def _thread_done(self, _: asyncio.Future[Any]) -> None:
        self._threads_at_work -= 1


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would wait for its next timer, moves the clock there."""

    def __init__(self, loop: VirtualTimeLoop, speed: float) -> None:
        super().__init__()
        self._loop = loop
        self._speed = speed
        self._unwaited = 0.0
        self._delivery_waited = 0.0
        self._connections: dict[tuple[Any, Any], int] = {}
        """Sockets by their own address and that of the peer."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.waits_for_threads:
            return super().select(0 if timeout is not None and timeout <= 0 else None)
        ready = super().select(0)
        if ready:
            self._delivery_waited = 0.0
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            if len(self.get_map()) > 1:  # one is the loop's own wake-up pipe
                return super().select(None)
            raise Deadlock("every task waits, and nothing is left that could wake one")
        if _KNOWS_DELIVERY and self._delivery_waited < _LONGEST_DELIVERY and self._is_data_on_its_way():
            self._delivery_waited += _DELIVERY_WAIT
            return super().select(_DELIVERY_WAIT)
        self._unwaited += timeout / self._speed
        if self._unwaited < _LEAST_WAIT:
            self._loop.advance(timeout)
            return ready
        before = time.monotonic()
        ready = super().select(self._unwaited)
        waited = time.monotonic() - before
        unwaited, self._unwaited = self._unwaited, 0.0
        # Data that came early must be handled before the timer.
        self._loop.advance(timeout if not ready else min(timeout, timeout * waited / unwaited))
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if events & selectors.EVENT_READ:
            with contextlib.suppress(OSError), _borrowed(key.fd) as connection:  # a pipe, or a socket that listens
                if isinstance(local := connection.getsockname(), tuple):  # not a Unix socket
                    self._connections[local, connection.getpeername()] = key.fd
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._connections = {ends: fd for ends, fd in self._connections.items() if fd != key.fd}
        return key

    def _is_data_on_its_way(self) -> bool:
        """Whether one of these sockets connects, or has sent what another of them has not received yet."""
        if any(key.events == selectors.EVENT_WRITE for key in self.get_map().values()):  # only while it connects
            return True
        pairs = ((fd, self._connections.get((peer, local))) for (local, peer), fd in self._connections.items())
        return any(receiver is not None and _sent(fd) > _received(receiver) for fd, receiver in pairs)


def _sent(fd: int) -> int:
    """How many bytes the peer should have; 0 if it has acknowledged them all."""
    if not any(fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))):
        return 0
    once, again = _SENT.unpack(_tcp_info(fd, _SENT.size))
    return int(once - again)


def _received(fd: int) -> int:
    return int(_RECEIVED.unpack(_tcp_info(fd, _RECEIVED.size))[0])


def _tcp_info(fd: int, size: int) -> bytes:
    with _borrowed(fd) as connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)


@contextlib.contextmanager
def _borrowed(fd: int) -> Iterator[socket.socket]:
    """A socket object for this descriptor, which stays open."""
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()
