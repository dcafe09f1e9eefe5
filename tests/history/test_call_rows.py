"""Lists of calls: in step with the book, and read through an index however many there are."""

from datetime import timedelta

import pytest

from gateway.history.call_rows import CallerRow, CallRowFilter, CallRows
from gateway.history.calls_table import CallsTable
from gateway.history.stores import open_local_store
from gateway.session import EndReason
from tests.calls.aftermath import CALLER, START, a_session

OTHER = "+12025550188"


@pytest.fixture
async def store(tmp_path):
    store = await open_local_store(tmp_path)
    yield store
    await store.close()


async def a_call(store, *, day=0, **fields):
    session = a_session(started_at=START + timedelta(days=day), **fields)
    await CallsTable(store).write(session, document_id="d", summary_by="test")
    return session


async def test_line_follows_the_book(store):
    session = await a_call(store, receipt={"items": [{}, {}]})
    lines = CallRows(store)
    [line] = await lines.page(CallRowFilter())
    assert (line.session_id, line.caller, line.carrier, line.turns, line.told) == (session.id, CALLER, "twilio", 2, 2)
    session.end_reason = EndReason.ENGINE_LOST
    await CallsTable(store).write(session, document_id="d", summary_by="again")
    [line] = await lines.page(CallRowFilter())
    assert line.outcome == "voice engine lost"
    await CallsTable(store).forget(caller=CALLER)
    assert await lines.page(CallRowFilter()) == []


async def test_calls_of_an_earlier_version_are_taken_in(store):
    session = await a_call(store)
    await store.run(lambda connection: connection.execute("DELETE FROM call_lines"))
    assert await CallRows(store).page(CallRowFilter()) == []
    await CallRows(store).catch_up()
    assert [line.session_id for line in await CallRows(store).page(CallRowFilter())] == [session.id]


async def test_pages_go_on_where_the_last_ended(store):
    sessions = [await a_call(store, day=day // 2) for day in range(5)]  # two at the same moment
    lines, seen, after = CallRows(store), [], ""
    while page := await lines.page(CallRowFilter(), after=after, limit=2):
        seen += [line.session_id for line in page]
        after = page[-1].place
    assert len(seen) == len(set(seen)) == 5 and seen[0] == sessions[-1].id


@pytest.mark.parametrize(
    "wanted, found",
    [
        (CallRowFilter(agent="leo"), [2]),
        (CallRowFilter(outcome="transferred"), [1]),
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
    lines = CallRows(store)
    page = await lines.page(wanted)
    assert [line.session_id for line in page] == [sessions[index].id for index in found]
    assert await lines.count(wanted) == len(found)
    every = await lines.page(CallRowFilter())
    assert [line for line in every if wanted.admits(line)] == page


async def test_callers_are_told_with_their_last_call(store):
    await a_call(store)
    last = await a_call(store, day=3)
    other = await a_call(store, day=1, caller=OTHER)
    lines = CallRows(store)
    assert await lines.callers() == [
        CallerRow(CALLER, 2, last.started_at.isoformat(), last.id, 0),
        CallerRow(OTHER, 1, other.started_at.isoformat(), other.id, 0),
    ]
    assert (await lines.callers("0188", limit=5))[0].caller == OTHER
    assert (await lines.count_callers(), await lines.count_callers("0188")) == (2, 1)


async def test_measures_are_added_up_by_steps(store):
    await a_call(store, timings=[{"first_frame": 0.84, "transcript": None}, {"first_frame": -0.2}])
    await a_call(store, day=1, timings=[{"first_frame": 123.0}], receipt={"items": [{}]})
    await a_call(store, day=1)
    measured = await CallRows(store).measured([(START + timedelta(days=day)).isoformat() for day in range(3)])
    assert [(some.step, some.calls, some.told, some.stages[-1], some.stages[0]) for some in measured] == [
        (0, 1, 0, "0084000000", ""),
        (1, 2, 1, "99999", ""),
    ]


async def test_returning_callers_are_counted(store):
    await a_call(store)
    await a_call(store, day=5)
    await a_call(store, day=5, caller=OTHER)
    assert await CallRows(store).callers_since((START + timedelta(days=4)).isoformat()) == (2, 1)
    assert await CallRows(store).callers_since((START + timedelta(days=9)).isoformat()) == (0, 0)


@pytest.mark.parametrize(
    "wanted",
    [
        CallRowFilter(),
        CallRowFilter(agent="maya"),
        CallRowFilter(outcome="transferred"),
        CallRowFilter(caller=CALLER),
        CallRowFilter(since="2026"),
    ],
)
async def test_no_list_walks_over_all_calls(store, wanted):
    """Whatever is asked, an index leads to the page: neither a walk over the table nor a sort."""
    where, values = wanted.where()
    query = f"SELECT * FROM call_lines WHERE {where} ORDER BY started_at DESC, session_id DESC LIMIT 50"
    plan = await store.look(lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
    [detail] = [row[-1] for row in plan]
    assert "USING INDEX call_lines_by" in detail
