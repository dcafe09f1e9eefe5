"""Background jobs: garbage collection between calls, and how jobs are stopped."""

import asyncio
import gc
import weakref
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.history.archived_calls import ArchivedCalls
from gateway.history.audit_log import AuditAction, AuditFilter, AuditLog, AuditNote
from gateway.history.calls_table import EVERY_CALL, CallsTable
from gateway.history.erasure import DataLocations
from gateway.history.stores import open_local_store
from gateway.maintenance import (
    GarbageLimits,
    archive_old_calls,
    collect_garbage,
    delete_old_recordings,
    running,
    trim_audit_log,
)
from gateway.memory.memory_log import Retention
from gateway.settings import Secret
from tests.calls.aftermath import a_session
from tests.stage import until, until_it

LIMITS = GarbageLimits(check_seconds=0.001, quiet_objects=1_000, busy_objects=50_000)


@pytest.fixture
def collections():
    """The generations of all collections, while the collector is disabled."""
    found = []
    gc.collect()
    gc.disable()
    gc.callbacks.append(note := lambda phase, info: found.append(info["generation"]) if phase == "start" else None)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()
    gc.enable()


async def collected(*, is_quiet: bool, limits: GarbageLimits = LIMITS) -> None:
    async with running(collect_garbage(lambda: is_quiet, limits)):
        await asyncio.sleep(0.05)


async def test_garbage_is_collected_while_no_call_is_live(collections):
    kept = [[] for _ in range(2_000)]
    await collected(is_quiet=True)
    assert collections == [2] and kept


async def test_live_calls_delay_collection_until_there_is_much(collections):
    kept = [[] for _ in range(2_000)]
    await collected(is_quiet=False)
    assert collections == []

    kept += [[] for _ in range(60_000)]
    await collected(is_quiet=False)
    assert collections == [2]


async def test_survivors_are_visited_once_an_hour(collections):
    cycle: list[object] = []
    cycle.append(cycle)
    kept = [[] for _ in range(2_000)]
    await collected(is_quiet=True)
    still_there = weakref.ref(holder := _Holder(cycle))
    holder.cycle.append(holder)
    kept += [[] for _ in range(2_000)]
    await collected(is_quiet=True)
    del holder, cycle
    kept += [[] for _ in range(2_000)]
    await collected(is_quiet=True)
    assert still_there() is not None
    kept += [[] for _ in range(2_000)]
    await collected(is_quiet=True, limits=replace(LIMITS, full_seconds=0.0))
    assert still_there() is None


class _Holder:
    def __init__(self, cycle: list[object]) -> None:
        self.cycle = cycle


async def test_job_that_swallows_cancellations_is_stopped():
    """A library may do that; the process would wait for it forever."""
    swallowed = []

    async def stubborn() -> None:
        while len(swallowed) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancelled:
                swallowed.append(cancelled)

    async with asyncio.timeout(60):
        async with running(stubborn(), cancel_seconds=0.001):
            await asyncio.sleep(0)
    assert len(swallowed) == 3


async def test_failed_job_is_logged_at_once(caplog):
    async def fails() -> None:
        raise ValueError("out of order")

    async with running(fails()):
        await asyncio.sleep(0.01)
        [record] = caplog.records
    assert record.message == "background job failed"
    assert record.job.endswith("fails") and str(record.exc_info[1]) == "out of order"


async def test_old_calls_are_archived_after_the_start(tmp_path):
    store = await open_local_store(tmp_path)
    started_at = datetime.now(UTC) - timedelta(days=400)
    await CallsTable(store).write(a_session(started_at=started_at), document_id="", summary_by="")
    async with running(archive_old_calls(ArchivedCalls(store), Retention(call_days=365), after_start=0)):
        await until_it(lambda: ArchivedCalls(store).newest(EVERY_CALL, limit=1))
    await store.close()


@pytest.mark.parametrize(("days", "left"), [(365, ["audit.trim", "login"]), (0, ["login", "login"])])
async def test_old_audit_entries_are_deleted(tmp_path, days, left):
    store = await open_local_store(tmp_path)
    audit = AuditLog(store, Secret("key"))
    for age in (366, 364):
        then = AuditLog(store, Secret("key"), now=lambda age=age: datetime.now(UTC) - timedelta(days=age))
        await then.write(AuditNote(AuditAction.LOGIN, "admin"))

    async def is_done():
        return [entry.action for entry in await audit.page(AuditFilter(), limit=9)] == left

    async with running(trim_audit_log(audit, days)):
        await until_it(is_done)
    assert (await audit.verify()).problem == ""
    await store.close()


async def test_recordings_are_deleted_by_age(tmp_path, caplog):
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for path, days in ((old, 8), (new, 6)):
        started_at = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        path.write_text(f'{{"note": "call", "content": {{"started_at": "{started_at}"}}}}\n')
    places = DataLocations(tmp_path, tmp_path, tmp_path)
    await delete_old_recordings(places, 0, after_start=0)  # 0 keeps them, and there is nothing to wait for
    caplog.set_level("INFO")
    async with running(delete_old_recordings(places, 7, after_start=0)):
        await until(lambda: "old recordings deleted" in caplog.messages)
    assert new.exists() and not old.exists()
    assert [record.files for record in caplog.records if record.name == "gateway.maintenance"] == [1]
