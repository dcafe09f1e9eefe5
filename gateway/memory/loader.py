"""Loads the memory of a caller while the phone rings. The call never waits long for it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from gateway.errors import StoreError
from gateway.memory.facts import Fact
from gateway.memory.identity import only_person, same_person
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import MOST_FACTS, Recall, is_of, limited, merged, most_trusted
from gateway.memory.summary_parser import PastCall

REMOTE_SECONDS: Final = 20.0
"""A store that takes longer is ignored for this call."""

_log = logging.getLogger(__name__)

T = TypeVar("T")


class MemoryLoader:
    """
    Loads topics, facts and past calls of one caller with one agent from our own store, and calls from a remote one.

    Owns four tasks; `cancel` ends them. A failing store is logged and never affects the call.
    """

    def __init__(self, recall: Recall, *, agent: str, caller: str, limit: int) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._began_at = self._loop.time()
        self._has_failed = False
        self.seconds: float | None = None
        """How long loading took; None while it goes on."""
        self._own = _task(self._loaded(lambda: recall.own_calls(agent, caller), "own"))
        self._remote = _task(self._loaded(lambda: recall.remote_calls(agent, caller), "remote"))
        self._facts = _task(self._loaded(lambda: recall.known_facts(agent, caller), "own"))
        self._topics = _task(self._loaded(lambda: recall.pinned_topics(agent, caller), "own"))
        self._tasks: set[asyncio.Task[Any]] = {self._own, self._remote, self._facts, self._topics}
        self._loading = len(self._tasks)
        self._given: set[str] = set()
        self._person = ""

    async def by(self, seconds: float) -> list[PastCall]:
        """The calls that are loaded within this time."""
        if seconds > 0:
            await asyncio.wait(self._tasks, timeout=seconds)
        return self.found()

    @property
    def facts(self) -> list[Fact]:
        """The facts loaded so far about the person who speaks."""
        theirs = (fact for fact in _found(self._facts) if is_of(fact.person, self.person))
        return limited(theirs, MOST_FACTS, lambda fact: fact.trust)

    @property
    def person(self) -> str:
        """The person who speaks: by the name they gave, or the only known person on the number. Empty if unknown."""
        return self._person or only_person(self._names)

    @property
    def _names(self) -> list[str]:
        """Those of the most trusted calls: another name in a less trusted one is no sign of several people."""
        names = [(fact.trust, fact.person) for fact in _found(self._facts)]
        return most_trusted([*names, *((call.trust, call.caller_name) for call in self._all_calls)])

    def person_is(self, name: str) -> bool:
        """Set the person who speaks. Returns whether that changes the memory; if so, all of it counts as new."""
        before = self.facts, self.calls, self.topics
        self._person = name
        if (self.facts, self.calls, self.topics) == before:
            return False
        self._given.clear()
        return True

    @property
    def calls(self) -> list[PastCall]:
        """The calls loaded so far of the person who speaks."""
        return [call for call in self._all_calls if is_of(call.caller_name, self.person)]

    @property
    def _all_calls(self) -> list[PastCall]:
        return merged(_found(self._own), _found(self._remote), self._limit)

    @property
    def topics(self) -> list[PinnedTopic]:
        """The topics loaded so far. They belong to the number, so they are used only if one person is known on it."""
        sole = only_person(self._names)
        is_theirs = not self._names or sole and same_person(sole, self._person or sole)
        return _found(self._topics) if is_theirs else []

    @property
    def of_everyone(self) -> tuple[list[PastCall], list[Fact], list[PinnedTopic]]:
        """What is loaded so far of all people on the number, as far as one of them may be given it."""
        facts = _found(self._facts)
        people = {fact.person for fact in facts}
        usable = {
            fact.id
            for person in people
            for fact in limited((one for one in facts if one.person == person), MOST_FACTS, lambda fact: fact.trust)
        }
        return self._all_calls, [fact for fact in facts if fact.id in usable], _found(self._topics)

    async def rest(self) -> list[PastCall]:
        """The calls that were too late for `by`, once every store has answered."""
        await asyncio.wait(self._tasks)
        return self.found()

    @property
    def elapsed(self) -> float:
        """How long loading took, or has taken so far."""
        return self.seconds if self.seconds is not None else self._loop.time() - self._began_at

    @property
    def outcome(self) -> str:
        """The state of loading: loaded, late, or failed."""
        if self._has_failed:
            return "failed"
        return "late" if self.seconds is None else "loaded"

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _loaded(self, load: Callable[[], Awaitable[list[T]]], store: str) -> list[T]:
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                return await load()
        except (StoreError, TimeoutError) as error:
            _log.warning("memory could not be loaded", extra={"store": store, "error": type(error).__name__})
        except Exception:
            # Stored data may be anything; the call goes on in any case.
            _log.exception("memory can't be read", extra={"store": store})
        finally:
            self._loading -= 1
            if not self._loading:
                self.seconds = round(self._loop.time() - self._began_at, 4)
        self._has_failed = True
        return []

    def found(self) -> list[PastCall]:
        """The calls loaded so far that were not returned before."""
        new = [call for call in self.calls if call.session_id not in self._given]
        self._given |= {call.session_id for call in new}
        return new


def _task(loading: Coroutine[Any, Any, list[T]]) -> asyncio.Task[list[T]]:
    return asyncio.get_running_loop().create_task(loading, name="load memory")


def _found(task: asyncio.Task[list[T]]) -> list[T]:
    return task.result() if task.done() and not task.cancelled() else []
