from dataclasses import replace
from itertools import product

import pytest

from gateway.finalization.job import FinalizationJob, JobState, NoJobQueue, QueueStatus, merge_and_requeue
from tests.calls.aftermath import SUMMARY, a_session

LEGAL = {
    ("queued", "running"),
    ("running", "retrying"),
    ("running", "failed"),
    ("running", "done"),
    ("running", "queued"),
    ("retrying", "running"),
    ("retrying", "failed"),
    ("retrying", "done"),
    ("retrying", "queued"),
    ("failed", "queued"),
}


@pytest.mark.parametrize("before, after", [*product(JobState, JobState)])
def test_only_legal_steps_are_possible(before, after):
    job = FinalizationJob(a_session(), before)
    if before is after or (before, after) in LEGAL:
        job.move_to(after)
        assert job.state is after
    else:
        with pytest.raises(RuntimeError) as raised:
            job.move_to(after)
        assert str(raised.value) == f"finalization job cannot go from {before} to {after}"


def test_failed_job_starts_over():
    job = FinalizationJob(a_session(), JobState.FAILED, archived=True, problem="document: refused")
    job.requeue()
    assert (job.state, job.problem, job.archived) == (JobState.QUEUED, "", True)


@pytest.mark.parametrize("state", [JobState.QUEUED, JobState.RUNNING, JobState.RETRYING])
def test_job_that_was_running_reads_back_as_queued(state):
    job = FinalizationJob(a_session(), state, summary=SUMMARY, version=2)
    assert FinalizationJob.from_json(job.as_json()) == replace(job, state=JobState.QUEUED)


def test_failed_job_reads_back_as_failed():
    job = FinalizationJob(a_session(), JobState.FAILED, problem="document: refused")
    assert FinalizationJob.from_json(job.as_json()) == job


@pytest.mark.parametrize("problem, state", [("", JobState.QUEUED), ("refused", JobState.FAILED)])
def test_job_of_the_previous_version_has_no_state(problem, state):
    stored = FinalizationJob(a_session(), problem=problem).as_json()
    del stored["state"]
    assert FinalizationJob.from_json(stored).state is state


def test_more_turns_make_a_new_job():
    session = a_session()
    known = FinalizationJob(replace(session, turns=session.turns[:1]), JobState.DONE, version=2, remote_id="r")
    again = merge_and_requeue(known, session)
    assert (again.state, again.version, again.remote_id, again.remote_sent) == (JobState.QUEUED, 2, "r", True)
    assert again.session.turns == session.turns
    assert merge_and_requeue(again, session) is None


async def test_single_node_has_no_queue():
    queue = NoJobQueue()
    await queue.hand_over(job := FinalizationJob(a_session()))
    assert await queue.status(job.session.id) is QueueStatus.PENDING
    assert (await queue.load(job.session.id), await queue.next(), queue.is_shared) == (None, [], False)
