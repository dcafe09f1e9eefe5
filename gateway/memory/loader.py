"""Loading what earlier calls left behind, from the moment the phone rings. The call never waits long for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.errors import StoreError
from gateway.memory.facts import Fact
from gateway.memory.identity import only_person, same_person
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import MOST_FACTS, Recall, is_of, merged
from gateway.memory.summary_parser import PastCall

REMOTE_SECONDS: Final = 20.0
"""A store that has not answered by then has nothing for this call."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class MemoryLoader:
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
        self._person = ""

    async def by(self, seconds: float) -> list[PastCall]:
        """What has been found within so many seconds."""
        if seconds > 0:
            await asyncio.wait({self._own, self._remote, self._facts, self._pins}, timeout=seconds)
        return self.found()

    @property
    def facts(self) -> list[Fact]:
        """What is known by now of whoever speaks."""
        return [fact for fact in _found(self._facts) if is_of(fact.person, self.person)][:MOST_FACTS]

    @property
    def person(self) -> str:
        """Who speaks, of those on one number: who said so, or the only one that is known. Empty for who knows."""
        return self._person or only_person(self._names)

    @property
    def _names(self) -> list[str]:
        names = [fact.person for fact in _found(self._facts)] + [call.caller_name for call in self._all_calls]
        return list(filter(None, names))

    def person_is(self, name: str) -> bool:
        """The caller has given this name. Whether that changes what is known; then nothing of it counts as told."""
        before = self.facts, self.calls, self.pins
        self._person = name
        if (self.facts, self.calls, self.pins) == before:
            return False
        self._told.clear()
        return True

    @property
    def calls(self) -> list[PastCall]:
        """The calls of whoever speaks that are found by now, told or not."""
        return [call for call in self._all_calls if is_of(call.caller_name, self.person)]

    @property
    def _all_calls(self) -> list[PastCall]:
        return merged(_found(self._own), _found(self._remote), self._limit)

    @property
    def pins(self) -> list[PinnedTopic]:
        """The pinned topics, by now: the number's, so they are told while it is one person's."""
        sole = only_person(self._names)
        is_theirs = not self._names or sole and same_person(sole, self._person or sole)
        return _found(self._pins) if is_theirs else []

    async def rest(self) -> list[PastCall]:
        """What was too late for `by`, once all have answered."""
        await asyncio.wait({self._own, self._remote, self._facts, self._pins})
        return self.found()

    @property
    def so_long(self) -> float:
        """How long loading took, or has taken until now."""
        return self.seconds if self.seconds is not None else self._loop.time() - self._began_at

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
        except Exception:
            # The edge to what others have stored: whatever it is, the call goes on.
            self._failures.append(store)
            _log.exception("memory can't be read", extra={"store": store})
            return []
        finally:
            self._loading -= 1
            if not self._loading:
                self.seconds = round(self._loop.time() - self._began_at, 4)

    def found(self) -> list[PastCall]:
        """What has been found by now and was not given yet."""
        new = [call for call in self.calls if call.session_id not in self._told]
        self._told |= {call.session_id for call in new}
        return new


def _task(loading: Coroutine[Any, Any, list[T]]) -> asyncio.Task[list[T]]:
    return asyncio.get_running_loop().create_task(loading, name="remembering")


def _found(task: asyncio.Task[list[T]]) -> list[T]:
    return task.result() if task.done() and not task.cancelled() else []
