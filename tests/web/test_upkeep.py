"""What runs beside calls."""

import asyncio
import gc
import weakref

import pytest

from gateway.web import upkeep
from gateway.web.upkeep import at_work, collect_garbage


@pytest.fixture
def collections(monkeypatch):
    """Full collections, while the collector does not come by itself and is looked after all the time."""
    monkeypatch.setattr(upkeep, "_GARBAGE_SECONDS", 0.001)
    monkeypatch.setattr(upkeep, "_SOME_OBJECTS", 1_000)
    monkeypatch.setattr(upkeep, "_MANY_OBJECTS", 50_000)
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
    monkeypatch.setattr(upkeep, "_EVERYTHING_SECONDS", 0.0)
    kept += [[] for _ in range(2_000)]
    await looked(is_quiet=True)
    assert still_there() is None


class _Holder:
    def __init__(self, cycle: list[object]) -> None:
        self.cycle = cycle
