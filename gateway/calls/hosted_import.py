"""
Imports past conversations of agents that another platform hosts, as if each had just been reported.

A call is done when it is in the list of calls, which is written last. Every step before may be repeated: an import that
was killed, or runs beside a gateway that gets the same report, leaves one document. Nothing is kept of one that is
under way but what the steps have stored.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.calls.hosted_calls import HostedCalls
from gateway.errors import LlmRefused, LlmUnavailable, RemoteProtocolError, StoreUnavailable
from gateway.finalization.document import redact_turns
from gateway.finalization.job import FinalizationJob
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import FinalizationSteps, Step
from gateway.memory.identity import only_person
from gateway.memory.recall import Recall, most_trusted
from gateway.memory.remem_client import NoRemem
from gateway.session import TrustLevel, VoiceSession
from gateway.telephony.elevenlabs import PLATFORM, ElevenLabsApi, ListedConversation

AT_ONCE: Final = 4
"""Calls that are summarized at a time. Providers of language models limit requests per minute."""
_MOST_NAMES: Final = 100
_PAUSES: Final = (1.0, 5.0, 15.0, 30.0, 60.0)
"""In seconds, between attempts of a step."""


class NoJobStore:
    """For calls that are imported again if they are not done."""

    async def save(self, job: FinalizationJob) -> None: ...

    async def finish(self, job: FinalizationJob) -> None: ...

    async def park(self, job: FinalizationJob) -> None: ...


class ImportFinalizer:
    """
    Runs the steps of imported calls, those of one caller one after the other.

    `steps` have a NoJobStore. `jobs`: those of the gateway, which it finishes itself. `clear_away` deletes what was
    written of a call whose caller was erased in between.
    """

    def __init__(
        self,
        steps: FinalizationSteps,
        jobs: JobTable,
        clear_away: Callable[[str], Awaitable[object]],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._steps = steps
        self._jobs = jobs
        self._clear_away = clear_away
        self._sleep = sleep
        self._callers: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.submitted: dict[str, VoiceSession] = {}

    async def has(self, session_id: str) -> bool:
        """Also a call that was archived for its age."""
        if await self._jobs.of(session_id) is not None or await self._steps.memory.calls.by_ids([session_id]):
            return True
        query = "SELECT 1 FROM archived_calls WHERE session_id = ?"
        return bool(await self._steps.memory.documents.fetch(query, session_id))

    def submit(self, session: VoiceSession, *, on_started: Callable[[], None]) -> None:
        if any(turn.text.strip() for turn in session.turns):
            self.submitted[session.id] = session
        on_started()

    async def finalize(self, session: VoiceSession) -> bool:
        """Returns whether the call is remembered: not if it was reverted or its caller erased. Raises StoreError."""
        async with self._callers[session.caller]:
            steps, job = self._steps, FinalizationJob(session)
            if await steps.is_cancelled(job):
                return False
            session.turns = await asyncio.to_thread(redact_turns, session.turns)
            if session.trust >= TrustLevel.NAME:
                session.known_name = await self._known_name(session)
            # Left by an import that was killed: it may have sent its copy to the remote store.
            job.remote_sent = bool(await steps.memory.documents.by_source_ids([session.id]))
            for step in (
                steps.write_archive,
                self._summarize,
                steps.write_document,
                steps.send_remote,
                steps.learn_facts,
                steps.note_topics,
                steps.list_call,
            ):
                await self._until_done(step, job)
                if await steps.is_cancelled(job):
                    await self._clear_away(session.id)
                    return False
            return True

    async def _known_name(self, session: VoiceSession) -> str:
        """The name of the only person on the number, as calls that are stored already gave it."""
        memory = self._steps.memory
        facts = await memory.facts.known(session.agent, session.caller, _MOST_NAMES)
        calls = await Recall(memory.documents, NoRemem(), _MOST_NAMES).own_calls(session.agent, session.caller)
        names = [(fact.trust, fact.person) for fact in facts] + [(call.trust, call.caller_name) for call in calls]
        return only_person(most_trusted(names))

    async def _summarize(self, job: FinalizationJob) -> None:
        """By the language model. No caller waits, so it is asked again; rules write the summary if it refuses."""
        if job.session.trust:
            try:
                job.summary = await self._steps.summarize(job.session)
            except LlmRefused:
                return

    async def _until_done(self, step: Step, job: FinalizationJob) -> None:
        for pause in (*_PAUSES, None):
            try:
                await step(job)
                return
            except LlmUnavailable as error:
                if pause is None:
                    return
                await self._sleep(max(pause, error.retry_after or 0.0))
            except StoreUnavailable as error:
                if pause is None:
                    raise
                await self._sleep(max(pause, error.retry_after or 0.0))
            except OSError as error:
                raise StoreUnavailable(f"a transcript could not be written ({type(error).__name__})") from None


@dataclass
class ConversationImport:
    """Fetches conversations in their order, and finalizes those that are calls of a known person."""

    api: ElevenLabsApi
    calls: HostedCalls
    finalizer: ImportFinalizer
    on_progress: Callable[[], None]
    counts: Counter[str] = field(default_factory=Counter)
    """imported; skipped: not a call, or of a person without a number or identifier; malformed."""

    async def new(self, listed: Sequence[ListedConversation]) -> list[ListedConversation]:
        """Those that may be calls and were not imported or reported before."""
        return [one for one in listed if one.is_call and not await self.finalizer.has(f"voice-session:{one.id}")]

    async def run(self, listed: Sequence[ListedConversation]) -> None:
        """Raises CarrierRefused, StoreError. What is done then stays done."""
        room = asyncio.Semaphore(AT_ONCE)

        async def finalize(session: VoiceSession) -> None:
            try:
                self.counts["imported" if await self.finalizer.finalize(session) else "skipped"] += 1
            finally:
                room.release()
                self.on_progress()

        try:
            async with asyncio.TaskGroup() as group:
                for one in listed:
                    session = await self._fetch(one)
                    if session is None:
                        self.on_progress()
                        continue
                    await room.acquire()
                    group.create_task(finalize(session))
        except* Exception as failed:
            raise failed.exceptions[0] from None

    async def _fetch(self, one: ListedConversation) -> VoiceSession | None:
        try:
            conversation = await self.api.conversation(one.id)
        except RemoteProtocolError:
            self.counts["malformed"] += 1
            return None
        if not await self.calls.finish(PLATFORM, conversation):
            raise StoreUnavailable("the store can't be reached; run the command again to continue")
        session = self.finalizer.submitted.pop(f"voice-session:{conversation.id}", None)
        self.counts["skipped"] += session is None
        return session
