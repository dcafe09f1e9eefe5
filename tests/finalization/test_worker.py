import asyncio
import logging
import sqlite3
import time
from dataclasses import replace

import orjson
import pytest

from gateway.calls.recorder import RecordingDirectory
from gateway.errors import LlmRefused, LlmUnavailable, SharedStoreUnavailable
from gateway.finalization.job import FinalizationJob, JobState, QueueStatus
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import EXTRACTIVE
from gateway.finalization.worker import FinalizationTimeouts
from gateway.history.call_log import CallLog, events_of_call
from gateway.history.live_events import EventPublisher
from gateway.session import Speaker, Turn
from tests.calls.aftermath import START, SUMMARY, WORDS, MoodyModel, a_session, aftermath_in
from tests.fakes.remem import FakeRemem, Fault
from tests.stage import until, until_it

FACES = ["plan", "current", "both"]


@pytest.fixture
async def after(tmp_path):
    async with aftermath_in(tmp_path) as after:
        yield after


@pytest.fixture
async def remem(after):
    async with FakeRemem() as remem:
        after.sends_to(remem)
        yield remem


def logged(caplog, level):
    records = [record for record in caplog.records if record.levelno == level and hasattr(record, "step")]
    return [(record.getMessage(), record.step) for record in records]


# When all goes well


async def test_call_leaves_archive_and_document(after):
    await after.finishes(session := a_session())
    (document,) = await after.documents()
    assert document.source_id == session.id
    assert WORDS in document.content
    assert after.archives() == [f"AGENT: Hello.\nCALLER: {WORDS}\n"]
    assert await after.unfinished_jobs() == []


@pytest.mark.parametrize("face", FACES)
async def test_call_leaves_one_document_in_each_store(after, remem, face):
    remem.face = face
    await after.finishes(session := a_session())
    (document,) = await after.documents()
    assert [stored.content for stored in remem.documents.values()] == [document.content]
    assert remem.documents_of(session.id) == 1
    assert after.pauses.lengths == []


async def test_finalizer_counts_what_is_unfinished(after):
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    assert finalizer.unfinished == 1
    await until(lambda: finalizer.unfinished == 0)


async def test_closing_waits_for_the_document_alone(after, remem):
    remem.always = Fault.BROKEN
    finalizer = after.finalizer()
    finalizer.submit(session := a_session())
    await finalizer.close(seconds=10)
    assert finalizer.unfinished == 0
    assert [document.source_id for document in await after.documents()] == [session.id]
    assert [job.session for job in await after.unfinished_jobs()] == [session]


async def test_nothing_spoken_is_logged(after, caplog):
    caplog.set_level(logging.DEBUG)
    await after.finishes(a_session())
    assert [record.getMessage() for record in caplog.records if record.name.startswith("gateway")] == [
        "call remembered"
    ]
    assert not any("chain" in str(vars(record)) for record in caplog.records)


# What leaves nothing


@pytest.mark.parametrize(
    "fields",
    [
        {"caller": ""},
        {"turns": []},
        {"turns": [Turn(Speaker.CALLER, " ", START)]},
        {"turns": [Turn(Speaker.AGENT, "", START, unheard="Hello.")]},
    ],
    ids=["nameless", "no turns", "blank turn", "nothing heard"],
)
async def test_call_without_a_name_or_word_leaves_nothing(after, remem, fields):
    await after.finishes(a_session(**fields))
    assert await after.documents() == []
    assert (after.archives(), remem.requests, await after.unfinished_jobs()) == ([], [], [])


async def test_disabled_memory_leaves_nothing(after):
    finalizer = after.finalizer()
    finalizer.submit(a_session(), kept=False)
    assert finalizer.unfinished == 0
    assert (await after.documents(), after.archives()) == ([], [])


# One document, whatever fails


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "fault",
    [Fault.BROKEN, Fault.TOO_MANY_REQUESTS, Fault.OVERLOADED, Fault.HTML, Fault.HTML_ERROR, Fault.ANSWER_LOST],
)
async def test_failed_send_is_repeated_once_it_can_be(after, remem, face, fault):
    remem.face = face
    # In the plan's dialect no key guards against a second document; on a server with ingestion it does.
    remem.honours_idempotency = face != "plan"
    remem.fails(*([Fault.NONE] if face == "current" else []), fault)
    await after.finishes(session := a_session())
    assert remem.documents_of(session.id) == len(remem.documents) == 1
    was_looked_for_in_vain = fault in (Fault.BROKEN, Fault.HTML, Fault.HTML_ERROR)
    assert len(after.pauses.lengths) == (2 if was_looked_for_in_vain else 1)
    assert await after.unfinished_jobs() == []


async def test_step_is_timed_from_its_first_attempt(after, remem):
    seconds = []

    def listen(event):
        if event["event"] == "step" and (event["step"], event["state"]) == ("remote document", "done"):
            seconds.append(event["seconds"])

    remem.fails(Fault.BROKEN)
    after.pauses.events.append(lambda: time.sleep(0.05))
    worker = after.finalizer(events=EventPublisher(listener=listen))
    worker.submit(a_session())
    await until(lambda: not worker.unfinished)
    assert seconds[0] >= 0.05


async def test_answers_lost_in_a_row_make_one_document(after, remem):
    remem.face, remem.honours_idempotency = "plan", False
    remem.fails(Fault.ANSWER_LOST, Fault.ANSWER_LOST, Fault.BROKEN)
    await after.finishes(session := a_session())
    assert remem.documents_of(session.id) == 1
    assert remem.paths() == ["POST /v1/documents", *["POST /v1/query"] * 3]


async def test_store_that_does_not_say_is_asked_again(after, remem):
    """Its answer to the create was lost, and the one to the question names no results: there may be a document."""
    remem.honours_idempotency = False
    remem.fails(Fault.ANSWER_LOST, Fault.NO_RESULTS_KEY)
    await after.finishes(session := a_session())
    assert remem.documents_of(session.id) == 1


async def test_own_store_does_not_wait_for_the_other(after, remem):
    remem.always = Fault.BROKEN
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    await until(lambda: len(after.pauses.lengths) > 3)
    assert len(await after.documents()) == 1
    assert len(await until(after.archives)) == 1
    await finalizer.close(seconds=0)
    assert remem.documents == {}


async def test_unreachable_store_is_served_by_the_next_process(after):
    async with FakeRemem() as gone:
        after.sends_to(gone)
    finalizer = after.finalizer()
    finalizer.submit(session := a_session())
    await until(lambda: after.pauses.lengths)
    await finalizer.close(seconds=0)
    async with FakeRemem() as back:
        after.sends_to(back)
        await after.resumes()
        assert back.documents_of(session.id) == len(await after.documents()) == 1


async def test_servers_wish_is_honoured(after, remem):
    remem.retry_after = "30"
    remem.fails(Fault.TOO_MANY_REQUESTS)
    await after.finishes(a_session())
    assert after.pauses.lengths == [30.0]


async def test_no_wish_is_longer_than_the_longest_pause(after, remem):
    remem.retry_after = "86400"
    remem.fails(Fault.OVERLOADED)
    await after.finishes(a_session())
    assert 600 <= after.pauses.lengths[0] <= 600 * 1.2


async def test_pauses_grow(after, remem):
    remem.retry_after = "0"
    remem.fails(*[Fault.OVERLOADED] * 11)
    await after.finishes(a_session())
    retries = FinalizationTimeouts().retries
    expected = [*retries, retries[-1], retries[-1]]
    assert [round(length / pause) for length, pause in zip(after.pauses.lengths, expected, strict=True)] == [1] * 11


async def test_lasting_trouble_is_logged_once(after, remem, caplog):
    remem.fails(*[Fault.OVERLOADED] * 5)
    await after.finishes(a_session())
    assert logged(caplog, logging.WARNING) == [("finalization step will be retried", "remote document")]


async def test_refused_key_costs_only_the_remote_document(after, remem, caplog):
    after.sends_to(remem, key="vlt_wrong")
    await after.finishes(a_session())
    assert len(await after.documents()) == 1
    assert remem.paths() == ["POST /v1/documents"]
    assert (remem.documents, after.pauses.lengths) == ({}, [])
    assert logged(caplog, logging.ERROR) == [("finalization step refused", "remote document")]
    assert "vlt_wrong" not in caplog.text


async def test_full_disk_does_not_cost_the_document(after, remem):
    after.archive_dir.write_text("a file where the folder should be")
    finalizer = after.finalizer()
    finalizer.submit(session := a_session())
    await until(lambda: remem.documents)
    assert len(await after.documents()) == 1
    after.archive_dir.unlink()
    await until(lambda: not finalizer.unfinished)
    assert len(after.archives()) == remem.documents_of(session.id) == 1
    assert await after.unfinished_jobs() == []


async def test_embedded_store_that_fails_is_waited_for(after):
    connection = sqlite3.connect(after.folder / "gateway.db")
    connection.execute("ALTER TABLE finalization_jobs RENAME TO elsewhere")
    after.pauses.events.extend([int, lambda: connection.execute("ALTER TABLE elsewhere RENAME TO finalization_jobs")])
    await after.finishes(a_session())
    connection.close()
    assert len(after.pauses.lengths) == 2
    assert (len(await after.documents()), len(after.archives())) == (1, 1)


# The language model


@pytest.mark.parametrize("face", ["plan", "both"])
async def test_model_that_comes_back_rewrites_the_document(after, remem, face):
    remem.face = face
    model = MoodyModel(LlmUnavailable("overloaded"))
    after.asks(model)
    after.pauses.events.append(model.recovers)
    await after.finishes(session := a_session())
    (document,), (stored,) = await after.documents(), remem.documents.values()
    assert document.content == stored.content
    assert SUMMARY.context in document.content
    assert document.source_id == session.id


async def test_model_that_refuses_leaves_the_extractive_summary(after, caplog):
    after.asks(MoodyModel(LlmRefused("no summary")))
    await after.finishes(a_session())
    (document,) = await after.documents()
    assert document.metadata["summary_by"] == EXTRACTIVE
    assert logged(caplog, logging.ERROR) == [("finalization step refused", "better summary")]
    assert await after.unfinished_jobs() == []


async def test_better_summary_does_not_wait_for_the_archive(after, remem):
    model = MoodyModel(LlmUnavailable("overloaded"))
    after.asks(model)
    after.archive_dir.write_text("a file where the folder should be")
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    await until(lambda: remem.documents)
    model.recovers()
    (stored,) = remem.documents.values()
    await until(lambda: SUMMARY.context in stored.content)
    await finalizer.close(seconds=0)
    assert after.archives() == []


async def test_document_deleted_meanwhile_is_not_upgraded(after, caplog):
    caplog.set_level(logging.INFO)
    model = MoodyModel(LlmUnavailable("overloaded"))
    after.asks(model)
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    (document,) = await until_it(after.documents)
    await after.store.delete(document.id)
    model.recovers()
    await until(lambda: not finalizer.unfinished)
    assert (await after.documents(), await after.unfinished_jobs()) == ([], [])
    assert ("document was deleted before the step", "better summary") in logged(caplog, logging.INFO)


async def test_good_model_is_asked_once(after, remem):
    model = MoodyModel()
    after.asks(model)
    await after.finishes(a_session())
    assert model.asked == 1
    assert remem.paths() == ["POST /v1/documents"]


# Across processes


@pytest.mark.parametrize(
    "state",
    [{}, {"archived": True}, {"summary": SUMMARY}, {"archived": True, "summary": SUMMARY, "remote_sent": True}],
    ids=["begun", "archived", "summarised", "sent"],
)
async def test_unfinished_job_is_resumed(after, remem, state):
    job = FinalizationJob(a_session(), **state)
    await after.steps.jobs.save(job)
    await after.resumes()
    assert len(await after.documents()) == remem.documents_of(job.session.id) == 1
    assert len(after.archives()) == (0 if job.archived else 1)
    assert await after.unfinished_jobs() == []


async def test_repeated_runs_make_no_second_document(after, remem):
    session = a_session()
    for _ in range(3):
        await after.finishes(session)
        await after.resumes()
    assert len(await after.documents()) == remem.documents_of(session.id) == 1


async def test_job_of_an_unreachable_worker_is_left(after):
    """Shared storage is away: whether the worker lives is found out another time, and nothing fails meanwhile."""
    is_away = True

    async def alive(node: str) -> bool:
        if is_away:
            raise SharedStoreUnavailable("Redis: ConnectionError")
        return False

    await JobTable(after.store, "other-worker").add(FinalizationJob(session := a_session()))
    after.jobs = JobTable(after.store, "this-worker", alive)
    finalizer = after.finalizer()
    assert await finalizer.resume() == {session.id}
    assert finalizer.unfinished == 0
    is_away = False
    await finalizer.resume()
    await finalizer.close(seconds=60)
    assert len(await after.documents()) == 1


async def test_finished_jobs_are_not_resumed(after, remem):
    await after.finishes(a_session())
    finalizer = after.finalizer()
    await finalizer.resume()
    assert finalizer.unfinished == 0


# Recording


async def test_recording_gets_session_and_summary(after):
    room = RecordingDirectory(after.folder / "calls")
    finalizer = after.finalizer()
    finalizer.submit(session := a_session(), room.record("one"))
    await until(lambda: not finalizer.unfinished)
    room.close()
    ended, summary = map(orjson.loads, (after.folder / "calls" / "one.jsonl").read_bytes().splitlines())
    assert (ended["note"], ended["content"]) == ("ended", session.as_json())
    assert (summary["note"], summary["content"]["written_by"]) == ("summary", EXTRACTIVE)


async def test_recording_of_a_nameless_call_ends_too(after):
    room = RecordingDirectory(after.folder / "calls")
    after.finalizer().submit(session := a_session(caller=""), room.record("one"))
    room.close()
    (ended,) = map(orjson.loads, (after.folder / "calls" / "one.jsonl").read_bytes().splitlines())
    assert (ended["note"], ended["content"]["id"]) == ("ended", session.id)


# Redaction


async def test_secret_spread_over_turns_is_stored_nowhere(after, tmp_path):
    """Not in the job, the archive, the document or the call log."""
    log = CallLog(tmp_path / "call-log.db")
    events = EventPublisher(log)
    texts = ["My card is 4242 4242", "4242 4242."]
    session = a_session(turns=[Turn(Speaker.CALLER, text, START) for text in texts])
    for text in texts:
        events.of(session).caller_said(text, START)
    after.archive_dir.write_text("a file where the folder should be")  # the job stays open
    worker = after.finalizer(events=events)
    worker.submit(session)
    (document,) = await until_it(after.documents)
    await log.flushed()
    (job,) = await after.unfinished_jobs()
    logged = [event.get("text", "") for event in events_of_call(tmp_path / "call-log.db", session.id)]
    after.archive_dir.unlink()
    await until(lambda: not worker.unfinished)
    log.close()
    for text in (document.content, *after.archives(), *logged, *(turn.text for turn in job.session.turns)):
        assert "4242" not in text
    assert "[card number removed]" in "".join(after.archives())


# The shared queue


class FakeQueue:
    """A queue of other nodes, which the test answers for."""

    is_shared = True

    def __init__(self):
        self.jobs = {}
        self.answer = QueueStatus.PENDING
        self.given = []

    async def hand_over(self, job):
        self.jobs[job.session.id] = replace(job)

    async def status(self, session_id):
        return self.answer if session_id in self.jobs else QueueStatus.LOST

    async def load(self, session_id):
        return self.jobs.get(session_id)

    async def next(self):
        await asyncio.sleep(0.01)
        given, self.given = self.given, []
        return given


@pytest.fixture
async def shared(after):
    """A worker with a queue, whose loops run."""
    queue = FakeQueue()
    worker = after.finalizer(queue=queue, timeouts=FinalizationTimeouts(follow=0.01, owner_starts=0.05))
    loops = [asyncio.create_task(loop) for loop in (worker.consume_queue(), worker.follow_queue())]
    yield worker, queue
    for loop in loops:
        loop.cancel()
    await worker.close(seconds=0)


async def test_job_is_handed_over_and_kept_until_done(after, shared):
    worker, queue = shared
    started = asyncio.Event()
    worker.submit(session := a_session(), on_started=started.set)
    await started.wait()
    (job,) = await after.unfinished_jobs()
    assert (job.node, queue.jobs[session.id].session, worker.is_shared) == ("stream", session, True)
    queue.answer = QueueStatus.DONE
    await until_it(lambda: is_empty(after))
    assert await after.documents() == []  # another node has written it


async def is_empty(after):
    return not await after.unfinished_jobs()


async def test_failed_job_of_another_node_is_parked_here(after, shared):
    worker, queue = shared
    worker.submit(session := a_session())
    await until(lambda: queue.jobs)
    queue.jobs[session.id].problem = "remote document: remem answered 401"
    queue.jobs[session.id].state = JobState.FAILED
    queue.answer = QueueStatus.FAILED

    async def is_parked():
        return [job for job in await after.unfinished_jobs() if job.state is JobState.FAILED]

    (job,) = await until_it(is_parked)
    assert job.problem == "remote document: remem answered 401"


async def test_lost_job_is_handed_over_again(after, shared, caplog):
    worker, queue = shared
    worker.submit(session := a_session())
    await until(lambda: not worker.unfinished)
    queue.jobs.clear()
    await until(lambda: queue.jobs)
    assert queue.jobs[session.id].remote_sent
    assert "finalization job was lost by Redis and is queued again" in caplog.messages


async def test_job_from_the_queue_is_run(after, shared):
    _, queue = shared
    queue.given.append(FinalizationJob(a_session(), claim="this-node 1-0"))
    (document,) = await until_it(after.documents)
    assert WORDS in document.content


async def test_contribution_waits_for_the_owner(after, shared):
    worker, queue = shared
    over = asyncio.Event()
    worker.contribute(session := a_session(), over.wait)
    await asyncio.sleep(0.02)
    assert queue.jobs == {}
    over.set()
    await until(lambda: session.id in queue.jobs)
