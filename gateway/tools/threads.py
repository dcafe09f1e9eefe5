"""
Threads for user code.

Every run has a daemon thread, and a coroutine an event loop in it. Code that blocks or never ends holds up neither
the gateway's event loop, nor other functions, nor the end of the process. One shared loop would be cheaper, but a
single blocking coroutine would stop the functions of all calls.
"""

import asyncio
import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

from gateway.errors import GatewayError

MOST_PER_FUNCTION: Final = 32
"""Threads of one function in all calls together; further runs are refused."""
BREAK_OFF_SECONDS: Final = 2.0
"""Grace period of abandoned work. Then a loop in Python code is interrupted: all threads share one interpreter, so it
would slow down every call."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class ToolThreadFailed(GatewayError):
    """User code raised `error`. Wrapped, since it could be SystemExit or CancelledError."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(type(error).__name__)
        self.error = error


class ToolThreadsBusy(GatewayError):
    """All threads of this function are in use, probably by runs that hang."""


class ToolThread(Generic[T]):
    """One run of `work` in a daemon thread. `work` gets the ToolThread, to run a coroutine with `complete`."""

    def __init__(self, work: "Callable[[ToolThread[T]], T]", *, name: str) -> None:
        self.result: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._home = asyncio.get_running_loop()
        self._own_loop: asyncio.AbstractEventLoop | None = None
        self._given_up = False
        self._over = False
        self._job = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    # Called on the event loop

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def give_up(self, *, break_off_after: float = BREAK_OFF_SECONDS) -> None:
        """Abandon the work. A coroutine is cancelled; other code is interrupted after the grace period."""
        self.result.cancel()
        self._given_up = True
        if (loop := self._own_loop) is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
        self._home.call_later(break_off_after, self._break_off)

    def _break_off(self) -> None:
        """Raise SystemExit in the thread. A running system call finishes first."""
        with self._job:  # or the thread's id could be reused by now
            if not self._over and self._thread.ident is not None:
                thread = ctypes.c_ulong(self._thread.ident)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit))

    # Called in the thread

    def complete(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run the coroutine. Tasks that it leaves behind are cancelled."""
        with asyncio.Runner() as runner:
            loop = self._own_loop = runner.get_loop()
            loop.set_exception_handler(_log_lost_error)
            if self._given_up:  # before there was a loop to cancel it on
                coroutine.close()
                raise asyncio.CancelledError
            return runner.run(coroutine)

    def _run(self, work: "Callable[[ToolThread[T]], T]") -> None:
        with contextlib.suppress(SystemExit):  # interrupted just before the end
            try:
                result = work(self)
            except BaseException as error:
                self._report(self.result.set_exception, ToolThreadFailed(error))
            else:
                self._report(self.result.set_result, result)
            with self._job:
                self._over = True

    def _report(self, settle: Callable[[Any], None], outcome: object) -> None:
        def arrive() -> None:
            if not self.result.done():
                settle(outcome)

        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._home.call_soon_threadsafe(arrive)


class ToolThreads:
    """The threads of all calls, limited per function: one that hangs leaves the others theirs."""

    def __init__(
        self, *, most_per_function: int = MOST_PER_FUNCTION, break_off_after: float = BREAK_OFF_SECONDS
    ) -> None:
        self._most = most_per_function
        self._break_off_after = break_off_after
        self._workers: WeakKeyDictionary[object, list[ToolThread[Any]]] = WeakKeyDictionary()

    async def run(self, function: object, work: Callable[[ToolThread[T]], T], *, name: str) -> T:
        """Run `work` in a thread of `function`. Raises ToolThreadFailed or ToolThreadsBusy."""
        alive = [worker for worker in self._workers.get(function, ()) if worker.alive]
        if len(alive) >= self._most:
            raise ToolThreadsBusy("all threads of this function are in use")
        worker = ToolThread(work, name=name)
        self._workers[function] = [*alive, worker]
        try:
            return await worker.result
        except asyncio.CancelledError:
            worker.give_up(break_off_after=self._break_off_after)
            raise


def _log_lost_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's default handler would log the error text, which may quote the caller."""
    _log.warning("a task of a function failed", extra={"error": type(context.get("exception")).__name__})
