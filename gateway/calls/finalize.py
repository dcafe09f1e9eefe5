"""
After the hangup: archive, summary, document. In the background, never in the way of another call.

One call leaves one document, whatever fails in between: every step is recorded, safe to repeat, and tried again for
as long as it takes. The gateway's own store comes first; a remote one follows when it can.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Final

from gateway.calls.ending_steps import EndingSteps
from gateway.calls.endings import Ending
from gateway.calls.session import VoiceSession
from gateway.errors import GatewayError, LlmRefused, LlmUnavailable, StoreRefused, StoreUnavailable
from gateway.links.recorder import CallRecorder
from gateway.logs import CallLog

PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Between tries, in seconds; the last one repeats."""

UPGRADE_AFTER: Final = 5.0
"""Until a language model that did not answer is asked again; then the pauses above."""


class Finalizer:
    """Sees each ended call through to its document. One task a call."""

    def __init__(
        self, steps: EndingSteps, *, enabled: bool = True, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._steps = steps
        self._enabled = enabled
        self._sleep = sleep
        self._tasks: set[asyncio.Task[None]] = set()
        self._undocumented: set[asyncio.Future[None]] = set()

    def submit(self, session: VoiceSession, recorder: CallRecorder | None = None) -> None:
        """A call is over. Nothing is kept of a nameless caller, or of a call without a word."""
        if self._enabled and session.caller and any(turn.text for turn in session.turns):
            self._start(Ending(session), recorder)
        elif recorder is not None:
            recorder.note("ended", session.as_json())
            recorder.close()

    async def resume(self) -> None:
        """Take up what an earlier process left unfinished."""
        for ending in await self._steps.endings.open_ones():
            self._start(ending, None)

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

    async def _see_through(
        self, ending: Ending, recorder: CallRecorder | None, documented: asyncio.Future[None]
    ) -> None:
        log = CallLog(logging.getLogger(__name__), {"call": ending.session.uuid[:8]})
        steps, repeat = self._steps, _Repeat(log, self._sleep)
        try:
            await repeat(steps.begin, ending)
            # A full disk must not cost the document: the archive gets one try now, and more while the rest is done.
            async with asyncio.TaskGroup() as group:
                group.create_task(repeat(steps.keep_archive, ending))
                await repeat(steps.write_document, ending)
                log.info("call remembered", extra={"summary_by": ending.summary and ending.summary.written_by})
                _record(recorder, ending)
                documented.set_result(None)
                group.create_task(self._upgrade(repeat, ending))
                group.create_task(repeat(steps.send_remote, ending))
            if steps.remote_due(ending):  # the summary grew better while the old one was being sent
                await repeat(steps.send_remote, ending)
            ending.complete = True
            await repeat(steps.begin, ending)
        except Exception:
            # The edge of an ending: it stays open in the store, and the next start takes it up.
            log.exception("ending failed")
        finally:
            documented.cancel()

    async def _upgrade(self, repeat: "_Repeat", ending: Ending) -> None:
        if self._steps.upgrade_due(ending):
            await self._sleep(UPGRADE_AFTER)  # it failed a moment ago
            await repeat(self._steps.upgrade, ending)


class _Repeat:
    """Does a step until it succeeds or can never succeed. Says what is wrong once, and again only when it changes."""

    def __init__(self, log: CallLog, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._log = log
        self._sleep = sleep

    async def __call__(self, step: Callable[[Ending], Awaitable[None]], ending: Ending) -> None:
        said, tries = "", 0
        while True:
            try:
                await step(ending)
                return
            except (StoreRefused, LlmRefused) as error:
                self._log.error("ending step refused", extra={"step": step.__name__, "reason": str(error)})
                return
            except (StoreUnavailable, LlmUnavailable, OSError) as error:
                if said != type(error).__name__:
                    said = type(error).__name__
                    self._log.warning("ending step waits", extra={"step": step.__name__, "reason": _reason(error)})
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
        recorder.close()
