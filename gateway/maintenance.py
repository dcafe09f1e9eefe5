"""What runs beside calls for as long as the application does."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from gateway.agents import Agent
from gateway.errors import StoreError
from gateway.finalization.archive import Archive
from gateway.finalization.summary.summarizer import Summarizer
from gateway.history.event_store import Cursor, EventStore
from gateway.memory.erasure import Eraser
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopics
from gateway.memory.retention import Retention
from gateway.settings import Settings

RETENTION_CHECK_SECONDS: Final = 3600.0
DAY_SECONDS: Final = 24 * 3600.0
PREPARE_AFTER: Final = 1.0
_CANCEL_SECONDS: Final = 5.0
_GARBAGE_SECONDS: Final = 5.0
_EVERYTHING_SECONDS: Final = 3600.0
_SOME_OBJECTS: Final = 10_000
_MANY_OBJECTS: Final = 1_000_000
"""About 100 MB, more than all calls of a full gateway hold at once."""

_log = logging.getLogger(__name__)


async def prepare(writer: Summarizer) -> None:
    """A provider's library takes seconds to load: after the start, and before the first call needs it."""
    await asyncio.sleep(PREPARE_AFTER)
    await writer.prepare()


async def delete_old(archive: Archive) -> None:
    while True:
        try:
            if deleted := await archive.delete_old():
                _log.info("old transcripts deleted", extra={"files": deleted})
        except OSError as error:
            _log.warning("old transcripts could not be deleted", extra={"error": type(error).__name__})
        await asyncio.sleep(RETENTION_CHECK_SECONDS)


async def delete_old_events(events: EventStore, retention_days: int) -> None:
    """What was said is told again as long as raw transcripts are kept."""
    while retention_days:
        events.delete_before(Cursor(Cursor.now().ms - retention_days * int(DAY_SECONDS) * 1000))
        await asyncio.sleep(RETENTION_CHECK_SECONDS)


async def sweep(eraser: Eraser) -> None:
    """
    Delete what this node still has of forgotten calls, at the start and once an hour: those that were forgotten at
    another one, and those that a killed process could not clear away.
    """
    await asyncio.sleep(PREPARE_AFTER)  # the files are opened at the start
    while True:
        try:
            if swept := await eraser.sweep():
                _log.info("forgotten calls cleared away", extra={"calls": swept})
        except StoreError as error:
            _log.warning("forgotten calls could not be looked for", extra={"reason": str(error)})
        await asyncio.sleep(RETENTION_CHECK_SECONDS)


def retention_of(settings: Settings, agents: Iterable[Agent]) -> Retention:
    """How long facts and topics are told."""
    own = {agent.name: agent.retention_days for agent in agents if agent.retention_days is not None}
    return Retention(settings.memory_retention_days, own)


async def expire_facts(facts: FactStore, pins: PinnedTopics, retention: Retention) -> None:
    """Delete what is not told any more, at the start and once a day."""
    while True:
        try:
            limits = retention.limits(datetime.now(UTC))
            expired = sum([await facts.expire(*limit) + await pins.expire(*limit) for limit in limits])
            if expired:
                _log.info("old facts deleted", extra={"statements": expired})
        except StoreError as error:
            _log.warning("old facts could not be deleted", extra={"reason": str(error)})
        await asyncio.sleep(DAY_SECONDS)


async def collect_garbage(is_quiet: Callable[[], bool]) -> None:
    """
    Collect cycles while no call is live, and under way only when there may be many: it holds up every call's sound.

    For a process that has switched the collector off, as `gateway serve` does. Calls leave hardly any cycles. What was
    found alive is not looked at again for an hour: all of it together takes a tenth of a second and more.
    """
    clock = asyncio.get_running_loop().time
    looked_at_all = clock()
    while True:
        await asyncio.sleep(_GARBAGE_SECONDS)
        new_objects, quiet = gc.get_count()[0], is_quiet()
        if gc.isenabled() or new_objects <= (_SOME_OBJECTS if quiet else _MANY_OBJECTS):
            continue
        if quiet and clock() - looked_at_all > _EVERYTHING_SECONDS:
            looked_at_all = clock()
            gc.unfreeze()
        gc.collect()
        gc.freeze()


@contextlib.asynccontextmanager
async def at_work(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """
    A task that runs until the application stops. That it failed is told at once, and stops nothing else.

    It is cancelled until it ends: a library may swallow a cancellation, and the process would never stop.
    """
    task = asyncio.get_running_loop().create_task(work, name=getattr(work, "__qualname__", None))
    task.add_done_callback(_tell_failure)
    try:
        yield
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_CANCEL_SECONDS)


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("work beside calls failed", exc_info=error, extra={"work": task.get_name()})
