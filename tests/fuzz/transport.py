"""A connection without a network, and an event loop without a selector."""

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class FakeSocket:
    """For picows, which sets options of the socket, and writes to the transport if it can't write to the socket."""

    def setsockopt(self, *option: int) -> None:
        pass

    def getsockopt(self, *option: int) -> int:
        return 0

    def fileno(self) -> int:
        return -1

    def getpeername(self) -> tuple[str, int]:
        return ("192.0.2.1", 50000)

    getsockname = getpeername


class FakeTransport(asyncio.Transport):
    """Collects what is written. Like those of asyncio, it reads nothing while paused or closing."""

    def __init__(self) -> None:
        super().__init__({"socket": FakeSocket()})
        self.written = bytearray()
        self._is_closing = self._is_paused = False
        self._protocol: Any = None

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)

    def feed(self, data: bytes, loop: "FakeLoop") -> None:
        """Deliver bytes to the protocol. While it is paused, the loop runs; what it never reads is dropped."""
        while data:
            if not self.is_reading():
                loop.run_until(loop.time())
            if not self.is_reading():
                return
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                room = memoryview(self._protocol.get_buffer(-1))
                taken = min(len(room), len(data))
                room[:taken] = data[:taken]
                self._protocol.buffer_updated(taken)
            else:
                taken = len(data)
                self._protocol.data_received(data)
            data = data[taken:]

    # Called by the protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._is_closing:
            self.written += data

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._lose)

    close = abort

    def _lose(self) -> None:
        self._protocol.connection_lost(None)
        self._protocol = None


class FakeLoop(asyncio.AbstractEventLoop):
    """Callbacks, timers and tasks without a selector, which would take most of the time. Time passes at once."""

    def __init__(self) -> None:
        self._now = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        self._ready: deque[asyncio.Handle] = deque()
        self.problems: list[dict[str, Any]] = []

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, handle)
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        return asyncio.Task(coro, loop=self, **options)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.problems.append(context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the list until its time."""

    def turn(self) -> None:
        """Run what is ready."""
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle.cancelled():
                handle._run()

    def run_until(self, now: float) -> None:
        """Run everything that happens up to a time."""
        while self._ready or (self._timers and self._timers[0].when() <= now):
            if not self._ready:
                timer = heapq.heappop(self._timers)
                self._now = max(self._now, timer.when())
                self._ready.append(timer)
            self.turn()
        self._now = now


@contextmanager
def running_loop() -> Iterator[FakeLoop]:
    """A loop for one input. What its exception handler got is raised at the end."""
    loop = FakeLoop()
    outer = asyncio._get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        yield loop
    finally:
        asyncio._set_running_loop(outer)
    for context in loop.problems:
        raise context.get("exception") or AssertionError(context["message"])
