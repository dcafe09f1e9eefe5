"""Loading what earlier calls left behind, from the moment the phone rings. The call never waits long for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from gateway.errors import StoreError
from gateway.memory.call_notes import PastCall
from gateway.memory.recall import Recall, merged

REMOTE_SECONDS: Final = 20.0
"""A store that has not answered by then has nothing for this call."""

_log = logging.getLogger(__name__)

Load = Callable[[], Awaitable[list[PastCall]]]


class Remembering:
    """
    Past calls of one caller with one agent: our own store's at once, a remote store's when they come.

    Owns two tasks; `cancel` ends them. A store that fails costs a log line, never the call.
    """

    def __init__(self, recall: Recall, *, agent: str, caller: str, limit: int) -> None:
        self._limit = limit
        self._own = _task(_loaded(lambda: recall.own_calls(agent, caller), "own"))
        self._remote = _task(_loaded(lambda: recall.remote_calls(agent, caller), "remote"))
        self._told: set[str] = set()

    async def by(self, seconds: float) -> list[PastCall]:
        """What has been found within so many seconds."""
        if seconds > 0:
            await asyncio.wait({self._own, self._remote}, timeout=seconds)
        return self._new()

    async def rest(self) -> list[PastCall]:
        """What was too late for `by`, once all have answered."""
        await asyncio.wait({self._own, self._remote})
        return self._new()

    def cancel(self) -> None:
        self._own.cancel()
        self._remote.cancel()

    def _new(self) -> list[PastCall]:
        calls = merged(_found(self._own), _found(self._remote), self._limit)
        new = [call for call in calls if call.session_id not in self._told]
        self._told |= {call.session_id for call in new}
        return new


def _task(loading: Coroutine[Any, Any, list[PastCall]]) -> asyncio.Task[list[PastCall]]:
    return asyncio.get_running_loop().create_task(loading, name="remembering")


async def _loaded(load: Load, store: str) -> list[PastCall]:
    try:
        async with asyncio.timeout(REMOTE_SECONDS):
            return await load()
    except (StoreError, TimeoutError) as error:
        _log.warning("memory could not be loaded", extra={"store": store, "error": type(error).__name__})
        return []


def _found(task: asyncio.Task[list[PastCall]]) -> list[PastCall]:
    return task.result() if task.done() and not task.cancelled() else []
