import sqlite3
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from gateway.agents import WEBHOOK_EVENTS, Agent
from gateway.errors import LlmUnavailable, StoreRefused, StoreUnavailable
from gateway.finalization.archive import Archive
from gateway.finalization.job import FinalizationJob, JobState, merge_and_requeue
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import REMOTE_TIMEOUT, CallMemory, FinalizationSteps
from gateway.finalization.summary.summarizer import Summarizer
from gateway.finalization.webhooks import WebhookOutbox, WebhookTarget
from gateway.history.stores import open_local_store
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.pinned_topics import TopicNote
from gateway.session import EndReason, Speaker, Turn, Voicemail
from tests.calls.aftermath import START, SUMMARY, WORDS, MoodyModel, a_session, aftermath_in, never_erased
from tests.fakes.remem import FakeRemem, Fault


@pytest.fixture
async def after(tmp_path):
    async with aftermath_in(tmp_path) as after:
        yield after


@pytest.fixture
async def remem(after):
    async with FakeRemem() as remem:
        after.sends_to(remem)
        yield remem


async def written(after):
    """A job whose document is in our own store."""
    job = FinalizationJob(a_session())
    await after.jobs.save(job)
    await after.steps.write_document(job)
    return job


# Archive


async def test_archive_is_kept_once(after):
    job = FinalizationJob(a_session())
    await after.steps.write_archive(job)
    assert after.archives() == [f"AGENT: Hello.\nCALLER: {WORDS}\n"]
    (path,) = after.archive_dir.iterdir()
    path.unlink()
    await after.steps.write_archive(job)
    assert after.archives() == []


async def test_archive_that_fails_stays_to_be_done(after):
    after.archive_dir.write_text("a file where the folder should be")
    job = FinalizationJob(a_session())
    with pytest.raises(OSError):
        await after.steps.write_archive(job)
    assert not job.archived


async def test_superseded_job_improves_nothing(after):
    """A longer transcript exists: the node that wrote it has the better summary too."""
    session = a_session()
    await after.steps.write_archive(FinalizationJob(session))
    less = FinalizationJob(replace(session, turns=session.turns[:1]))
    await after.steps.write_archive(less)
    assert after.archives() == [f"AGENT: Hello.\nCALLER: {WORDS}\n"]
    after.asks(MoodyModel(LlmUnavailable("overloaded")))
    await after.steps.write_document(less)
    assert not after.steps.upgrade_due(less)


# More is known of a call


async def merged_after(after, remem=None):
    """A done job of one turn, and the job of the same call with all turns."""
    session = a_session()
    first = FinalizationJob(replace(session, turns=session.turns[:1]))
    await after.steps.write_document(first)
    if remem is not None:
        await after.steps.send_remote(first)
    again = merge_and_requeue(first, session)
    assert again is not None and again.session.turns == session.turns
    return again


async def test_own_document_is_replaced_when_more_is_known(after):
    again = await merged_after(after)
    [before] = await after.documents()
    assert WORDS not in before.content
    await after.steps.write_document(again)
    [document] = await after.documents()
    assert document.id == before.id == again.document_id
    assert WORDS in document.content
    assert again.version == 2


async def test_remote_document_is_replaced_when_more_is_known(after, remem):
    again = await merged_after(after, remem)
    await after.steps.write_document(again)
    await after.steps.send_remote(again)
    [document] = remem.documents.values()
    assert WORDS in document.content
    assert again.remote_version == again.version


async def test_remote_document_whose_answer_was_lost_is_replaced(after, remem):
    """That it was sent is known, not what became of it: it is found, and then replaced."""
    again = await merged_after(after, remem)
    again.remote_id, again.remote_version = "", 0
    await after.steps.write_document(again)
    await after.steps.send_remote(again)
    [document] = remem.documents.values()
    assert WORDS in document.content


async def test_nothing_more_is_nothing_to_do():
    session = a_session()
    assert merge_and_requeue(FinalizationJob(session), replace(session, turns=session.turns[:1])) is None


# Document


async def test_document_is_written_once(after):
    job = await written(after)
    await after.steps.write_document(job)
    (document,) = await after.documents()
    assert (document.id, document.source_id) == (job.document_id, job.session.id)
    assert job.version == 1


async def test_document_of_a_forgotten_write_is_found_again(after):
    """The process died between the write and the note of it."""
    job = await written(after)
    again = FinalizationJob(job.session)
    await after.steps.write_document(again)
    assert again.document_id == job.document_id
    assert len(await after.documents()) == 1


async def test_summary_is_not_asked_for_twice(after):
    model = MoodyModel()
    after.asks(model)
    job = await written(after)
    await after.steps.write_document(job)
    assert (model.asked, job.summary) == (1, SUMMARY)


async def test_title_follows_the_agents_zone(after):
    after.steps = replace(after.steps, find_agent={"maya": Agent("maya", "", timezone="Asia/Tokyo")}.get)
    await written(after)
    (document,) = await after.documents()
    assert document.title == "Voice Call Summary — 2026-02-07 08:15 AM"


async def test_every_step_is_saved(after):
    job = await written(after)
    await after.steps.write_archive(job)
    assert await after.unfinished_jobs() == [job]


async def test_finished_job_keeps_no_words(after):
    job = await written(after)
    job.move_to(JobState.RUNNING)
    await after.steps.finish(job)
    assert job.state is JobState.DONE
    with closing(sqlite3.connect(after.folder / "gateway.db")) as connection:
        assert connection.execute("SELECT * FROM finalization_jobs").fetchall() == []
    assert len(await after.documents()) == 1


# A better summary


async def test_no_upgrade_without_a_model(after):
    job = await written(after)
    assert not after.steps.upgrade_due(job)
    await after.steps.upgrade(job)
    assert job.version == 1


async def test_upgrade_replaces_the_document(after):
    job = await written(after)
    after.asks(MoodyModel())
    assert after.steps.upgrade_due(job)
    await after.steps.upgrade(job)
    (document,) = await after.documents()
    assert document.id == job.document_id
    assert document.content.endswith("### Context for Next Call\nAna waits for her chain.\n")
    assert (job.version, job.summary) == (2, SUMMARY)
    assert not after.steps.upgrade_due(job)


async def test_failed_upgrade_changes_nothing(after):
    job = await written(after)
    after.asks(MoodyModel(LlmUnavailable("overloaded")))
    with pytest.raises(LlmUnavailable):
        await after.steps.upgrade(job)
    assert job.version == 1
    assert job.summary.written_by == "extractive"


# The remote store


async def test_nothing_is_sent_without_a_remote_store(after):
    job = await written(after)
    assert not after.steps.remote_due(job)
    await after.steps.send_remote(job)
    assert (job.remote_id, job.remote_version) == ("", 0)


async def test_nothing_is_sent_before_there_is_a_document(after, remem):
    await after.steps.send_remote(FinalizationJob(a_session()))
    assert remem.requests == []


async def test_document_is_sent_once(after, remem):
    job = await written(after)
    assert after.steps.remote_due(job)
    await after.steps.send_remote(job)
    await after.steps.send_remote(job)
    (stored,) = remem.documents.values()
    assert (job.remote_id, job.remote_version) == (stored.id, 1)
    assert remem.paths() == ["POST /v1/documents"]


async def test_better_summary_replaces_the_remote_document(after, remem):
    job = await written(after)
    await after.steps.send_remote(job)
    after.asks(MoodyModel())
    await after.steps.upgrade(job)
    await after.steps.send_remote(job)
    (stored,) = remem.documents.values()
    assert stored.content == (await after.documents())[0].content
    assert remem.paths() == ["POST /v1/documents", f"PUT /v1/documents/{stored.id}"]
    assert job.remote_version == 2


async def test_lost_answer_is_asked_after(after, remem):
    remem.honours_idempotency = False
    remem.fails(Fault.ANSWER_LOST)
    job = await written(after)
    with pytest.raises(StoreUnavailable):
        await after.steps.send_remote(job)
    (read,) = await after.unfinished_jobs()
    assert read.remote_sent
    await after.steps.send_remote(read)
    assert remem.documents_of(read.session.id) == 1
    assert read.remote_id in remem.documents


async def test_document_that_is_not_indexed_yet_is_not_sent_again(after, remem):
    remem.honours_idempotency, remem.indexing_delay = False, 3600
    remem.fails(Fault.ANSWER_LOST)
    job = await written(after)
    with pytest.raises(StoreUnavailable):
        await after.steps.send_remote(job)
    with pytest.raises(StoreUnavailable) as raised:
        await after.steps.send_remote(job)
    assert raised.value.retry_after == REMOTE_TIMEOUT
    (stored,) = remem.documents.values()
    stored.visible_at = 0.0
    await after.steps.send_remote(job)
    assert (job.remote_id, len(remem.documents)) == (stored.id, 1)


async def test_document_found_without_an_id_is_enough(after, remem):
    remem.face = remem.shape = "plan"
    remem.honours_idempotency = False
    remem.fails(Fault.ANSWER_LOST)
    job = await written(after)
    with pytest.raises(StoreUnavailable):
        await after.steps.send_remote(job)
    await after.steps.send_remote(job)
    assert remem.documents_of(job.session.id) == 1
    assert (job.remote_id, job.remote_version) == ("", 1)


async def test_turned_away_repeat_is_asked_after(after, remem):
    """The first create was carried out and not yet indexed, the second turned away: the third must ask again."""
    remem.face, remem.honours_idempotency, remem.indexing_delay = "plan", False, 3600
    remem.fails(Fault.ANSWER_LOST, Fault.NONE, Fault.NONE, Fault.TOO_MANY_REQUESTS)
    job = await written(after)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await after.steps.send_remote(job)
    (stored,) = remem.documents.values()
    stored.visible_at = 0.0
    await after.steps.send_remote(job)
    assert remem.documents_of(job.session.id) == job.remote_version == 1


async def test_turned_away_request_is_not_asked_after(after, remem):
    remem.fails(Fault.TOO_MANY_REQUESTS)
    job = await written(after)
    with pytest.raises(StoreUnavailable):
        await after.steps.send_remote(job)
    assert not job.remote_sent
    await after.steps.send_remote(job)
    assert remem.paths() == ["POST /v1/documents"] * 2


async def test_wrong_key_is_refused(after, remem):
    after.sends_to(remem, key="vlt_wrong")
    job = await written(after)
    with pytest.raises(StoreRefused):
        await after.steps.send_remote(job)
    assert job.remote_version == 0


# Facts


class Parrot(MoodyModel):
    """Takes for a fact what the agent read out of its notes."""

    async def summarise(self, request):
        return replace(SUMMARY, caller_facts=(CallerFact("Prefers window seats", "preference", 0.9, (0, 1)),))


async def test_what_was_looked_up_in_mid_call_is_not_learned_again(tmp_path):
    """It is in no receipt: the agent found it with a search."""
    store = await open_local_store(tmp_path)
    try:
        book, archive = FactStore(store), Archive(tmp_path / "archive", retention_days=7)
        writer = Summarizer([Parrot()], "Summarise.", tries_each=1)
        steps = FinalizationSteps(CallMemory(store), JobTable(store), None, writer, archive, {}.get, never_erased)
        await book.learn(a_session(), [CallerFact("Prefers window seats", "preference", 0.9, (1,))], START)
        asked = Turn(Speaker.AGENT, "You prefer window seats, right?", START)
        job = FinalizationJob(a_session(turns=[asked, Turn(Speaker.CALLER, "Yes.", START)]))
        await steps.write_document(job)
        assert job.summary.caller_facts == ()
    finally:
        await store.close()


# Topics

SALE = TopicNote("Orlando sale", status="There is an offer", state="open", turns=(1,))


@pytest.fixture
def pins(after):
    return after.steps.memory.topics


async def test_topics_are_kept_once_whoever_dies(after, pins):
    """The step is done, and the process dies before that is noted: the next one repeats it."""
    job = await written(after)
    job.summary = replace(SUMMARY, running_topics=(SALE,))
    await after.jobs.save(job)
    await after.steps.note_topics(job)
    await after.steps.note_topics(job)
    await after.resumes()
    [topic] = await pins.topics("maya", job.session.caller)
    assert (topic.title, topic.calls, len(topic.history)) == ("Orlando sale", 1, 1)
    assert await after.unfinished_jobs() == []


async def test_process_that_died_before_leaves_topics_to_the_next(after, pins):
    job = await written(after)
    job.summary = replace(SUMMARY, running_topics=(SALE,))
    await after.jobs.save(job)
    await after.resumes()
    assert [topic.title for topic in await pins.topics("maya", job.session.caller)] == ["Orlando sale"]


async def test_better_summary_brings_its_topics(after, pins):
    model = MoodyModel(failure=LlmUnavailable("down"))
    after.asks(model)
    said = "The Orlando sale waits for an offer."
    session = a_session(turns=[Turn(Speaker.CALLER, said, START)])
    after.pauses.events.append(model.recovers)
    await after.finishes(session)
    assert await pins.topics("maya", session.caller) == []  # the model named none; the rules had found the sale


async def test_summarizer_gets_known_topics(after, pins):
    await pins.note(a_session(started_at=START - timedelta(days=1)), [SALE], START)
    session = a_session(turns=[Turn(Speaker.CALLER, "Orlando is sold.", START)])
    await after.finishes(session)
    [topic] = await pins.topics("maya", session.caller)
    assert (topic.title, topic.state, topic.calls) == ("Orlando sale", "closed", 2)


# Mailboxes


async def outbox_of(after):
    """Steps whose messages are stored and not sent; a function that lists their events."""
    target = WebhookTarget("https://example.com/hook", frozenset(WEBHOOK_EVENTS))
    box = WebhookOutbox(after.store, httpx.AsyncClient(), {"maya": target}, ())

    async def events():
        return [event for (event,) in await after.store.fetch("SELECT event FROM webhook_messages ORDER BY event")]

    return replace(after.steps, webhooks=box), events


async def test_left_message_is_reported_once_and_known_to_the_next_call(after):
    """The step is repeated after a kill, and the session was restored from the log of a gateway that died."""
    steps, events = await outbox_of(after)
    job = FinalizationJob(replace(a_session(), voicemail=Voicemail.LEFT, end_reason=EndReason.GATEWAY_DIED))
    for _ in range(2):
        await steps.write_document(job)
        await steps.notify(job)
    assert await events() == ["call.ended", "voicemail.left"]
    [document] = await after.documents()
    assert "A message was left on the voicemail" in document.content


async def test_mailbox_without_a_message_leaves_no_document(after):
    steps, events = await outbox_of(after)
    job = FinalizationJob(replace(a_session(), voicemail=Voicemail.REACHED, end_reason=EndReason.VOICEMAIL_REACHED))
    for step in (steps.write_document, steps.list_call, steps.learn_facts, steps.note_topics, steps.notify):
        await step(job)
    assert (await after.documents(), await events()) == ([], ["call.ended"])
    [call] = await steps.memory.calls.newest(limit=10)
    assert (call.outcome, call.document_id) == ("voicemail reached", "")
