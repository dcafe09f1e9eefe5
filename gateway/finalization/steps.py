"""
The steps of a finalization job: archive, summary, document here and in the remote store, facts, topics, table of calls.

Each step does its part if it is not done yet, and saves the job. Repeating a step does no harm.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from gateway.agents import Agent
from gateway.errors import StoreUnavailable
from gateway.finalization.archive import Archive
from gateway.finalization.document import archive_text, call_document, speakers, spoken_lines
from gateway.finalization.job import FinalizationJob, JobState, JobStore
from gateway.finalization.summary.call_summary import CallSummary
from gateway.finalization.summary.summarizer import Summarizer, SummaryContext
from gateway.finalization.summary.topics import KnownTopic
from gateway.finalization.webhooks import (
    CALL_ENDED,
    VOICEMAIL_LEFT,
    NoWebhooks,
    WebhookOutbox,
    call_ended,
    voicemail_left,
)
from gateway.history.calls_table import CallRowFilter, CallsTable, FinishedCall
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import RememClient
from gateway.memory.state import CallerStateStore, listed
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.store import MemoryStore
from gateway.metrics import DAYS_BETWEEN_CALLS, RECALL_USED, REPEAT_CALLERS, STATE_KEYS
from gateway.session import Voicemail, VoiceSession

EXTRACTIVE: Final = "extractive"
REMOTE_TIMEOUT: Final = 10.0
_REMOVED_AGENT: Final = Agent("", "")


class CallMemory:
    """Everything in the memory store that a call adds to."""

    def __init__(self, store: MemoryStore, embedder: Embedder | None = None) -> None:
        self.documents = store
        self.calls = CallsTable(store)
        self.facts = FactStore(store)
        self.topics = PinnedTopicStore(store, embed=embedder.embed if embedder is not None else None)
        self.state = CallerStateStore(store)


Step = Callable[[FinalizationJob], Awaitable[bool | None]]
"""Part of post-call processing. Returns False if there was nothing to do."""


@dataclass(frozen=True)
class FinalizationSteps:
    """`find_agent`: by name. `is_erased`: whether a call's caller was erased since it began."""

    memory: CallMemory
    jobs: JobStore
    remem: RememClient | None
    summarizer: Summarizer
    archive: Archive
    find_agent: Callable[[str], Agent | None]
    is_erased: Callable[[VoiceSession], Awaitable[bool]]
    webhooks: WebhookOutbox | NoWebhooks = NoWebhooks()

    async def is_cancelled(self, job: FinalizationJob) -> bool:
        """
        Whether the call was reverted or its caller erased: it must leave nothing.

        While the store is away the answer is no. Steps that need the store wait for it anyway, and a transcript that
        should not exist is deleted later by the eraser.
        """
        try:
            return await self.memory.facts.is_reverted(job.session.id) or await self.is_erased(job.session)
        except StoreUnavailable:
            return False

    async def finish(self, job: FinalizationJob) -> None:
        """Nothing is left to do. From here on the words are in the archive and the call log alone."""
        if await self.is_cancelled(job):  # Redis keeps the session of a call that was taken over for a day
            job.session = replace(job.session, turns=[])
        await self.jobs.finish(job)
        job.move_to(JobState.DONE)

    async def park(self, job: FinalizationJob) -> None:
        """A step failed for good: keep the job until an operator retries it."""
        if await self.is_cancelled(job):
            return await self.finish(job)
        job.move_to(JobState.FAILED)
        await self.jobs.park(job)

    async def write_archive(self, job: FinalizationJob) -> None:
        """The raw transcript, as a file. Raises OSError if the disk rejects it."""
        if not job.archived:
            written = await self.archive.write(job.session.uuid, archive_text(spoken_lines(job.session.turns)))
            job.archived, job.superseded = written, not written
            await self.jobs.save(job)

    async def save_state(self, job: FinalizationJob) -> bool:
        """What the agent's functions keep of the caller. Returns whether there is anything."""
        session = job.session
        values = listed(session.state, self._agent(session).repeat_caller.state_keys) if session.trust else {}
        if values:
            await self.memory.state.save(
                session.agent,
                session.caller,
                values,
                session_id=session.id,
                now=session.ended_at or session.started_at,
                trust=session.trust,
            )
        return bool(values)

    async def write_document(self, job: FinalizationJob) -> bool:
        """
        Summary and document in our own store. By a language model, or by rules if none answers in time.

        A call without trust has none: later calls would read it. Its transcript is archived. Nor has a mailbox that got
        no message. Returns whether one was written.
        """
        if not job.session.leaves_document:
            return False
        if job.summary is None:
            job.summary = await self._summarize(job.session, self.summarizer.write)
            if await self.is_cancelled(job):  # that took a while
                return False
            await self.jobs.save(job)
        is_new = not job.document_id
        if is_new:
            new = self.document(job.session, job.summary)
            document = await self.memory.documents.create(new)
            if job.version and document.content != new.content:  # written when less was known of the call
                document = await self.memory.documents.replace(document.id, new.content, title=new.title)
            job.document_id, job.version = document.id, job.version + 1
            await self.jobs.save(job)
        return is_new

    async def summarize(self, session: VoiceSession) -> CallSummary:
        """A summary by the language model, or by rules if none is configured. Raises LlmError."""
        has_llm = self.summarizer.has_llm(session.agent)
        return await self._summarize(session, self.summarizer.ask if has_llm else self.summarizer.write)

    async def learn_facts(self, job: FinalizationJob) -> bool:
        """The caller's facts. Those of a better summary replace them. Returns whether there are any."""
        if job.summary is not None:
            session, silence = job.session, self._agent(job.session).repeat_caller.new_person_after
            who = speakers(session.turns, silence=silence, known_name=session.known_name)
            now = session.ended_at or session.started_at
            await self.memory.facts.learn(session, job.summary.caller_facts, now, speakers=who)
        return job.summary is not None and bool(job.summary.caller_facts)

    async def note_topics(self, job: FinalizationJob) -> None:
        """The topics that continue over calls. Those of a better summary replace them."""
        if job.summary is not None:
            now = job.session.ended_at or job.session.started_at
            await self.memory.topics.note(job.session, job.summary.running_topics, now)

    async def list_call(self, job: FinalizationJob) -> None:
        """The call's row in the table of finished calls."""
        if job.summary is not None or not job.session.leaves_document:
            session, calls = job.session, self.memory.calls
            of_caller = CallRowFilter(caller=session.caller, agent=session.agent)
            earlier = await calls.newest(of_caller, limit=20)  # a few may have started later
            written_by = job.summary.written_by if job.summary is not None else ""
            await calls.write(session, document_id=job.document_id, summary_by=written_by)
            # When the step is repeated the call is among the earlier ones, and has been counted.
            is_repeated = session.id in {call.session_id for call in earlier}
            if self._agent(session).repeat_caller.analytics_enabled and not is_repeated:
                self._count(session, earlier)

    async def notify(self, job: FinalizationJob) -> bool:
        """The webhooks about the finished call, in the outbox. Returns whether there were any."""
        agent = job.session.agent
        left = job.session.voicemail is Voicemail.LEFT and self.webhooks.wants(agent, VOICEMAIL_LEFT)
        if left:
            await self.webhooks.add(voicemail_left(job.session))
        if ended := self.webhooks.wants(agent, CALL_ENDED):
            await self.webhooks.add(call_ended(job.session, job.summary, self._agent(job.session).fields))
        return left or ended

    def _count(self, session: VoiceSession, earlier: Sequence[FinishedCall]) -> None:
        """Update the metrics of repeat callers."""
        times = [datetime.fromisoformat(call.started_at) for call in earlier]
        last = max((at for at in times if at < session.started_at), default=None)
        REPEAT_CALLERS.labels(session.agent, "first-time" if last is None else "returning").inc()
        if last is not None:
            DAYS_BETWEEN_CALLS.labels(session.agent).observe((session.started_at - last).total_seconds() / 86_400)
        for key in listed(session.state, self._agent(session).repeat_caller.state_keys):
            STATE_KEYS.labels(session.agent, key).inc()
        if session.receipt.get("items"):
            RECALL_USED.labels(session.agent).inc()

    def upgrade_due(self, job: FinalizationJob) -> bool:
        """Whether the summary was written by rules although a language model is configured."""
        by_rules = job.summary is not None and job.summary.written_by == EXTRACTIVE
        return self.summarizer.has_llm(job.session.agent) and by_rules and not job.superseded

    async def upgrade(self, job: FinalizationJob) -> None:
        """Have a language model rewrite the summary and replace the document. Raises LlmError."""
        if not self.upgrade_due(job):
            return
        summary = await self.summarize(job.session)
        new = self.document(job.session, summary)
        await self.jobs.save(job)  # raises if another node runs the job by now
        await self.memory.documents.replace(job.document_id, new.content, title=new.title)
        await self.memory.calls.summary_rewritten(job.session.id, summary.written_by)
        job.summary, job.version = summary, job.version + 1
        await self.jobs.save(job)

    def remote_due(self, job: FinalizationJob) -> bool:
        """Whether the remote store lacks this document or its newest version."""
        return self.remem is not None and job.remote_version < job.version

    async def send_remote(self, job: FinalizationJob) -> bool:
        """The document in the remote store, once. Returns whether it was due. Raises StoreError."""
        if self.remem is None or job.summary is None or not self.remote_due(job):
            return False
        new, version = self.document(job.session, job.summary), job.version
        if job.remote_version == 0 and job.remote_sent:
            # The answer to an earlier attempt was lost. Its document may not be indexed yet, or still be on its way
            # from a node that ran this job before. So it counts as missing only after two searches.
            found = await self.remem.find_by_session(job.session.id, timeout=REMOTE_TIMEOUT)
            if found is None and not job.remote_checked:
                job.remote_checked = True
                raise StoreUnavailable("remem may not have indexed the document yet", retry_after=REMOTE_TIMEOUT)
            if found is not None:  # an empty id is a document too
                job.remote_id, job.remote_version = found, 1
                await self.jobs.save(job)
                if not self.remote_due(job):
                    return True
        if job.remote_version == 0:
            was_sent = job.remote_sent
            job.remote_sent, job.remote_checked = True, False
            await self.jobs.save(job)
            try:
                job.remote_id = await self.remem.store(new, timeout=REMOTE_TIMEOUT)
            except StoreUnavailable as error:
                job.remote_sent = was_sent or error.answer_lost
                await self.jobs.save(job)
                raise
        else:
            await self.jobs.save(job)  # raises if another node runs the job by now
            job.remote_id = await self.remem.replace(job.remote_id, new, timeout=REMOTE_TIMEOUT)
        job.remote_version = version
        await self.jobs.save(job)
        return True

    async def _summarize(self, session: VoiceSession, write: Callable[..., Awaitable[CallSummary]]) -> CallSummary:
        """
        `recited` is what the agent was given of the caller, or may have looked up: repeating it teaches nothing new.
        With the topics of earlier calls, this call's topics get the same names. What more trusted calls taught stays
        out: it must not get into the summary of this one.
        """
        known = await self.memory.facts.known(session.agent, session.caller, 1000)
        facts = [fact.text for fact in known if fact.session_id != session.id and fact.trust <= session.trust]
        recited = list(filter(None, [session.receipt.get("block", ""), *facts]))
        topics = await self.memory.topics.topics(session.agent, session.caller)
        topics = [topic for topic in topics if topic.trust <= session.trust]
        known_topics = [KnownTopic(topic.title, topic.status, topic.open_items) for topic in topics]
        context = SummaryContext(session.agent, recited, known_topics, facts, self._agent(session).fields)
        summary = await write(spoken_lines(session.turns), context)
        if session.voicemail is not Voicemail.LEFT:
            return summary
        said = next((turn.text for turn in reversed(session.turns)), "")
        rest = summary.context if summary.written_by != EXTRACTIVE else ""
        return replace(summary, context=f"A message was left on the voicemail: {said} {rest}".rstrip())

    def document(self, session: VoiceSession, summary: CallSummary) -> NewDocument:
        return call_document(session, summary, self._agent(session).timezone)

    def _agent(self, session: VoiceSession) -> Agent:
        return self.find_agent(session.agent) or _REMOVED_AGENT
