"""Loading what earlier calls left behind, from the moment the phone rings. The call never waits long for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.errors import StoreError
from gateway.memory.call_notes import PastCall
from gateway.memory.facts import Fact
from gateway.memory.pins import Pin
from gateway.memory.recall import Recall, merged

REMOTE_SECONDS: Final = 20.0
"""A store that has not answered by then has nothing for this call."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Remembering:
    """
    What is known of one caller to one agent: topics, facts and past calls of our own store at once, a remote store's
    calls when they come.

    Owns four tasks; `cancel` ends them. A store that fails costs a log line, never the call.
    """

    def __init__(self, recall: Recall, *, agent: str, caller: str, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._failures: list[str] = []
        self._loading = 4
        self.seconds: float | None = None
        """How long loading took, once all have answered."""
        self._own = _task(self._loaded(lambda: recall.own_calls(agent, caller), "own"))
        self._remote = _task(self._loaded(lambda: recall.remote_calls(agent, caller), "remote"))
        self._facts = _task(self._loaded(lambda: recall.known_facts(agent, caller), "own"))
        self._pins = _task(self._loaded(lambda: recall.pinned_topics(agent, caller), "own"))
        self._told: set[str] = set()

    async def by(self, seconds: float) -> list[PastCall]:
        """What has been found within so many seconds."""
        if seconds > 0:
            await asyncio.wait({self._own, self._remote, self._facts, self._pins}, timeout=seconds)
        return self._new()

    @property
    def facts(self) -> list[Fact]:
        """What is known by now."""
        return _found(self._facts)

    @property
    def pins(self) -> list[Pin]:
        """The pinned topics, by now."""
        return _found(self._pins)

    async def rest(self) -> list[PastCall]:
        """What was too late for `by`, once all have answered."""
        await asyncio.wait({self._own, self._remote})
        return self._new()

    @property
    def outcome(self) -> str:
        """What has become of it by now: loaded, late, or failed."""
        if self._failures:
            return "failed"
        return "late" if self.seconds is None else "loaded"

    def cancel(self) -> None:
        for loading in (self._own, self._remote, self._facts, self._pins):
            loading.cancel()

    async def _loaded(self, load: Callable[[], Awaitable[list[T]]], store: str) -> list[T]:
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                return await load()
        except (StoreError, TimeoutError) as error:
            self._failures.append(store)
            _log.warning("memory could not be loaded", extra={"store": store, "error": type(error).__name__})
            return []
        finally:
            self._loading -= 1
            if not self._loading:
                self.seconds = round(self._loop.time() - self._began_at, 4)

    def _new(self) -> list[PastCall]:
        calls = merged(_found(self._own), _found(self._remote), self._limit)
        new = [call for call in calls if call.session_id not in self._told]
        self._told |= {call.session_id for call in new}
        return new


def _task(loading: Coroutine[Any, Any, list[T]]) -> asyncio.Task[list[T]]:
    return asyncio.get_running_loop().create_task(loading, name="remembering")


def _found(task: asyncio.Task[list[T]]) -> list[T]:
    return task.result() if task.done() and not task.cancelled() else []
