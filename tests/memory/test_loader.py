import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import StoreRefused, StoreUnavailable
from gateway.memory.loader import MemoryLoader
from gateway.memory.summary_parser import PastCall

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
LONG = 10.0


def past_call(name, *, days_ago=0, context=""):
    started_at = START - timedelta(days=days_ago)
    return PastCall(f"voice-session:{name}", started_at, "Ana", "+12025550143", "maya", context=context)


NEW, OLD = past_call("new"), past_call("old", days_ago=3)


class SlowRecall:
    """Two stores that answer when the test lets them, with calls or with a failure."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.own, self.remote = loop.create_future(), loop.create_future()
        self.asked = []

    async def own_calls(self, agent, caller):
        self.asked.append(("own", agent, caller))
        return await self.own

    async def remote_calls(self, agent, caller):
        self.asked.append(("remote", agent, caller))
        return await self.remote

    async def known_facts(self, agent, caller):
        return []

    async def pinned_topics(self, agent, caller):
        return []


@pytest.fixture
async def recall():
    return SlowRecall()


@pytest.fixture
async def memory(recall):
    memory = MemoryLoader(recall, agent="maya", caller="+12025550143", limit=3)
    await asyncio.sleep(0)
    yield memory
    memory.cancel()


async def test_both_stores_are_asked_at_once(recall, memory):
    assert sorted(recall.asked) == [("own", "maya", "+12025550143"), ("remote", "maya", "+12025550143")]


async def test_both_answers_come_together(recall, memory):
    recall.own.set_result([OLD])
    recall.remote.set_result([NEW])
    assert await memory.by(LONG) == [NEW, OLD]


async def test_own_calls_do_not_wait_for_the_remote_store(recall, memory):
    recall.own.set_result([OLD])
    assert await memory.by(0.01) == [OLD]
    recall.remote.set_result([NEW, OLD])
    assert await memory.rest() == [NEW]


async def test_no_time_means_what_is_there(recall, memory):
    assert await memory.by(0) == []
    recall.own.set_result([OLD])
    recall.remote.set_result([])
    assert await memory.rest() == [OLD]


async def test_each_call_is_returned_once(recall, memory):
    recall.own.set_result([NEW])
    recall.remote.set_result([past_call("new", context="the same call, elsewhere")])
    assert await memory.by(LONG) == [NEW]
    assert await memory.by(LONG) == await memory.rest() == []


async def test_no_more_calls_than_the_limit(recall, memory):
    recall.own.set_result([past_call(f"o{day}", days_ago=day) for day in (1, 3, 5)])
    recall.remote.set_result([past_call(f"r{day}", days_ago=day) for day in (2, 4, 6)])
    assert [call.session_id[-2:] for call in await memory.by(LONG)] == ["o1", "r2", "o3"]


@pytest.mark.parametrize("failure", [StoreUnavailable("down"), StoreRefused("no", status=401), TimeoutError()])
async def test_failing_store_costs_a_warning(recall, memory, failure, caplog):
    recall.own.set_result([OLD])
    recall.remote.set_exception(failure)
    assert await memory.by(LONG) == [OLD]
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.WARNING, "memory could not be loaded")
    assert (record.store, record.error) == ("remote", type(failure).__name__)


async def test_both_stores_may_fail(recall, memory, caplog):
    recall.own.set_exception(StoreUnavailable("down"))
    recall.remote.set_exception(StoreUnavailable("down"))
    assert await memory.rest() == []
    assert [record.store for record in caplog.records] == ["own", "remote"]


async def test_cancel_ends_the_loading(recall, memory, caplog):
    memory.cancel()
    assert await memory.rest() == []
    assert recall.own.cancelled()
    assert recall.remote.cancelled()
    assert caplog.records == []


async def test_cancel_before_the_first_step_asks_no_store(recall):
    memory = MemoryLoader(recall, agent="maya", caller="+12025550143", limit=3)
    memory.cancel()
    assert await memory.rest() == []
    assert recall.asked == []


async def test_cancel_keeps_what_was_found(recall, memory):
    recall.own.set_result([OLD])
    assert await memory.by(0.01) == [OLD]
    memory.cancel()
    assert await memory.rest() == []


async def test_unreadable_memory_is_logged(recall, memory, caplog):
    recall.own.set_result([OLD])
    recall.remote.set_exception(KeyError("type"))
    assert await memory.rest() == [OLD]
    assert memory.outcome == "failed"
    assert [record.message for record in caplog.records] == ["memory can't be read"]
