"""What runs beside calls."""

import asyncio
import gc
import weakref

import pytest

from gateway import maintenance
from gateway.maintenance import at_work, collect_garbage


@pytest.fixture
def collections(monkeypatch):
    """Full collections, while the collector does not come by itself and is looked after all the time."""
    monkeypatch.setattr(maintenance, "_GARBAGE_SECONDS", 0.001)
    monkeypatch.setattr(maintenance, "_SOME_OBJECTS", 1_000)
    monkeypatch.setattr(maintenance, "_MANY_OBJECTS", 50_000)
    found = []
    gc.collect()
    gc.disable()
    gc.callbacks.append(note := lambda phase, info: found.append(info["generation"]) if phase == "start" else None)
    yield found
    gc.callbacks.remove(note)
    gc.unfreeze()
    gc.enable()


async def looked(is_quiet: bool) -> None:
    async with at_work(collect_garbage(lambda: is_quiet)):
        await asyncio.sleep(0.05)


async def test_garbage_is_collected_while_no_call_is_live(collections):
    kept = [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    assert collections == [2] and kept


async def test_calls_are_spared_unless_there_is_much(collections):
    kept = [[] for _ in range(2_000)]
    await looked(is_quiet=False)
    assert collections == []

    kept += [[] for _ in range(60_000)]
    await looked(is_quiet=False)
    assert collections == [2]


async def test_what_was_alive_is_looked_at_once_an_hour(collections, monkeypatch):
    cycle: list[object] = []
    cycle.append(cycle)
    kept = [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    still_there = weakref.ref(holder := _Holder(cycle))
    holder.cycle.append(holder)
    kept += [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    del holder, cycle
    kept += [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    assert still_there() is not None
    monkeypatch.setattr(maintenance, "_EVERYTHING_SECONDS", 0.0)
    kept += [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    assert still_there() is None


class _Holder:
    def __init__(self, cycle: list[object]) -> None:
        self.cycle = cycle


async def test_work_that_swallows_a_cancellation_is_stopped(monkeypatch):
    """As a library may do: who waited for it would wait for ever."""
    monkeypatch.setattr(maintenance, "_CANCEL_SECONDS", 0.001)
    swallowed = []

    async def stubborn() -> None:
        while len(swallowed) < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as cancelled:
                swallowed.append(cancelled)

    async with asyncio.timeout(60):
        async with at_work(stubborn()):
            await asyncio.sleep(0)
    assert len(swallowed) == 3


async def test_work_that_fails_is_told_of_at_once(caplog):
    async def fails() -> None:
        raise ValueError("out of order")

    async with at_work(fails()):
        await asyncio.sleep(0.01)
        [record] = caplog.records
    assert record.message == "work beside calls failed"
    assert record.work.endswith("fails") and str(record.exc_info[1]) == "out of order"
