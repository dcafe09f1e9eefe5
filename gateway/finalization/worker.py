"""
Runs finalization jobs in the background: archive, summary, document, facts. No live call waits for them.

One call leaves one document, whatever fails in between: every step is recorded, safe to repeat, and retried for as long
as it takes. The gateway's own store comes first; the remote one follows when it is reachable.

Where nodes share a queue, a job is handed to the node that takes it first, and kept here until it is done.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

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
from gateway.finalization.document import redact_turns
from gateway.finalization.job import FinalizationJob, JobQueue, JobState, QueueStatus
from gateway.finalization.job_table import HANDED_OVER, JobTable
from gateway.finalization.steps import FinalizationSteps, Step
from gateway.finalization.webhooks import CALL_ENDED
from gateway.history.live_events import CallEvents, EventPublisher
from gateway.logs import CallLogger
from gateway.metrics import ENDING_SECONDS, WATCHDOG
from gateway.session import EndReason, VoiceSession

MAX_RUNNING: Final = 32
"""Jobs that one node takes from the queue at a time."""
START_CHECKS: Final = 10

STEPS: Final = {
    "write_archive": "archive",
    "save_state": "state",
    "write_document": "document",
    "send_remote": "remote document",
    "upgrade": "better summary",
    "list_call": "call list",
    "learn_facts": "facts",
    "note_topics": "topics",
    "notify": "webhook",
}
"""The steps that are published as live events, by their names there."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinalizationTimeouts:
    """All in seconds."""

    retries: tuple[float, ...] = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
    """Between attempts of a step; the last one repeats."""
    sweep: float = 15.0
    """How often the table is read for jobs that an operator has queued again."""
    follow: float = 5.0
    """How often jobs in the shared queue are checked."""
    queue_away: float = 1.0
    """Between attempts to reach the shared queue."""
    owner_starts: float = 10.0
    """How long the node that had a call last may take to start its job, before a node that knows less does."""
    webhook_waits: float = 60.0
    """How long the webhook waits for a language model that did not answer at first."""
    upgrade: float = 5.0
    """Before a language model that did not answer is asked again; then `retries`."""


DEFAULT_TIMEOUTS: Final = FinalizationTimeouts()


def do_nothing() -> None: ...


class FinalizationWorker:
    """
    Runs one task per job. `jobs` is this node's table; `steps` save to it or, where nodes share one, to the `queue`.

    `clear_away` deletes what was written during a call and must not stay: of an erased caller, or of retracted turns.
    """

    def __init__(
        self,
        steps: FinalizationSteps,
        jobs: JobTable,
        queue: JobQueue,
        events: EventPublisher,
        clear_away: Callable[[str], Awaitable[object]],
        *,
        timeouts: FinalizationTimeouts = DEFAULT_TIMEOUTS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._steps = steps
        self._jobs = jobs
        self._queue = queue
        self._events = events
        self._clear_away = clear_away
        self._timeouts = timeouts
        self._sleep = sleep
        self._recorders: dict[str, CallRecorder] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, datetime] = {}
        self._undocumented: set[asyncio.Future[None]] = set()
        self.parked = 0
        """Jobs that have failed and wait for an operator, as of the last check."""

    # The calls

    @property
    def is_shared(self) -> bool:
        """Whether several nodes may finalize the same call, each with its own record of it."""
        return self._queue.is_shared

    async def has(self, session_id: str) -> bool:
        """Whether a call was submitted before, here or on another node. Raises StoreUnavailable."""
        if session_id in self._running or await self._jobs.of(session_id) is not None:
            return True
        if self._queue.is_shared and await self._queue.load(session_id) is not None:
            return True
        return bool(await self._steps.memory.calls.by_ids([session_id]))

    def submit(
        self,
        session: VoiceSession,
        recorder: CallRecorder | None = None,
        *,
        kept: bool = True,
        on_started: Callable[[], None] = do_nothing,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """
        Finalize a call that has ended. Nothing is stored of an anonymous caller, of a call without a word, or unless
        `kept`.

        `first` runs before the job and may add to the session. `on_started` is called when the job needs no other
        record of the call any more.
        """
        if recorder is not None:
            recorder.note("ended", session.as_json())
            self._recorders[session.id] = recorder
        if kept and session.caller and any(turn.text.strip() for turn in session.turns):
            # Another node may have finalized the call of a gateway that died, and Redis may have lost that since.
            unsure = self._queue.is_shared and session.end_reason is EndReason.GATEWAY_DIED
            self._run(FinalizationJob(session, remote_sent=unsure), self._store_and_run, on_started, first)
        elif kept and session.caller and self._steps.webhooks.wants(session.agent, CALL_ENDED):
            self._keep(self._notify(session, on_started), f"notify {session.uuid}")
        elif first is not None:
            self._keep(self._run_first(session, on_started, first), f"finalize {session.uuid}")
        else:
            self._keep_nothing(session, on_started)

    async def _run_first(
        self, session: VoiceSession, on_started: Callable[[], None], first: Callable[[], Awaitable[None]]
    ) -> None:
        try:
            await first()
        finally:
            self._keep_nothing(session, on_started)

    async def _notify(self, session: VoiceSession, on_started: Callable[[], None]) -> None:
        """A call without a word leaves no document; the webhook still reports it."""
        job = FinalizationJob(session)
        with _failures_logged(_logger(job)):
            await self._runner(job).until_done(self._steps.notify)
        self._keep_nothing(session, on_started)

    def _keep_nothing(self, session: VoiceSession, on_started: Callable[[], None]) -> None:
        self._events.log.release(session.id)
        self._close_recorder(session.id)
        on_started()
        if session.taken_back:
            self._keep(self._clear(session.id), f"clear {session.uuid}")

    def contribute(self, session: VoiceSession, over: Callable[[], Awaitable[None]]) -> None:
        """
        Add what this node knows of a call that continued on another node.

        Waits until the call is `over`. Until then the call log keeps the turns.
        """

        async def work() -> None:
            await over()
            for _ in range(START_CHECKS):
                with contextlib.suppress(SharedStoreUnavailable):
                    if await self._queue.status(session.id) is not QueueStatus.LOST:
                        break
                await asyncio.sleep(self._timeouts.owner_starts / START_CHECKS)
            self.submit(session)

        self._keep(work(), f"contribute {session.uuid}")

    # The process

    async def resume(self) -> frozenset[str]:
        """
        Run what an earlier process left unfinished, including failed jobs, which may succeed now.

        Returns the session ids of all jobs: the call log has nothing to add to them.
        """
        await self._jobs.retry_failed()
        return await self._run_stored()

    async def sweep(self) -> None:
        """Until cancelled, run jobs that an operator has queued again."""
        while True:
            await asyncio.sleep(self._timeouts.sweep)
            try:
                await self._run_stored()
            except StoreUnavailable as error:
                _log.warning("finalization jobs could not be read", extra={"reason": str(error)})

    async def consume_queue(self) -> None:
        """Until cancelled, run jobs from the shared queue."""
        while self._queue.is_shared:
            try:
                if len(self._running) >= MAX_RUNNING:
                    await asyncio.sleep(0.1)
                    continue
                for job in await self._queue.next():
                    self._run(job, self._run_steps)
            except SharedStoreUnavailable:
                await asyncio.sleep(self._timeouts.queue_away)

    async def follow_queue(self) -> None:
        """Until cancelled, update this node's table with what became of the jobs it handed over."""
        while self._queue.is_shared:
            await asyncio.sleep(self._timeouts.follow)
            with contextlib.suppress(SharedStoreUnavailable, StoreUnavailable):
                for job in await self._jobs.unfinished():
                    if job.node == HANDED_OVER and job.state is not JobState.FAILED:
                        await self._follow(job)

    async def _follow(self, job: FinalizationJob) -> None:
        match await self._queue.status(job.session.id):
            case QueueStatus.DONE:
                await self._jobs.finish(job)
                self._close_recorder(job.session.id)
                await self._clear_if_retracted(job)
            case QueueStatus.FAILED:
                if failed := await self._queue.load(job.session.id):
                    failed.node = HANDED_OVER
                    await self._jobs.park(failed)
            case QueueStatus.LOST:  # Redis was restarted without its data
                _logger(job).warning("finalization job was lost by Redis and is queued again")
                job.remote_sent = True  # as far as we know; the remote store is searched first
                await self._queue.hand_over(job)

    async def close(self, *, seconds: float) -> None:
        """Wait a moment for calls without a document; the rest is resumed at the next start."""
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
        """How long ago the call of the oldest running job ended."""
        ended = min(self._running.values(), default=None)
        return max(0.0, (datetime.now(UTC) - ended).total_seconds()) if ended is not None else 0.0

    # Jobs

    async def _run_stored(self) -> frozenset[str]:
        jobs = await self._jobs.unfinished()
        self.parked = sum(job.state is JobState.FAILED for job in jobs)
        for job in jobs:
            is_queued_elsewhere = self._queue.is_shared and job.node == HANDED_OVER
            if job.session.id in self._running or job.state is JobState.FAILED or is_queued_elsewhere:
                continue
            if await self._jobs.claim(job):
                # It may have been handed over, done, and lost by Redis: the remote store is searched first.
                job.remote_sent |= self._queue.is_shared
                self._run(job, self._store_and_run)
        return frozenset(job.session.id for job in jobs)

    def _run(self, job: FinalizationJob, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Start a task for the job. `close` waits for it until the document is written."""
        documented: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._undocumented.add(documented)
        documented.add_done_callback(self._undocumented.discard)
        self._running[job.session.id] = job.session.ended_at or job.session.started_at

        def ended(_: asyncio.Task[None]) -> None:
            documented.cancel()
            self._running.pop(job.session.id, None)

        self._keep(work(job, documented, *arguments), f"finalize {job.session.uuid}").add_done_callback(ended)

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _store_and_run(
        self,
        job: FinalizationJob,
        documented: asyncio.Future[None],
        on_started: Callable[[], None] = do_nothing,
        first: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Store the job, then run it or hand it over."""
        runner = self._runner(job)
        with _failures_logged(runner.log):
            if await self._steps.is_cancelled(job):
                return await self._discard(job.session.id, on_started)
            if first is not None:
                await first()
            async with asyncio.TaskGroup() as group:
                job.session.turns = await asyncio.to_thread(redact_turns, job.session.turns)
                self._events.log.redact(job.session.id)
                # Nothing else is done before the job is on disk.
                await runner.until_done(self._jobs.add)
                if self._queue.is_shared:  # until then other nodes may have to finalize the call for us
                    await runner.until_done(self._hand_over)
                released = group.create_task(self._release_log(job, on_started))
                if not self._queue.is_shared:
                    await self._run_steps(job, documented, released)

    async def _run_steps(
        self, job: FinalizationJob, documented: asyncio.Future[None], released: asyncio.Task[None] | None = None
    ) -> None:
        """Run all steps. The job ends only after the call log was released: a restart would begin it again."""
        runner, steps = self._runner(job), self._steps
        job.move_to(JobState.RUNNING)
        with _failures_logged(runner.log):
            async with asyncio.TaskGroup() as group:
                # A full disk must not cost the document: the archive is written beside it.
                group.create_task(runner.until_done(steps.write_archive))
                group.create_task(runner.until_done(steps.save_state))
                await runner.write_document()
                recorder = self._recorders.get(job.session.id)
                if recorder is not None and job.summary is not None:
                    recorder.note("summary", asdict(job.summary))
                self._close_recorder(job.session.id)
                documented.set_result(None)
                group.create_task(runner.publish())
                for step in (steps.list_call, steps.learn_facts, steps.note_topics):
                    group.create_task(runner.until_done(step))
            if released is not None:
                await released
            await runner.until_done(steps.park if job.problem else steps.finish, is_last=True)
            runner.events.publish("finished", problem=job.problem)
            await self._clear_if_retracted(job)

    def _runner(self, job: FinalizationJob) -> "_JobRunner":
        events = self._events.of(job.session)
        return _JobRunner(self._steps, job, self._sleep, self._timeouts, events, _logger(job))

    async def _hand_over(self, job: FinalizationJob) -> None:
        await self._queue.hand_over(job)
        job.node = HANDED_OVER
        await self._jobs.save(job)

    async def _release_log(self, job: FinalizationJob, on_started: Callable[[], None]) -> None:
        with contextlib.suppress(StoreUnavailable):  # then only a power cut could still lose the job
            await self._jobs.make_durable()
        self._events.log.release(job.session.id)
        await self._events.log.flushed()
        on_started()

    # Erased callers, retracted turns and recordings

    async def _discard(self, session_id: str, on_started: Callable[[], None]) -> None:
        """The caller was erased during the call."""
        if recorder := self._recorders.pop(session_id, None):
            recorder.discard()
        self._events.log.release(session_id)
        on_started()
        await self._clear(session_id)

    async def _clear_if_retracted(self, job: FinalizationJob) -> None:
        if job.session.taken_back or await self._steps.is_cancelled(job):
            await self._clear(job.session.id)

    async def _clear(self, session_id: str) -> None:
        await self._events.log.flushed()
        try:
            await self._clear_away(session_id)
        except StoreUnavailable as error:
            _log.warning("erased calls could not be looked up", extra={"reason": str(error)})

    def _close_recorder(self, session_id: str) -> None:
        if recorder := self._recorders.pop(session_id, None):
            recorder.close()


@dataclass(frozen=True)
class _JobRunner:
    """Runs the steps of one job, each until it succeeds or cannot."""

    steps: FinalizationSteps
    job: FinalizationJob
    sleep: Callable[[float], Awaitable[None]]
    timeouts: FinalizationTimeouts
    events: CallEvents
    log: CallLogger

    async def write_document(self) -> None:
        new = not self.job.document_id
        await self.until_done(self.steps.write_document)
        if new and self.job.summary is not None:
            ended = self.job.session.ended_at or datetime.now(UTC)
            ENDING_SECONDS.observe(max(0.0, (datetime.now(UTC) - ended).total_seconds()))
            self.log.info("call remembered", extra={"summary_by": self.job.summary.written_by})
            self._publish_summary()

    async def publish(self) -> None:
        """
        Send the document to the remote store, and to both stores a better summary if a language model writes one.

        The webhook is sent once: it waits for the better summary a while.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self.until_done(self.steps.send_remote))
            if self.steps.upgrade_due(self.job):
                upgraded = group.create_task(self._upgrade())
                await asyncio.wait({upgraded}, timeout=self.timeouts.webhook_waits)
            await self.until_done(self.steps.notify)
        if self.job.remote_version:  # the first version is there; a step that is done does nothing
            await self.until_done(self.steps.send_remote)

    async def _upgrade(self) -> None:
        await self.sleep(self.timeouts.upgrade)  # it failed a moment ago
        await self.until_done(self.steps.upgrade)
        self._publish_summary()
        await self.until_done(self.steps.learn_facts)
        await self.until_done(self.steps.note_topics)

    async def until_done(self, step: Step, *, is_last: bool = False) -> None:
        """
        Run a step, again after a transient error. For a cancelled call only the last step runs.

        An error is logged once, and again when its type changes.
        """
        name = STEPS.get(step.__name__, step.__name__.strip("_"))
        logged, attempts, began_at = "", 0, time.monotonic()

        def publish(state: str, **fields: str | bool) -> None:
            if step.__name__ in STEPS:
                seconds = round(time.monotonic() - began_at, 3)
                self.events.publish("step", step=name, state=state, seconds=seconds, **fields)

        while True:
            try:
                if not is_last and await self.steps.is_cancelled(self.job):
                    return
                ran = await step(self.job)
                return publish("done", **({"ran": False} if ran is False else {}))
            except DocumentNotFound:
                return self.log.info("document was deleted before the step", extra={"step": name})
            except (StoreRefused, LlmRefused) as error:
                if isinstance(error, StoreRefused):
                    self.job.problem = f"{name}: {error}"
                publish("refused", reason=str(error))
                return self.log.error("finalization step refused", extra={"step": name, "reason": str(error)})
            except (StoreUnavailable, LlmUnavailable, SharedStoreUnavailable, OSError) as error:
                if logged != type(error).__name__:
                    logged = type(error).__name__
                    reason = str(error) if isinstance(error, GatewayError) else f"{logged}: {error}"
                    WATCHDOG.labels("finalization step retried").inc()
                    self.log.warning("finalization step will be retried", extra={"step": name, "reason": reason})
                    publish("waits", reason=reason)
                await self._pause(attempts, getattr(error, "retry_after", None))
                attempts += 1

    async def _pause(self, attempts: int, retry_after: float | None) -> None:
        """Back off with jitter, so that jobs do not retry together. A server's own Retry-After comes first."""
        delays, job = self.timeouts.retries, self.job
        pause = delays[min(attempts, len(delays) - 1)] * random.uniform(0.8, 1.2)
        if job.state is JobState.RUNNING:
            job.move_to(JobState.RETRYING)
        await self.sleep(max(pause, min(retry_after or 0.0, delays[-1])))
        if job.state is JobState.RETRYING:
            job.move_to(JobState.RUNNING)

    def _publish_summary(self) -> None:
        if summary := self.job.summary:
            self.events.publish("summary", by=summary.written_by, document=self.job.document_id)


@contextlib.contextmanager
def _failures_logged(log: CallLogger) -> Iterator[None]:
    """The edge of a job: it stays in the table, and the next start resumes it."""
    try:
        yield
    except* TakenOver:
        log.info("another worker runs this finalization job")
    except* Exception:
        log.exception("finalization job failed")


def _logger(job: FinalizationJob) -> CallLogger:
    return CallLogger(logging.getLogger(__name__), {"call": job.session.uuid[:8]})
