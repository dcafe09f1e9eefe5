"""What happened in calls, read back: figures. Lists and whole calls are tried by `gateway sessions`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway.history.calls_table import CallsTable
from gateway.history.queries import TIME_STEPS, CallFilter, CallHistory
from gateway.history.stores import Stores, open_local_store
from gateway.response_time import ResponseTime
from tests.calls.aftermath import a_session

START = datetime(2026, 2, 6, tzinfo=UTC)


@pytest.fixture
async def room(tmp_path: Path):
    store = await open_local_store(tmp_path)
    for hours, agent, waits in ((0, "maya", (0.5, 1.0, 3.0)), (12, "maya", (0.7,)), (23, "leo", (9.0,))):
        timings = [ResponseTime(first_frame=wait).as_json() for wait in waits]
        session = a_session(started_at=START + timedelta(hours=hours), agent=agent, timings=timings)
        await CallsTable(store).write(session, document_id="", summary_by="")
    yield CallHistory(Stores(store, store), data_dir=tmp_path, archive_dir=tmp_path)
    await store.close()


async def test_latency_of_a_day(room: CallHistory):
    day = {"since": START.isoformat(), "before": (START + timedelta(days=1)).isoformat()}
    figures = await room.latency(CallFilter(agent="maya", **day))
    assert (figures["calls"], figures["turns"], figures["since"], figures["before"]) == (2, 4, *day.values())
    answers = figures["stages"]["first_frame"]
    assert [answers[name] for name in ("turns", "p50", "p90", "p99", "max")] == [4, 0.7, 3.0, 3.0, 3.0]
    assert answers["course"] == [1.0, *[None] * 11, 0.7, *[None] * (TIME_STEPS - 13)]
    assert figures["stages"]["transcript"]["p50"] is None


async def test_latency_without_a_beginning_has_all(room: CallHistory):
    assert (await room.latency(CallFilter()))["since"] == START.isoformat()
    assert (await room.latency(CallFilter()))["turns"] == 5
    nobody = await room.latency(CallFilter(agent="nobody"))
    assert (nobody["calls"], nobody["turns"], nobody["stages"]["first_frame"]["max"]) == (0, 0, None)
