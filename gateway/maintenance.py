"""Background jobs of the application. Each runs until it is cancelled."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.agents import Agent
from gateway.calls.recording_files import delete_old
from gateway.errors import StoreError
from gateway.finalization.archive import Archive
from gateway.finalization.summary.summarizer import Summarizer
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.audit_log import AuditLog
from gateway.history.call_log import CallLog, Cursor
from gateway.history.erasure import DataLocations, Eraser
from gateway.memory.facts import FactStore
from gateway.memory.memory_log import Retention
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.text.voice_commands import VoiceCommands

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
AFTER_START: Final = 1.0
CANCEL_SECONDS: Final = 5.0

_log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def running(job: Coroutine[Any, Any, None], *, cancel_seconds: float = CANCEL_SECONDS) -> AsyncIterator[None]:
    """
    Run the job as a task while the block runs. Its failure is logged at once and stops nothing else.

    The task is cancelled until it ends: a library may swallow a cancellation, and the process would never stop.
    """
    task = asyncio.get_running_loop().create_task(job, name=getattr(job, "__qualname__", None))
    task.add_done_callback(_log_failure)
    try:
        yield
    finally:
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=cancel_seconds)


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("background job failed", exc_info=error, extra={"job": task.get_name()})


async def preload(writer: Summarizer, agents: Iterable[Agent]) -> None:
    """
    Compile what agents listen for, so that the first call need not. Later import the summary provider's library, which
    takes seconds, before the first call ends.
    """
    for agent in agents:
        await asyncio.to_thread(VoiceCommands, agent.language, name=agent.name)
    await asyncio.sleep(AFTER_START)
    await writer.prepare()


async def delete_old_transcripts(archive: Archive) -> None:
    while True:
        try:
            if deleted := await archive.delete_old():
                _log.info("old transcripts deleted", extra={"files": deleted})
        except OSError as error:
            _log.warning("old transcripts could not be deleted", extra={"error": type(error).__name__})
        await asyncio.sleep(HOUR)


async def delete_old_recordings(
    places: DataLocations, retention_days: int, *, after_start: float = AFTER_START
) -> None:
    """Delete recordings of calls that are past their time, after the start and once a day; 0 days keep them."""
    await asyncio.sleep(after_start)
    while retention_days and places.record_dir is not None:
        before = datetime.now(UTC) - timedelta(days=retention_days)
        try:
            if deleted := await asyncio.to_thread(delete_old, places.record_dir, places.recordings, before):
                _log.info("old recordings deleted", extra={"files": deleted})
        except OSError as error:
            _log.warning("old recordings could not be deleted", extra={"error": type(error).__name__})
        await asyncio.sleep(DAY)


async def delete_old_events(log: CallLog, retention_days: int) -> None:
    """Live events hold what was said: they are kept as long as raw transcripts; 0 keeps them for good."""
    while retention_days:
        log.delete_before(Cursor(Cursor.now().ms - retention_days * int(DAY) * 1000))
        await asyncio.sleep(HOUR)


async def finish_erasures(eraser: Eraser) -> None:
    """
    Delete what this node still has of erased calls, at the start and once an hour.

    They were erased on another node, or the process was killed before it had deleted everything.
    """
    await asyncio.sleep(AFTER_START)  # the stores' files are being opened
    while True:
        try:
            if swept := await eraser.sweep():
                _log.info("erasures finished", extra={"calls": swept})
        except StoreError as error:
            _log.warning("erasures could not be checked", extra={"reason": str(error)})
        await asyncio.sleep(HOUR)


async def trim_audit_log(audit: AuditLog, retention_days: int) -> None:
    """Delete audit entries that are past their retention time, at the start and once a day; 0 keeps them."""
    while retention_days:
        try:
            if trimmed := await audit.trim(datetime.now(UTC) - timedelta(days=retention_days)):
                _log.info("old audit entries deleted", extra={"entries": trimmed})
        except StoreError as error:
            _log.warning("old audit entries could not be deleted", extra={"reason": str(error)})
        await asyncio.sleep(DAY)


async def expire_memory(facts: FactStore, topics: PinnedTopicStore, retention: Retention) -> None:
    """
    Delete facts and topics that are past their retention time, at the start and once a day.

    Also lists the names that were corrected in calls of earlier versions.
    """
    while True:
        try:
            await facts.find_corrected_names()
            limits = retention.limits(datetime.now(UTC))
            expired = sum([await facts.expire(*limit) + await topics.expire(*limit) for limit in limits])
            await facts.delete_old_undo(datetime.now(UTC))
            if expired:
                _log.info("old facts deleted", extra={"statements": expired})
        except StoreError as error:
            _log.warning("old facts could not be deleted", extra={"reason": str(error)})
        await asyncio.sleep(DAY)


async def archive_old_calls(archived: ArchivedCalls, retention: Retention, *, after_start: float = AFTER_START) -> None:
    """Move calls that are past their time to the archive, after the start and once a day."""
    await asyncio.sleep(after_start)
    while oldest := retention.oldest_call(datetime.now(UTC)):
        try:
            if moved := await archived.archive(oldest.isoformat()):
                _log.info("old calls archived", extra={"calls": moved})
        except StoreError as error:
            _log.warning("old calls could not be archived", extra={"reason": str(error)})
        await asyncio.sleep(DAY)


@dataclass(frozen=True)
class GarbageLimits:
    """When to collect: new objects since the last collection, and seconds."""

    check_seconds: float = 5.0
    quiet_objects: int = 10_000
    busy_objects: int = 1_000_000
    """About 100 MB, more than all calls of a full gateway hold at once."""
    full_seconds: float = HOUR


async def collect_garbage(is_quiet: Callable[[], bool], limits: GarbageLimits = GarbageLimits()) -> None:
    """
    Collect cycles while no call is live, and during calls only after very many allocations: a collection delays audio.

    For a process that has disabled the collector, as `gateway serve` does. Calls leave hardly any cycles. Objects that
    survived are frozen for an hour: a collection that visits all of them takes a tenth of a second and more.
    """
    clock = asyncio.get_running_loop().time
    last_full = clock()
    while True:
        await asyncio.sleep(limits.check_seconds)
        new_objects, quiet = gc.get_count()[0], is_quiet()
        if gc.isenabled() or new_objects <= (limits.quiet_objects if quiet else limits.busy_objects):
            continue
        if quiet and clock() - last_full > limits.full_seconds:
            last_full = clock()
            gc.unfreeze()
        gc.collect()
        gc.freeze()
