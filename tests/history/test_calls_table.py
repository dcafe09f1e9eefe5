"""The table of finished calls: lists, filters and figures, each read through an index however many calls there are."""

import itertools
from datetime import timedelta

import pytest

from gateway.errors import StoreUnavailable
from gateway.history.calls_table import (
    STAGES,
    CallerRow,
    CallRowFilter,
    CallsTable,
    percentiles,
    stage_seconds,
)
from gateway.history.stores import open_local_store, open_stores
from gateway.session import Consent, EndReason
from tests.calls.aftermath import CALLER, START, a_session
from tests.history.test_stores import FINISHED, OLD

OTHER = "+12025550188"


@pytest.fixture
async def store(ground, tmp_path):
    stores = await open_stores(tmp_path, ground.database_url)
    yield stores.memory
    await stores.close()


@pytest.fixture
async def local(tmp_path):
    store = await open_local_store(tmp_path / "local")
    yield store
    await store.close()


async def a_call(store, *, day=0, **fields):
    session = a_session(started_at=START + timedelta(days=day), **fields)
    await CallsTable(store).write(session, document_id="d", summary_by="test")
    return session


async def test_call_reads_back(store):
    timing = dict.fromkeys(STAGES) | {"transcript": 0.2134, "first_frame": 0.84}
    receipt = {"block": "Likes rye.", "items": [{}, {}]}
    session = await a_call(store, receipt=receipt, timings=[timing, {"first_frame": -0.2}])
    call = await CallsTable(store).find(session.uuid[:8])
    assert (call.session_id, call.uuid, call.caller, call.carrier) == (session.id, session.uuid, CALLER, "twilio")
    assert (call.turns, call.memory_items, call.seconds, call.outcome) == (2, 2, 262.0, "caller hung up")
    assert (call.document_id, call.summary_by, call.receipt) == ("d", "test", receipt)
    assert call.timings == (timing, dict.fromkeys(STAGES) | {"first_frame": -0.2})


async def test_consent_is_kept_with_the_call(store):
    asked, other = await a_call(store, consent=Consent.REFUSED), await a_call(store)
    table = CallsTable(store)
    assert [(await table.find(session.id)).consent for session in (asked, other)] == ["refused", ""]
    assert (await table.find(asked.id)).as_json()["consent"] == "refused"
    await table.forget(caller=CALLER)
    assert await store.fetch("SELECT * FROM call_consents") == []


async def test_engine_and_time_to_first_audio_are_kept(store):
    session, other = await a_call(store, engine="xai", first_audio=0.42), await a_call(store, engine="xai")
    table = CallsTable(store)
    found = [await table.find(one.id) for one in (session, other)]
    assert [(call.engine, call.first_audio) for call in found] == [("xai", pytest.approx(0.42)), ("xai", None)]
    [before, since] = await table.first_audio(["2026-01-01", "2026-02-01"])
    assert (before.tolist(), since.tolist()) == ([], [pytest.approx(0.42)])
    await table.forget(caller=CALLER)
    assert await store.fetch("SELECT * FROM call_engines") == []


async def test_second_write_updates(store):
    session = await a_call(store, consent=Consent.AGREED)
    session.end_reason = EndReason.ENGINE_LOST
    await CallsTable(store).write(session, document_id="d", summary_by="again")
    [call] = await CallsTable(store).newest()
    assert (call.outcome, call.summary_by) == ("voice engine lost", "again")


async def test_ambiguous_beginning_finds_nothing(store):
    await a_call(store)
    await a_call(store)
    assert await CallsTable(store).find("") is None


async def test_forgotten_caller_has_no_calls(store):
    session = await a_call(store)
    other = await a_call(store, caller=OTHER)
    assert await CallsTable(store).forget(caller=CALLER, agent="leo") == []
    assert await CallsTable(store).forget(caller=CALLER) == [session.id]
    assert [row.session_id for row in await CallsTable(store).page(CallRowFilter())] == [other.id]


async def test_pages_continue_where_the_last_ended(store):
    sessions = [await a_call(store, day=day // 2) for day in range(5)]  # two at the same time
    calls, seen, after = CallsTable(store), [], ""
    while page := await calls.page(CallRowFilter(), after=after, limit=2):
        seen += [row.session_id for row in page]
        after = page[-1].cursor
    assert len(seen) == len(set(seen)) == 5 and seen[0] == sessions[-1].id


@pytest.mark.parametrize(
    "wanted, found",
    [
        (CallRowFilter(agent="leo"), [2]),
        (CallRowFilter(outcomes=("transferred",)), [1]),
        (CallRowFilter(outcomes=("transferred", "caller hung up")), [2, 1, 0]),
        (CallRowFilter(carrier="twilio", caller=CALLER), [1, 0]),
        (CallRowFilter(digits="0188"), [2]),
        (CallRowFilter(since=(START + timedelta(days=1)).isoformat()), [2, 1]),
        (CallRowFilter(before=(START + timedelta(days=1)).isoformat()), [0]),
        (CallRowFilter(agent="' OR true --"), []),
    ],
)
async def test_wanted_calls_are_found(store, wanted, found):
    sessions = [
        await a_call(store),
        await a_call(store, day=1, end_reason=EndReason.TRANSFERRED),
        await a_call(store, day=2, agent="leo", caller=OTHER),
    ]
    calls = CallsTable(store)
    page = await calls.page(wanted)
    assert [row.session_id for row in page] == [sessions[index].id for index in found]
    assert [call.session_id for call in await calls.newest(wanted)] == [row.session_id for row in page]
    assert await calls.count(wanted) == len(found)
    every = await calls.page(CallRowFilter())
    assert [row for row in every if wanted.admits(row)] == page


async def test_ids_keep_their_order(store):
    first, second = await a_call(store), await a_call(store, day=1)
    rows = await CallsTable(store).by_ids([first.id, "voice-session:unknown", second.id])
    assert [row.session_id for row in rows] == [first.id, second.id]


async def test_callers_come_with_their_last_call(store):
    await a_call(store)
    last = await a_call(store, day=3)
    other = await a_call(store, day=1, caller=OTHER)
    calls = CallsTable(store)
    assert await calls.callers() == [
        CallerRow(CALLER, 2, last.started_at.isoformat(), last.id, 0),
        CallerRow(OTHER, 1, other.started_at.isoformat(), other.id, 0),
    ]
    assert (await calls.callers("0188", limit=5))[0].caller == OTHER
    assert await calls.callers("999") == []
    assert (await calls.count_callers(), await calls.count_callers("0188")) == (2, 1)
    assert (await calls.agents(), await calls.oldest(CallRowFilter())) == (["maya"], START.isoformat())


async def test_latencies_are_grouped_by_time_step(store):
    await a_call(store, timings=[{"first_frame": 0.84, "transcript": None}, {"first_frame": -0.2}])
    await a_call(store, day=1, timings=[{"first_frame": 123.0}], receipt={"items": [{}]})
    await a_call(store, day=1)
    starts = [(START + timedelta(days=day)).isoformat() for day in range(3)]
    steps = await CallsTable(store).time_steps(starts)
    assert [(step.outcomes.total(), step.with_memory) for step in steps] == [(1, 0), (2, 1), (0, 0)]
    latencies = b"".join(step.latencies for step in steps)
    first_frame, transcript = stage_seconds(latencies, "first_frame"), stage_seconds(latencies, "transcript")
    assert sorted(first_frame.round(2).tolist()) == pytest.approx([-0.2, 0.84, 123.0])
    assert percentiles(first_frame, [0, 50, 100]) == [0.0, 0.84, 123.0]
    assert transcript.size == 0 and percentiles(transcript, [50]) == []


async def test_returning_callers_are_counted(store):
    await a_call(store)
    await a_call(store, day=5)
    await a_call(store, day=5, caller=OTHER)
    assert await CallsTable(store).callers_since((START + timedelta(days=4)).isoformat()) == (2, 1)
    assert await CallsTable(store).callers_since((START + timedelta(days=9)).isoformat()) == (0, 0)


@pytest.mark.parametrize(
    "agent, carrier, outcomes, caller, since",
    [*itertools.product(("", "maya"), ("", "twilio"), ((), ("transferred",)), ("", CALLER), ("", "2026"))],
)
async def test_every_filter_has_its_index(local, agent, carrier, outcomes, caller, since):
    """No page reads the whole table or sorts it."""
    where, values = CallRowFilter(agent, carrier, outcomes, caller, since=since).where()
    query = f"SELECT * FROM finished_calls WHERE {where} ORDER BY started_at DESC, session_id DESC LIMIT 50"
    plan = await local.look(lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
    [detail] = [row[-1] for row in plan]
    assert "USING INDEX finished_calls_by" in detail


def old_tables():
    """The three tables of the previous version; the dump was written by it."""
    dump = (OLD / "gateway.sql").read_text().replace(" WITHOUT ROWID", "")
    return [statement for statement in dump.split(";\n") if " call" in statement.split("(")[0]]


async def test_calls_of_the_previous_version_are_kept(ground, tmp_path):
    async with ground.opened() as store:
        await store.run(lambda connection: [connection.execute(statement) for statement in old_tables()])
    stores = await open_stores(tmp_path / "data", ground.database_url)
    [call] = await CallsTable(stores.memory).newest()
    assert (call.session_id, call.agent, call.caller, call.carrier) == (FINISHED, "maya", "+12025550144", "telnyx")
    assert (call.outcome, call.seconds, call.turns, call.memory_items) == ("caller hung up", 60.0, 2, 1)
    assert (call.document_id, call.summary_by) == ("doc-2", "extractive")
    assert call.receipt == {"block": "Likes rye.", "items": [{"id": "f1", "kind": "fact"}]}
    assert call.timings == (
        {"transcript": 0.2, "llm_request": 0.21, "first_token": 0.5, "first_audio": 0.7, "first_frame": 0.84},
    )
    await stores.close()
    async with ground.opened() as store:
        with pytest.raises(StoreUnavailable):
            await store.look(lambda connection: connection.execute("SELECT * FROM call_lines"))
