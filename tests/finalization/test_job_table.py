from dataclasses import replace

import pytest

from gateway.errors import StoreUnavailable, TakenOver
from gateway.finalization.job_table import HANDED_OVER, SCHEMA, FinalizationJob, JobTable
from gateway.memory.sqlite import SqliteStore
from tests.calls.aftermath import SUMMARY, a_session


@pytest.fixture
async def store(tmp_path):
    store = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    yield store
    await store.close()


@pytest.fixture
def endings(store):
    return JobTable(store)


async def test_new_ending_reads_back(endings):
    ending = FinalizationJob(a_session())
    await endings.save(ending)
    assert await endings.open_ones() == [ending]


async def test_every_field_reads_back(endings):
    ending = FinalizationJob(
        a_session(),
        archived=True,
        summary=SUMMARY,
        document_id="7f0c",
        version=2,
        remote_id="ab",
        remote_version=1,
        remote_sent=True,
    )
    await endings.save(ending)
    assert await endings.open_ones() == [ending]


async def test_saving_again_replaces(endings):
    ending = FinalizationJob(a_session())
    await endings.save(ending)
    ending.archived = True
    await endings.save(ending)
    (read,) = await endings.open_ones()
    assert read.archived


async def test_ending_handed_over_before_gets_what_else_is_known(store):
    """A call that was ended here once comes back, from another node's account of it: neither replaces the other."""
    endings = JobTable(store, "a")
    session = a_session()
    first, second = (replace(session, turns=[turn]) for turn in session.turns)
    handed_over = FinalizationJob(first, node=HANDED_OVER)
    await endings.save(handed_over)
    again = FinalizationJob(second)
    await endings.begin(again)
    assert again.session.turns == session.turns
    assert await endings.open_ones() == [again]


async def test_ending_of_another_worker_is_not_begun(store):
    session = a_session()
    await JobTable(store, "a").begin(FinalizationJob(session))
    with pytest.raises(TakenOver):
        await JobTable(store, "b").begin(FinalizationJob(session))


async def test_deleted_ending_is_not_open(endings):
    done, open_one = FinalizationJob(a_session()), FinalizationJob(a_session())
    await endings.save(done)
    await endings.save(open_one)
    await endings.finish(done)
    await endings.finish(done)
    assert await endings.open_ones() == [open_one]


@pytest.mark.parametrize("session", ['{"id": ', "{}", "[]", "null"])
async def test_unreadable_ending_is_left_alone(store, endings, caplog, session):
    broken, good = FinalizationJob(a_session()), FinalizationJob(a_session())
    await endings.save(broken)
    await store.run(lambda connection: connection.execute("UPDATE endings SET session = ?", (session,)).rowcount)
    await endings.save(good)
    assert await endings.open_ones() == [good]
    (record,) = caplog.records
    assert (record.getMessage(), record.ending) == ("an ending can't be read", broken.session.id)


async def test_ending_for_an_unknown_reason_is_left_alone(store, endings):
    await endings.save(FinalizationJob(a_session()))
    change = "UPDATE endings SET session = replace(session, 'caller hung up', 'caller fell asleep')"
    assert await store.run(lambda connection: connection.execute(change).rowcount) == 1
    assert await endings.open_ones() == []


async def test_state_is_that_of_the_moment_of_saving(endings):
    ending = FinalizationJob(a_session())
    saving = endings.save(ending)
    await saving
    ending.archived = True
    (read,) = await endings.open_ones()
    assert not read.archived


async def test_endings_survive_reopening(tmp_path):
    ending = FinalizationJob(a_session(), summary=SUMMARY)
    first = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    await JobTable(first).save(ending)
    await first.close()
    second = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    assert await JobTable(second).open_ones() == [ending]
    await second.close()


async def test_closed_store_is_unavailable(store, endings):
    await store.close()
    with pytest.raises(StoreUnavailable) as raised:
        await endings.save(FinalizationJob(a_session()))
    assert str(raised.value) == "the embedded store is closed"
