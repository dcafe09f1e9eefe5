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
def jobs(store):
    return JobTable(store)


async def test_new_ending_reads_back(jobs):
    job = FinalizationJob(a_session())
    await jobs.save(job)
    assert await jobs.open_ones() == [job]


async def test_every_field_reads_back(jobs):
    job = FinalizationJob(
        a_session(),
        archived=True,
        summary=SUMMARY,
        document_id="7f0c",
        version=2,
        remote_id="ab",
        remote_version=1,
        remote_sent=True,
    )
    await jobs.save(job)
    assert await jobs.open_ones() == [job]


async def test_saving_again_replaces(jobs):
    job = FinalizationJob(a_session())
    await jobs.save(job)
    job.archived = True
    await jobs.save(job)
    (read,) = await jobs.open_ones()
    assert read.archived


async def test_ending_handed_over_before_gets_what_else_is_known(store):
    """A call that was ended here once comes back, from another node's account of it: neither replaces the other."""
    jobs = JobTable(store, "a")
    session = a_session()
    first, second = (replace(session, turns=[turn]) for turn in session.turns)
    handed_over = FinalizationJob(first, node=HANDED_OVER)
    await jobs.save(handed_over)
    again = FinalizationJob(second)
    await jobs.begin(again)
    assert again.session.turns == session.turns
    assert await jobs.open_ones() == [again]


async def test_ending_of_another_worker_is_not_begun(store):
    session = a_session()
    await JobTable(store, "a").begin(FinalizationJob(session))
    with pytest.raises(TakenOver):
        await JobTable(store, "b").begin(FinalizationJob(session))


async def test_deleted_ending_is_not_open(jobs):
    done, open_one = FinalizationJob(a_session()), FinalizationJob(a_session())
    await jobs.save(done)
    await jobs.save(open_one)
    await jobs.finish(done)
    await jobs.finish(done)
    assert await jobs.open_ones() == [open_one]


@pytest.mark.parametrize("session", ['{"id": ', "{}", "[]", "null"])
async def test_unreadable_ending_is_left_alone(store, jobs, caplog, session):
    broken, good = FinalizationJob(a_session()), FinalizationJob(a_session())
    await jobs.save(broken)
    await store.run(lambda connection: connection.execute("UPDATE endings SET session = ?", (session,)).rowcount)
    await jobs.save(good)
    assert await jobs.open_ones() == [good]
    (record,) = caplog.records
    assert (record.getMessage(), record.ending) == ("an ending can't be read", broken.session.id)


async def test_ending_for_an_unknown_reason_is_left_alone(store, jobs):
    await jobs.save(FinalizationJob(a_session()))
    change = "UPDATE endings SET session = replace(session, 'caller hung up', 'caller fell asleep')"
    assert await store.run(lambda connection: connection.execute(change).rowcount) == 1
    assert await jobs.open_ones() == []


async def test_state_is_that_of_the_moment_of_saving(jobs):
    job = FinalizationJob(a_session())
    saving = jobs.save(job)
    await saving
    job.archived = True
    (read,) = await jobs.open_ones()
    assert not read.archived


async def test_endings_survive_reopening(tmp_path):
    job = FinalizationJob(a_session(), summary=SUMMARY)
    first = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    await JobTable(first).save(job)
    await first.close()
    second = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    assert await JobTable(second).open_ones() == [job]
    await second.close()


async def test_closed_store_is_unavailable(store, jobs):
    await store.close()
    with pytest.raises(StoreUnavailable) as raised:
        await jobs.save(FinalizationJob(a_session()))
    assert str(raised.value) == "the embedded store is closed"
