"""
The steps of a call's ending: archive, summary, document here, document there, a better summary later.

Each looks at the ending, does its part if it is not done, and has the ending saved. Repeating a step does no harm.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, tzinfo
from typing import Final

from gateway.errors import StoreUnavailable
from gateway.finalization.archive import Archive
from gateway.finalization.document import archive_text, call_document, speakers, spoken_lines
from gateway.finalization.job_table import FinalizationJob, JobStore
from gateway.finalization.summary.call_summary import CallSummary
from gateway.finalization.summary.summarizer import Summarizer
from gateway.finalization.summary.topics import KnownTopic
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.memory.documents import DocumentStore, NewDocument
from gateway.memory.facts import FactStore
from gateway.memory.identity import LONG_SILENCE
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.remem_client import RememClient
from gateway.memory.state import CallerStateStore, listed
from gateway.metrics import DAYS_BETWEEN_CALLS, RECALL_USED, REPEAT_CALLERS, STATE_KEYS
from gateway.session import VoiceSession
from gateway.text.plain_text import SpokenLine

EXTRACTIVE: Final = "extractive"
REMOTE_TIMEOUT: Final = 10.0
_BEFORE: Final = 20  # calls to look at for the last one before; some may have begun later
_KNOWN: Final = 1000
_DAY: Final = 24 * 3600.0


@dataclass(frozen=True)
class FinalizationSteps:
    """The tools of an ending, and what is done with them."""

    store: DocumentStore
    jobs: JobStore
    remem: RememClient | None
    writer: Summarizer
    archive: Archive
    zones: Mapping[str, tzinfo | None]
    """Each agent's time zone, for the wall clock in titles."""
    book: CallsTable | None = None
    facts: FactStore | None = None
    pins: PinnedTopicStore | None = None
    state: CallerStateStore | None = None
    state_keys: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """What each agent's functions may keep of a caller."""
    analysed: frozenset[str] = frozenset()
    """Agents whose repeat callers are counted."""
    silences: Mapping[str, float] = field(default_factory=dict)
    """After how long a silence each agent's callers may be somebody else."""
    is_forgotten: Callable[[VoiceSession], Awaitable[bool]] | None = None
    """Whether a call's caller was forgotten since it began."""

    async def is_void(self, job: FinalizationJob) -> bool:
        """
        Whether the call was taken back meanwhile: it is to leave nothing.

        While that can't be told, the steps that need the store wait by themselves, and the others need not wait with
        them: a transcript that should not be there is swept when it can.
        """
        try:
            if self.facts is not None and await self.facts.is_reverted(job.session.id):
                return True
            return self.is_forgotten is not None and await self.is_forgotten(job.session)
        except StoreUnavailable:
            return False

    async def finish(self, job: FinalizationJob) -> None:
        """Nothing is left to do. What was said stays in the archive alone, for as long as that is kept."""
        if await self.is_void(job):  # a call that was taken over is known for a day: not what was said in it
            job.session = replace(job.session, turns=[])
        await self.jobs.finish(job)

    async def rest(self, job: FinalizationJob) -> None:
        """A step can't be done until a key is corrected, say, and somebody has it tried again."""
        await (self.finish if await self.is_void(job) else self.jobs.rest)(job)

    async def keep_archive(self, job: FinalizationJob) -> None:
        """The raw text, as a file. OSError when the disk does not take it."""
        if not job.archived:
            written = await self.archive.write(job.session.uuid, archive_text(await _lines(job)))
            job.archived, job.outdone = written, not written
            await self.jobs.save(job)

    async def keep_state(self, job: FinalizationJob) -> None:
        """What the agent's functions wanted kept. Repeated it changes nothing."""
        session = job.session
        values = listed(session.state, self.state_keys.get(session.agent, frozenset()))
        if self.state is not None and values:
            now = session.ended_at or session.started_at
            await self.state.save(session.agent, session.caller, values, session_id=session.id, now=now)

    async def write_document(self, job: FinalizationJob) -> None:
        """Summary and document in our own store. By a language model, or by rules when none answers in time."""
        if job.summary is None:
            lines, topics = await _lines(job), await self._topics(job)
            job.summary = await self.writer.write(lines, recited=await self._recited(job), topics=topics)
            if await self.is_void(job):  # that took a while
                return
            await self.jobs.save(job)
        if not job.document_id:
            new = self._document(job, job.summary)
            document = await self.store.create(new)
            if job.version and document.content != new.content:  # of when less was known
                document = await self.store.replace(document.id, new.content, title=new.title)
            job.document_id, job.version = document.id, job.version + 1
            await self.jobs.save(job)

    async def keep_facts(self, job: FinalizationJob) -> None:
        """What the call taught of its caller. Repeated it changes nothing; a better summary's facts replace them."""
        if self.facts is not None and job.summary is not None:
            now = job.session.ended_at or job.session.started_at
            silence = self.silences.get(job.session.agent, LONG_SILENCE)
            who = speakers(job.session.turns, silence=silence)
            await self.facts.learn(job.session, job.summary.caller_facts, now, speakers=who)

    async def keep_topics(self, job: FinalizationJob) -> None:
        """What the call said of topics that run on. Repeated it changes nothing; a better summary's replace them."""
        if self.pins is not None and job.summary is not None:
            now = job.session.ended_at or job.session.started_at
            await self.pins.note(job.session, job.summary.running_topics, now)

    async def note_call(self, job: FinalizationJob) -> None:
        """A line for the call in the book of calls."""
        if self.book is not None and job.summary is not None:
            session, written_by = job.session, job.summary.written_by
            before = await self.book.newest(caller=session.caller, agent=session.agent, limit=_BEFORE)
            await self.book.write(session, document_id=job.document_id, summary_by=written_by)
            if session.agent in self.analysed:
                self._analyse(session, before)

    def _analyse(self, session: VoiceSession, before: Sequence[FinishedCall]) -> None:
        """Count a call, once: a repeat finds it among those before."""
        if any(call.session_id == session.id for call in before):
            return
        earlier = [datetime.fromisoformat(call.started_at) for call in before]
        last = max((at for at in earlier if at < session.started_at), default=None)
        REPEAT_CALLERS.labels(session.agent, "first-time" if last is None else "returning").inc()
        if last is not None:
            DAYS_BETWEEN_CALLS.labels(session.agent).observe((session.started_at - last).total_seconds() / _DAY)
        for key in listed(session.state, self.state_keys.get(session.agent, frozenset())):
            STATE_KEYS.labels(session.agent, key).inc()
        if session.receipt.get("items"):
            RECALL_USED.labels(session.agent).inc()

    def upgrade_due(self, job: FinalizationJob) -> bool:
        """Whether the summary was written by rules although there is a language model to be had."""
        by_rules = job.summary is not None and job.summary.written_by == EXTRACTIVE
        return self.writer.has_llm and by_rules and not job.outdone

    async def upgrade(self, job: FinalizationJob) -> None:
        """Have a language model write the summary after all: the same document, replaced. LlmError if it can't."""
        if not self.upgrade_due(job):
            return
        lines, topics = await _lines(job), await self._topics(job)
        summary = await self.writer.ask(lines, recited=await self._recited(job), topics=topics)
        new = self._document(job, summary)
        await self.jobs.save(job)  # whoever has been relieved of it meanwhile replaces nothing
        await self.store.replace(job.document_id, new.content, title=new.title)
        job.summary, job.version = summary, job.version + 1
        await self.jobs.save(job)

    def remote_due(self, job: FinalizationJob) -> bool:
        """Whether the remote store lacks this document, or its newest version."""
        return self.remem is not None and job.remote_version < job.version

    async def send_remote(self, job: FinalizationJob) -> None:
        """The document in the remote store, once. StoreUnavailable or StoreRefused if it can't be."""
        if self.remem is None or job.summary is None or not self.remote_due(job):
            return
        new, version = self._document(job, job.summary, with_facts=True), job.version
        if job.remote_version == 0 and (found := await self._find_remote(self.remem, job)) is not None:
            job.remote_id, job.remote_version = found, 1
            await self.jobs.save(job)
            if not self.remote_due(job):
                return
        if job.remote_version == 0:
            job.remote_id = await self._create_remote(self.remem, job, new)
        else:
            await self.jobs.save(job)  # whoever has been relieved of it meanwhile replaces nothing
            job.remote_id = await self.remem.replace(job.remote_id, new, timeout=REMOTE_TIMEOUT)
        job.remote_version = version
        await self.jobs.save(job)

    async def _find_remote(self, remem: RememClient, job: FinalizationJob) -> str | None:
        """
        The document of an earlier try whose answer was lost; an empty id is a document too.

        It may not be in that store's index yet, or on its way from somebody who had this ending before. So only when it
        was looked for twice is it not there.
        """
        if not job.remote_sent:
            return None
        found = await remem.find_by_session(job.session.id, timeout=REMOTE_TIMEOUT)
        if found is None and not job.looked_for:
            job.looked_for = True
            raise StoreUnavailable("remem does not know yet whether it has the document", retry_after=REMOTE_TIMEOUT)
        return found

    async def _create_remote(self, remem: RememClient, job: FinalizationJob, new: NewDocument) -> str:
        was_sent = job.remote_sent
        job.remote_sent, job.looked_for = True, False
        await self.jobs.save(job)
        try:
            return await remem.store(new, timeout=REMOTE_TIMEOUT)
        except StoreUnavailable as error:
            job.remote_sent = was_sent or error.answer_lost
            await self.jobs.save(job)
            raise

    async def _recited(self, job: FinalizationJob) -> list[str]:
        """What the agent was told of the caller, or may have looked up: saying it again teaches nothing."""
        session = job.session
        known = await self.facts.known(session.agent, session.caller, _KNOWN) if self.facts is not None else []
        told = [session.receipt.get("block", ""), *(fact.text for fact in known if fact.session_id != session.id)]
        return list(filter(None, told))

    async def _topics(self, job: FinalizationJob) -> list[KnownTopic]:
        """What earlier calls were about, so that this one's topics get the same names."""
        if self.pins is None:
            return []
        known = await self.pins.topics(job.session.agent, job.session.caller)
        return [KnownTopic(topic.title, topic.status, topic.open_items) for topic in known]

    def _document(self, job: FinalizationJob, summary: CallSummary, *, with_facts: bool = False) -> NewDocument:
        return call_document(job.session, summary, self.zones.get(job.session.agent), with_facts=with_facts)


async def _lines(job: FinalizationJob) -> list[SpokenLine]:
    """Redacting a long call takes a few hundredths of a second: not on the loop that carries audio."""
    return await asyncio.to_thread(spoken_lines, job.session.turns)
