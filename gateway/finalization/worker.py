"""
After the hangup: archive, summary, document. In the background, never in the way of another call.

One call leaves one document, whatever fails in between: every step is recorded, safe to repeat, and tried again for
as long as it takes. The gateway's own store comes first; a remote one follows when it can.

Where several nodes share a stream, an ending is handed to whoever reads it first, and kept here until it is done.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from gateway.calls.recorder import CallRecorder
from gateway.errors import (
    DocumentNotFound,
    GatewayError,
    LlmRefused,
    LlmUnavailable,
    SharedStoreUnavailable,
    StoreRefused,
    StoreUnavailable,
    TakenOver,
)
from gateway.finalization.document import without_secrets
from gateway.finalization.job_table import HANDED_OVER, FinalizationJob, JobTable
from gateway.finalization.steps import FinalizationSteps
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.call_log import CallLog
from gateway.history.live_events import CallEvents, EventPublisher
from gateway.logs import CallLogger
from gateway.metrics import ENDING_SECONDS, WATCHDOG
from gateway.session import EndReason, VoiceSession

if TYPE_CHECKING:  # Redis' client takes a while to import, and one node needs none
    from gateway.finalization.redis_queue import RedisJobQueue

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Between tries, in seconds; the last one repeats."""

SWEEP_SECONDS: Final = 15.0
"""How often endings are looked for that somebody wants tried again."""
FOLLOW_SECONDS: Final = 5.0
"""How often it is looked what other nodes have made of the endings they were handed."""
BEGUN_SECONDS: Final = 10.0
"""How long the node that had a call last gets to begin its ending, before another one does that knows less."""
BEGUN_LOOKS: Final = 10
MOST_AT_ONCE: Final = 32
"""Endings that one node takes from the stream at a time."""
UPGRADE_AFTER: Final = 5.0
"""Until a language model that did not answer is asked again; then the pauses above."""

STEPS: Final = {
    "keep_archive": "archive",
    "keep_state": "state",
    "write_document": "document",
    "send_remote": "remote document",
    "upgrade": "better summary",
    "note_call": "book of calls",
    "keep_facts": "facts",
    "keep_topics": "topics",
}
"""What a reader of the feed is told of, and by which name."""

_log = logging.getLogger(__name__)


class FinalizationWorker:
    """
    Sees each ended call through to its document. One task a call.

    `endings` is this node's own table; `steps` write into it or, where there is a `stream`, into that. `alive` tells
    whether a worker that shares the table lives. `clear_away` sees to what was written down during a call and is not to
    stay: of a caller who was forgotten meanwhile, or who took back some of it.
    """

    def __init__(
        self,
        steps: FinalizationSteps,
        jobs: JobTable,
        *,
        log: CallLog | None = None,
        enabled: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        stream: "RedisJobQueue | None" = None,
        node: str = "",
        alive: Callable[[str], Awaitable[bool]] | None = None,
        call_events: EventPublisher | None = None,
        clear_away: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._steps = steps
        self._jobs = jobs
        self._log = log
        self._enabled = enabled
        self._sleep = sleep
        self._stream = stream
        self._node = node
        self._alive = alive
        self._call_events = call_events or EventPublisher()
        self._clear_away = clear_away
        self._recorders: dict[str, CallRecorder] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, datetime] = {}
        self.resting = 0
        """Endings that wait until somebody has them tried again, as of the last look."""
        self._undocumented: set[asyncio.Future[None]] = set()

    def submit(
        self,
        session: VoiceSession,
        recorder: CallRecorder | None = None,
        *,
        begun: Callable[[], None] = lambda: None,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """
        A call is over. Nothing is kept of a nameless caller, or of a call without a word.

        `first` is done before the ending begins, and may add to the session. `begun` is called when the ending needs
        nobody else's memory of the call any more.
        """
        if recorder is not None:
            recorder.note("ended", session.as_json())
            self._recorders[session.id] = recorder
        if self._enabled and session.caller and any(turn.text.strip() for turn in session.turns):
            # One whose gateway died may have been ended by another node since, and Redis may have forgotten that.
            unsure = self._stream is not None and session.end_reason is EndReason.GATEWAY_DIED
            self._start(FinalizationJob(session, remote_sent=unsure), begun, first)
        elif first is not None:
            self._keep(self._leave_nothing(session, begun, first), f"ending {session.uuid}")
        else:
            self._forget(session, begun)

    async def _leave_nothing(
        self, session: VoiceSession, begun: Callable[[], None], first: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await first()
        finally:
            self._forget(session, begun)

    def _forget(self, session: VoiceSession, begun: Callable[[], None]) -> None:
        if self._log is not None:
            self._log.release(session.id)
        self._close_recorder(session.id)
        begun()
        if session.taken_back:
            self._keep(self._cleared_away(), f"clearing {session.uuid}")

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may tell of the same call, each with its own memory of it."""
        return self._stream is not None

    def contribute(self, session: VoiceSession, over: Callable[[], Awaitable[None]]) -> None:
        """
        What this node knows of a call that went on at another one, which may not know all of it.

        When the call is `over`, its ending is to have every word. Until then the journal keeps them.
        """
        self._keep(self._contribute(session, over), f"contribution {session.uuid}")

    async def _contribute(self, session: VoiceSession, over: Callable[[], Awaitable[None]]) -> None:
        await over()
        for _ in range(BEGUN_LOOKS):
            if await self._is_begun(session):
                break
            await asyncio.sleep(BEGUN_SECONDS / BEGUN_LOOKS)
        self.submit(session)

    async def _is_begun(self, session: VoiceSession) -> bool:
        with contextlib.suppress(SharedStoreUnavailable):
            return self._stream is None or await self._stream.whereabouts(FinalizationJob(session)) != "lost"
        return False

    async def resume(self) -> frozenset[str]:
        """
        Take up what an earlier process left unfinished; what it could not do may be possible now.

        Returns the ids of all calls whose ending had been begun: their journals have nothing to add.
        """
        await self._jobs.try_again()
        return await self._take_up()

    async def sweep(self) -> None:
        """Until cancelled, take up endings that somebody wants tried again."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._take_up()
            except StoreUnavailable as error:
                _log.warning("endings could not be looked for", extra={"reason": str(error)})

    async def work_off(self) -> None:
        """Until cancelled, carry out what any node has put on the stream."""
        while self._stream is not None:
            try:
                await self._take_from(self._stream)
            except SharedStoreUnavailable:
                await asyncio.sleep(FOLLOW_SECONDS / 5)

    async def follow(self) -> None:
        """Until cancelled, look what has become of the endings that were handed over."""
        while self._stream is not None:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                for job in await self._jobs.open_ones():
                    await self._follow_up(job, self._stream)
            except (SharedStoreUnavailable, StoreUnavailable):
                continue

    async def _take_up(self) -> frozenset[str]:
        unfinished = await self._jobs.open_ones()
        self.resting = sum(bool(job.problem) for job in unfinished)
        for job in unfinished:
            id_ = job.session.id
            if id_ not in self._running and not job.problem and await self._falls_to_us(job):
                # It may have been handed over, done, and forgotten by Redis: the store is asked first.
                job.remote_sent |= self._stream is not None
                self._start(job)
        return frozenset(job.session.id for job in unfinished)

    async def _falls_to_us(self, job: FinalizationJob) -> bool:
        """Whether this node sees to it: nobody else's, or of one that is dead. Handed over: somebody does."""
        if self._stream is not None and job.node == HANDED_OVER:
            return False
        if job.node == self._node:
            return True
        try:
            dead = self._alive is None or not job.node or not await self._alive(job.node)
        except SharedStoreUnavailable:  # nobody can tell; there is a next time
            return False
        return dead and await self._jobs.adopt(job, self._node)

    async def _take_from(self, stream: "RedisJobQueue") -> None:
        if len(self._running) >= MOST_AT_ONCE:
            await asyncio.sleep(0.1)
            return
        for job in await stream.next():
            self._run(job, self._carry_out(job, self._document_due()))

    async def _follow_up(self, job: FinalizationJob, stream: "RedisJobQueue") -> None:
        if job.node != HANDED_OVER or job.problem:
            return
        match await stream.whereabouts(job):
            case "done":
                await self._jobs.finish(job)
                self._close_recorder(job.session.id)
                await self._clear_if_taken_back(job)
            case "resting":
                job.node = HANDED_OVER
                await self._jobs.save(job)
            case "lost":  # by a Redis that was restarted without its memory
                self._work(job).log.warning("an ending was lost by shared storage, and is handed over again")
                job.remote_sent = True  # for all we know; the store is asked first
                await stream.hand_over(job)

    async def close(self, *, seconds: float) -> None:
        """Give calls without a document a moment to get one; what is left is taken up at the next start."""
        if self._undocumented:
            await asyncio.wait(self._undocumented, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def unfinished(self) -> int:
        return len(self._tasks)

    @property
    def oldest_seconds(self) -> float:
        """How long ago the call ended that waits longest for its ending."""
        ended = min(self._running.values(), default=None)
        return max(0.0, (datetime.now(UTC) - ended).total_seconds()) if ended is not None else 0.0

    def _start(
        self,
        job: FinalizationJob,
        begun: Callable[[], None] = lambda: None,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._run(job, self._see_through(job, self._document_due(), begun, first))

    def _document_due(self) -> asyncio.Future[None]:
        documented: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._undocumented.add(documented)
        documented.add_done_callback(self._undocumented.discard)
        return documented

    def _run(self, job: FinalizationJob, work: Coroutine[Any, Any, None]) -> None:
        task = self._keep(work, f"ending {job.session.uuid}")
        self._running[job.session.id] = job.session.ended_at or job.session.started_at
        task.add_done_callback(lambda _: self._running.pop(job.session.id, None))

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _see_through(
        self,
        job: FinalizationJob,
        documented: asyncio.Future[None],
        begun: Callable[[], None],
        first: Callable[[], Awaitable[None]] | None,
    ) -> None:
        work = self._work(job)
        try:
            if await self._steps.is_void(job):
                return await self._erase(job.session.id, begun)
            if first is not None:
                await first()
            async with asyncio.TaskGroup() as group:
                # Not on the loop that carries audio: of a long call it takes a few hundredths of a second.
                job.session.turns = await asyncio.to_thread(without_secrets, job.session.turns)
                if self._log is not None:
                    self._log.redact(job.session.id)
                # Before anything else is done, it is written down that it has to be.
                await work.until_done(self._jobs.begin)
                if self._stream is not None:  # until then others may have to end the call for us
                    await work.until_done(self._hand_over)
                leaving = group.create_task(self._leave_journal(job, begun))
                if self._stream is None:
                    await self._carry_out(job, documented, leaving)
        except* TakenOver:
            work.log.info("another worker sees to this ending")
        except* Exception:
            # The edge of an ending: it stays open in the store, and the next start takes it up.
            work.log.exception("ending failed")
        finally:
            documented.cancel()

    async def _carry_out(
        self, job: FinalizationJob, documented: asyncio.Future[None], leaving: asyncio.Task[None] | None = None
    ) -> None:
        """All steps, and a record of each. It is not done before the journal knows: a restart would begin it anew."""
        work = self._work(job)
        try:
            async with asyncio.TaskGroup() as group:
                # A full disk must not cost the document: the archive is tried beside it.
                group.create_task(work.until_done(self._steps.keep_archive))
                group.create_task(work.until_done(self._steps.keep_state))
                await work.write_document()
                self._record_summary(job)
                documented.set_result(None)
                group.create_task(work.publish())
                group.create_task(work.until_done(self._steps.note_call))
                group.create_task(work.until_done(self._steps.keep_facts))
                group.create_task(work.until_done(self._steps.keep_topics))
            if leaving is not None:
                await leaving
            await work.until_done(self._steps.rest if job.problem else self._steps.finish, is_last=True)
            work.call_events.publish("finished", problem=job.problem)
            await self._clear_if_taken_back(job)
        except* TakenOver:
            work.log.info("another node carries out this ending")
        except* Exception:
            work.log.exception("ending failed")
        finally:
            documented.cancel()

    async def _clear_if_taken_back(self, job: FinalizationJob) -> None:
        """A caller who was forgotten in mid-call, or took something back, went on talking."""
        if job.session.taken_back or await self._steps.is_void(job):
            await self._cleared_away()

    def _work(self, job: FinalizationJob) -> "_RunningJob":
        return _RunningJob(self._steps, job, self._sleep, self._call_events.of(job.session))

    async def _hand_over(self, job: FinalizationJob) -> None:
        assert self._stream is not None
        await self._stream.hand_over(job)
        job.node = HANDED_OVER
        await self._jobs.save(job)

    async def _leave_journal(self, job: FinalizationJob, begun: Callable[[], None]) -> None:
        """The ending has everything now: nobody else need know what was said."""
        if self._log is not None:
            with contextlib.suppress(StoreUnavailable):  # then a power cut, and only that, could still take it back
                await self._jobs.make_durable()
            self._log.release(job.session.id)
            await self._log.flushed()
        begun()

    async def _erase(self, session_id: str, begun: Callable[[], None]) -> None:
        """The caller was forgotten while the call went on."""
        if recorder := self._recorders.pop(session_id, None):
            recorder.discard()
        if self._log is not None:
            self._log.release(session_id)
        begun()
        await self._cleared_away()

    async def _cleared_away(self) -> None:
        if self._clear_away is None:
            return
        if self._log is not None:
            await self._log.flushed()
        try:
            await self._clear_away()
        except StoreUnavailable as error:
            _log.warning("forgotten calls could not be looked for", extra={"reason": str(error)})

    def _record_summary(self, job: FinalizationJob) -> None:
        recorder = self._recorders.get(job.session.id)
        if recorder is not None and job.summary is not None:
            recorder.note("summary", asdict(job.summary))
        self._close_recorder(job.session.id)

    def _close_recorder(self, session_id: str) -> None:
        if recorder := self._recorders.pop(session_id, None):
            recorder.close()


class _RunningJob:
    """The ending of one call: its steps, each until it succeeds or can't."""

    def __init__(
        self,
        steps: FinalizationSteps,
        job: FinalizationJob,
        sleep: Callable[[float], Awaitable[None]],
        call_events: CallEvents,
    ) -> None:
        self.log = CallLogger(logging.getLogger(__name__), {"call": job.session.uuid[:8]})
        self.call_events = call_events
        self._steps = steps
        self._job = job
        self._sleep = sleep

    async def write_document(self) -> None:
        new = not self._job.document_id
        await self.until_done(self._steps.write_document)
        if new and self._job.summary is not None:
            ended = self._job.session.ended_at or datetime.now(UTC)
            ENDING_SECONDS.observe(max(0.0, (datetime.now(UTC) - ended).total_seconds()))
            self.log.info("call remembered", extra={"summary_by": self._job.summary.written_by})
            self._tell_summary(self._job.summary)

    async def publish(self) -> None:
        """The document to the remote store, and a better summary to both when a language model has written one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.until_done(self._steps.send_remote))
            if self._steps.upgrade_due(self._job):
                await self._sleep(UPGRADE_AFTER)  # it failed a moment ago
                await self.until_done(self._steps.upgrade)
                self._tell_summary(self._job.summary)
                await self.until_done(self._steps.keep_facts)
                await self.until_done(self._steps.keep_topics)
        if self._job.remote_version:  # it has the first version; a step that is done does nothing
            await self.until_done(self._steps.send_remote)

    def _tell_summary(self, summary: CallSummary | None) -> None:
        if summary is not None:
            self.call_events.publish("summary", by=summary.written_by, document=self._job.document_id)

    async def until_done(self, step: Callable[[FinalizationJob], Awaitable[None]], *, is_last: bool = False) -> None:
        """
        Do a step, again after a passing fault; but only the last one for a call that was taken back.

        The log hears of a fault once, and of a new kind when it changes.
        """
        said, tries = "", 0
        while True:
            try:
                if not is_last and await self._steps.is_void(self._job):
                    return
                await step(self._job)
                return self._tell(step, "done")
            except DocumentNotFound:
                return self.log.info("document was deleted meanwhile", extra={"step": step.__name__})
            except (StoreRefused, LlmRefused) as error:
                if isinstance(error, StoreRefused):
                    self._job.problem = f"{step.__name__}: {error}"
                self._tell(step, "refused", str(error))
                return self.log.error("ending step refused", extra={"step": step.__name__, "reason": str(error)})
            except (StoreUnavailable, LlmUnavailable, SharedStoreUnavailable, OSError) as error:
                if said != type(error).__name__:
                    said = type(error).__name__
                    WATCHDOG.labels("ending step waits").inc()
                    self.log.warning("ending step waits", extra={"step": step.__name__, "reason": _reason(error)})
                    self._tell(step, "waits", _reason(error))
                await self._sleep(_pause(tries, getattr(error, "retry_after", None)))
                tries += 1

    def _tell(self, step: Callable[[FinalizationJob], Awaitable[None]], state: str, reason: str = "") -> None:
        if name := STEPS.get(step.__name__):
            self.call_events.publish("step", step=name, state=state, **({"reason": reason} if reason else {}))


def _pause(tries: int, retry_after: float | None) -> float:
    """Back off, a little random so that many endings do not knock together; a server's own wish comes first."""
    pause = PAUSES[min(tries, len(PAUSES) - 1)] * random.uniform(0.8, 1.2)
    return max(pause, min(retry_after or 0.0, PAUSES[-1]))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, GatewayError) else f"{type(error).__name__}: {error}"
