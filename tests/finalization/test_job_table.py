import sqlite3
from contextlib import closing
from dataclasses import replace

import pytest

from gateway.errors import StoreUnavailable, TakenOver
from gateway.finalization.job import FinalizationJob, JobState
from gateway.finalization.job_table import HANDED_OVER, SCHEMA, JobTable
from gateway.memory.stores.sqlite import SqliteStore
from tests.calls.aftermath import SUMMARY, a_session
from tests.history.test_stores import OLD


@pytest.fixture
async def store(tmp_path):
    store = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    yield store
    await store.close()


@pytest.fixture
def jobs(store):
    return JobTable(store)


async def test_new_job_reads_back(jobs):
    job = FinalizationJob(a_session())
    await jobs.save(job)
    assert await jobs.unfinished() == [job]


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
    assert await jobs.unfinished() == [job]


async def test_saving_again_replaces(jobs):
    job = FinalizationJob(a_session())
    await jobs.save(job)
    job.archived = True
    await jobs.save(job)
    (read,) = await jobs.unfinished()
    assert read.archived


async def test_job_handed_over_before_is_merged(store):
    """A call that was ended here once comes back, from another node's account of it: neither replaces the other."""
    jobs = JobTable(store, "a")
    session = a_session()
    first, second = (replace(session, turns=[turn]) for turn in session.turns)
    handed_over = FinalizationJob(first, node=HANDED_OVER)
    await jobs.save(handed_over)
    again = FinalizationJob(second)
    await jobs.add(again)
    assert again.session.turns == session.turns
    assert await jobs.unfinished() == [again]


async def test_job_of_another_worker_is_not_added(store):
    session = a_session()
    await JobTable(store, "a").add(FinalizationJob(session))
    with pytest.raises(TakenOver):
        await JobTable(store, "b").add(FinalizationJob(session))


async def test_finished_job_is_gone(jobs):
    done, open_one = FinalizationJob(a_session()), FinalizationJob(a_session())
    await jobs.save(done)
    await jobs.save(open_one)
    await jobs.finish(done)
    await jobs.finish(done)
    assert await jobs.unfinished() == [open_one]


@pytest.mark.parametrize("session", ['{"id": ', "{}", "[]", "null"])
async def test_unreadable_job_is_left_alone(store, jobs, caplog, session):
    broken, good = FinalizationJob(a_session()), FinalizationJob(a_session())
    await jobs.save(broken)
    await store.run(
        lambda connection: connection.execute("UPDATE finalization_jobs SET session = ?", (session,)).rowcount
    )
    await jobs.save(good)
    assert await jobs.unfinished() == [good]
    (record,) = caplog.records
    assert (record.getMessage(), record.session) == ("finalization job cannot be read", broken.session.id)


async def test_job_with_unknown_end_reason_is_left_alone(store, jobs):
    await jobs.save(FinalizationJob(a_session()))
    change = "UPDATE finalization_jobs SET session = replace(session, 'caller hung up', 'caller fell asleep')"
    assert await store.run(lambda connection: connection.execute(change).rowcount) == 1
    assert await jobs.unfinished() == []


async def test_failed_jobs_are_queued_again(store, jobs):
    failed = FinalizationJob(a_session(), JobState.FAILED, problem="remote document: remem answered 401", node="a")
    await jobs.save(failed)
    assert [job.state for job in await jobs.unfinished()] == [JobState.FAILED]
    assert await jobs.unfinished(limit=0) == []
    assert await jobs.retry_failed("voice-session:other") == 0
    assert await jobs.retry_failed() == 1
    again = await jobs.of(failed.session.id)
    assert (again.state, again.problem, again.node) == (JobState.QUEUED, "", "")


async def test_job_of_a_dead_process_is_claimed_once(store):
    async def alive(node):
        return node == "living"

    here, there = JobTable(store, "here", alive), JobTable(store, "there", alive)
    of_dead, of_living = FinalizationJob(a_session()), FinalizationJob(a_session())
    await JobTable(store, "dead").add(of_dead)
    await JobTable(store, "living").add(of_living)
    [dead, living] = await here.unfinished()
    assert (await here.claim(dead), await here.claim(living)) == (True, False)
    assert dead.node == "here" and await here.claim(dead)
    assert not await there.claim(replace(dead, node="dead"))


async def test_state_is_that_of_the_moment_of_saving(jobs):
    job = FinalizationJob(a_session())
    saving = jobs.save(job)
    await saving
    job.archived = True
    (read,) = await jobs.unfinished()
    assert not read.archived


async def test_jobs_survive_reopening(tmp_path):
    job = FinalizationJob(a_session(), summary=SUMMARY)
    first = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    await JobTable(first).save(job)
    await first.close()
    second = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    assert await JobTable(second).unfinished() == [job]
    await second.close()


async def test_closed_store_is_unavailable(store, jobs):
    await store.close()
    with pytest.raises(StoreUnavailable) as raised:
        await jobs.save(FinalizationJob(a_session()))
    assert str(raised.value) == "the embedded store is closed"


async def test_jobs_of_the_previous_version_are_kept(tmp_path):
    """Their table had another name; the dump was written by that version."""
    with closing(sqlite3.connect(tmp_path / "gateway.db")) as connection:
        connection.executescript((OLD / "gateway.sql").read_text())
    store = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    [waiting, parked] = await JobTable(store).unfinished()
    assert (waiting.session.caller, waiting.state, waiting.node) == ("+12025550145", JobState.QUEUED, "node-a")
    assert [turn.text for turn in waiting.session.turns] == ["Call me back."]
    assert (parked.state, parked.problem) == (JobState.FAILED, "send_remote: remem refused the document: 403")
    assert (parked.archived, parked.document_id, parked.version) == (True, "doc-4", 1)
    assert parked.summary.context == "Wants Leo."
    await store.close()
