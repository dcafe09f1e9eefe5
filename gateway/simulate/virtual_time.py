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

The clock stands still while a thread started by `run_in_executor` works, and while a socket or pipe has something to
read. It does not know about other processes or about threads of any other kind: such tests belong on the real clock.
"""

import asyncio
import math
import selectors
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeVar

T = TypeVar("T")

_LEAST_WAIT: Final = 0.001
"""Seconds; shorter waits are added up, because the system rounds them up."""


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

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._loop.waits_for_threads:
            return super().select(0 if timeout is not None and timeout <= 0 else None)
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            if len(self.get_map()) > 1:  # one is the loop's own wake-up pipe
                return super().select(None)
            raise Deadlock("every task waits, and nothing is left that could wake one")
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
