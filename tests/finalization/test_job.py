from dataclasses import replace
from datetime import timedelta
from itertools import product

import pytest

from gateway.finalization.job import (
    FinalizationJob,
    JobState,
    NoJobQueue,
    QueueStatus,
    merge_and_requeue,
    merged,
    merged_turns,
)
from gateway.session import EndReason, Speaker, Turn
from tests.calls.aftermath import START, SUMMARY, a_session

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


def turns(text: str, *, speaker=Speaker.CALLER):
    """A turn for each letter, at the second that it has in the alphabet."""
    return [Turn(speaker, letter, START + timedelta(seconds=ord(letter))) for letter in text]


def texts(some):
    return "".join(turn.text for turn in some)


@pytest.mark.parametrize(
    "one, other, whole",
    [
        ("", "", ""),
        ("abc", "", "abc"),
        ("abc", "abc", "abc"),
        ("abcde", "abc", "abcde"),
        ("abcd", "abcef", "abcdef"),  # it went on elsewhere before all was known there
        ("cd", "ab", "abcd"),
        ("ac", "bc", "abc"),
        ("bad", "bac", "bacd"),  # the clock was set back in the call
    ],
)
def test_every_turn_stands_once_in_order(one, other, whole):
    assert texts(merged_turns(turns(one), turns(other))) == whole
    assert texts(merged_turns(turns(other), turns(one))) == whole


def test_fuller_answer_is_kept():
    begun, whole, cut = (
        Turn(Speaker.AGENT, "Hello.", START),
        Turn(Speaker.AGENT, "Hello. How are you?", START),
        Turn(Speaker.AGENT, "Hello.", START, "How are you?"),
    )
    assert merged_turns([begun], [whole]) == merged_turns([whole], [begun]) == [whole]
    assert merged_turns([whole], [cut]) == merged_turns([cut], [begun]) == [cut]


def test_two_turns_of_one_moment_are_two():
    twice = [Turn(Speaker.CALLER, "Yes.", START), Turn(Speaker.CALLER, "Yes.", START)]
    assert merged_turns(twice, twice[:1]) == merged_turns(twice[:1], twice) == twice


def test_end_is_told_by_who_was_there():
    there = a_session(turns=turns("abc"), receipt={"block": "told"}, timings=[{"stt": 0.1}])
    died = replace(there, turns=turns("ab"), end_reason=EndReason.GATEWAY_DIED, receipt={}, timings=[], taken_over=True)
    for whole in (merged(there, died), merged(died, there)):
        assert whole == replace(there, taken_over=True)


def test_what_was_taken_back_does_not_come_back():
    """One node knows that the caller wants it forgotten, the other has it yet."""
    whole, [taken] = turns("abc"), turns("b")
    one = replace(a_session(turns=turns("ac")), taken_back=[taken.name])
    assert texts(merged(one, replace(one, turns=whole, taken_back=[])).turns) == "ac"
    assert texts(merged(replace(one, turns=whole, taken_back=[]), one).turns) == "ac"
