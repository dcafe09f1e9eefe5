"""
After the hangup: archive, summary, document. In the background, never in the way of another call.

One call leaves one document, whatever fails in between: every step is recorded, safe to repeat, and tried again for
as long as it takes. The gateway's own store comes first; a remote one follows when it can.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from gateway.calls.ending_steps import EndingSteps
from gateway.calls.endings import Ending
from gateway.calls.journal import Journal
from gateway.calls.session import VoiceSession
from gateway.errors import DocumentNotFound, GatewayError, LlmRefused, LlmUnavailable, StoreRefused, StoreUnavailable
from gateway.links.recorder import CallRecorder
from gateway.logs import CallLog

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Between tries, in seconds; the last one repeats."""

SWEEP_SECONDS: Final = 15.0
"""How often endings are looked for that somebody wants tried again."""
UPGRADE_AFTER: Final = 5.0
"""Until a language model that did not answer is asked again; then the pauses above."""

_log = logging.getLogger(__name__)


class Finalizer:
    """Sees each ended call through to its document. One task a call."""

    def __init__(
        self,
        steps: EndingSteps,
        *,
        journal: Journal | None = None,
        enabled: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._steps = steps
        self._journal = journal
        self._enabled = enabled
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[str] = set()
        self._undocumented: set[asyncio.Future[None]] = set()

    def submit(self, session: VoiceSession, recorder: CallRecorder | None = None) -> None:
        """A call is over. Nothing is kept of a nameless caller, or of a call without a word."""
        if self._enabled and session.caller and any(turn.text.strip() for turn in session.turns):
            self._start(Ending(session), recorder)
            return
        if self._journal is not None:
            self._journal.forget(session.id)
        if recorder is not None:
            recorder.note("ended", session.as_json())
            recorder.close()

    async def resume(self) -> frozenset[str]:
        """
        Take up what an earlier process left unfinished; what it could not do may be possible now.

        Returns the ids of all calls whose ending had been begun: their journals have nothing to add.
        """
        await self._steps.endings.try_again()
        return await self._take_up()

    async def sweep(self) -> None:
        """Until cancelled, take up endings that somebody wants tried again."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._take_up()
            except StoreUnavailable as error:
                _log.warning("endings could not be looked for", extra={"reason": str(error)})

    async def _take_up(self) -> frozenset[str]:
        unfinished = await self._steps.endings.open_ones()
        for ending in unfinished:
            if ending.session.id not in self._running and not ending.problem:
                self._start(ending, None)
        return frozenset(ending.session.id for ending in unfinished)

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

    def _start(self, ending: Ending, recorder: CallRecorder | None) -> None:
        loop = asyncio.get_running_loop()
        documented: asyncio.Future[None] = loop.create_future()
        self._undocumented.add(documented)
        documented.add_done_callback(self._undocumented.discard)
        task = loop.create_task(self._see_through(ending, recorder, documented), name=f"ending {ending.session.uuid}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self._running.add(ending.session.id)
        task.add_done_callback(lambda _: self._running.discard(ending.session.id))

    async def _see_through(
        self, ending: Ending, recorder: CallRecorder | None, documented: asyncio.Future[None]
    ) -> None:
        work = _Work(self._steps, ending, self._sleep)
        try:
            async with asyncio.TaskGroup() as group:
                await work.until_done(self._steps.begin)
                group.create_task(self._leave_journal(ending))
                # A full disk must not cost the document: the archive is tried beside it.
                group.create_task(work.until_done(self._steps.keep_archive))
                await work.write_document()
                _record(recorder, ending)
                documented.set_result(None)
                group.create_task(work.publish())
            if ending.problem:  # it rests until a key is corrected, say, and somebody has it tried again
                await work.until_done(self._steps.begin)
            else:
                await work.until_done(self._steps.finish)
        except Exception:
            # The edge of an ending: it stays open in the store, and the next start takes it up.
            work.log.exception("ending failed")
        finally:
            documented.cancel()
            if recorder is not None:
                recorder.close()

    async def _leave_journal(self, ending: Ending) -> None:
        """The ending has everything now. It is not done before the journal knows, or a restart would begin it anew."""
        if self._journal is not None:
            with contextlib.suppress(StoreUnavailable):  # then a power cut, and only that, could still take it back
                await self._steps.endings.make_durable()
            self._journal.forget(ending.session.id)
            await self._journal.flushed()


class _Work:
    """The ending of one call: its steps, each until it succeeds or can't."""

    def __init__(self, steps: EndingSteps, ending: Ending, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.log = CallLog(logging.getLogger(__name__), {"call": ending.session.uuid[:8]})
        self._steps = steps
        self._ending = ending
        self._sleep = sleep

    async def write_document(self) -> None:
        new = not self._ending.document_id
        await self.until_done(self._steps.write_document)
        if new and self._ending.summary is not None:
            self.log.info("call remembered", extra={"summary_by": self._ending.summary.written_by})

    async def publish(self) -> None:
        """The document to the remote store, and a better summary to both when a language model has written one."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.until_done(self._steps.send_remote))
            if self._steps.upgrade_due(self._ending):
                await self._sleep(UPGRADE_AFTER)  # it failed a moment ago
                await self.until_done(self._steps.upgrade)
        if self._ending.remote_version:  # it has the first version; a step that is done does nothing
            await self.until_done(self._steps.send_remote)

    async def until_done(self, step: Callable[[Ending], Awaitable[None]]) -> None:
        """Do a step, again after a passing fault. The log hears of a fault once, and of a new kind when it changes."""
        said, tries = "", 0
        while True:
            try:
                return await step(self._ending)
            except DocumentNotFound:
                return self.log.info("document was deleted meanwhile", extra={"step": step.__name__})
            except (StoreRefused, LlmRefused) as error:
                if isinstance(error, StoreRefused):
                    self._ending.problem = f"{step.__name__}: {error}"
                return self.log.error("ending step refused", extra={"step": step.__name__, "reason": str(error)})
            except (StoreUnavailable, LlmUnavailable, OSError) as error:
                if said != type(error).__name__:
                    said = type(error).__name__
                    self.log.warning("ending step waits", extra={"step": step.__name__, "reason": _reason(error)})
                await self._sleep(_pause(tries, getattr(error, "retry_after", None)))
                tries += 1


def _pause(tries: int, retry_after: float | None) -> float:
    """Back off, a little random so that many endings do not knock together; a server's own wish comes first."""
    pause = PAUSES[min(tries, len(PAUSES) - 1)] * random.uniform(0.8, 1.2)
    return max(pause, min(retry_after or 0.0, PAUSES[-1]))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, GatewayError) else f"{type(error).__name__}: {error}"


def _record(recorder: CallRecorder | None, ending: Ending) -> None:
    if recorder is not None and ending.summary is not None:
        recorder.note("ended", ending.session.as_json())
        recorder.note("summary", asdict(ending.summary))
