import itertools
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.history.calls_table import CallsTable, newest_query
from gateway.history.stores import open_local_store
from gateway.memory.sqlite import SqliteStore
from gateway.session import EndReason, VoiceSession

START = datetime(2026, 2, 6, 12, tzinfo=UTC)
CALLERS = ("+12025550143", "+12025550144")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = await open_local_store(tmp_path)
    yield store
    await store.close()


async def book(store: SqliteStore, caller: str, hours: int, reason: EndReason) -> str:
    started = START + timedelta(hours=hours)
    session = VoiceSession("maya", caller, "twilio", started_at=started, ended_at=started, end_reason=reason)
    await CallsTable(store).write(session, document_id="d", summary_by="test")
    return session.id


async def test_newest_are_chosen(store: SqliteStore) -> None:
    reasons = (EndReason.CALLER_HUNG_UP, EndReason.AGENT_HUNG_UP)
    ids = [await book(store, CALLERS[hours % 2], hours, reasons[hours // 2]) for hours in range(4)]
    found = CallsTable(store)
    assert [call.session_id for call in await found.newest()] == ids[::-1]
    assert [call.session_id for call in await found.newest(caller=CALLERS[0])] == [ids[2], ids[0]]
    assert [call.session_id for call in await found.newest(outcomes=["agent hung up"])] == [ids[3], ids[2]]
    since, before = (START + timedelta(hours=1)).isoformat(), (START + timedelta(hours=3)).isoformat()
    assert [call.session_id for call in await found.newest(since=since, before=before)] == [ids[2], ids[1]]
    assert [call.session_id for call in await found.newest(since=since, outcomes=["caller hung up"])] == [ids[1]]
    assert await found.newest(agent="nobody") == []


async def test_struck_call_has_no_outcome(store: SqliteStore) -> None:
    session_id = await book(store, CALLERS[0], 0, EndReason.CALLER_HUNG_UP)
    await book(store, CALLERS[1], 0, EndReason.CALLER_HUNG_UP)
    await CallsTable(store).strike(session_id)
    await CallsTable(store).forget(caller=CALLERS[1])
    assert await store.look(lambda c: c.execute("SELECT count(*) FROM call_outcomes").fetchone()) == (0,)


@pytest.mark.parametrize(
    "wanted",
    [*itertools.product(("", "+12025550143"), ("", "maya"), ((), ("caller hung up",)), ("", "2026"), ("", "2027"))],
)
async def test_every_way_to_ask_has_its_index(store: SqliteStore, wanted: tuple[Any, ...]) -> None:
    """No question reads the whole table, however many calls there are."""
    query, values = newest_query(*wanted)

    def plan(connection: sqlite3.Connection) -> list[str]:
        return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query} LIMIT ?", (*values, 50))]

    steps = await store.look(plan)
    assert [step for step in steps if step.split(" ", 1)[0] not in ("SEARCH", "SCAN", "USE")] == []
    assert all("USING" in step for step in steps if step.startswith(("SCAN", "SEARCH")))
    caller, _, outcomes, _, _ = wanted  # one caller's calls, and those that ended alike, may have to be sorted
    assert caller or outcomes or not any("TEMP B-TREE" in step for step in steps)
