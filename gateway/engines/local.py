"""Recogniser and voice on this machine, in the speech worker process."""

import logging
import os
from typing import Final

from gateway.engines.speech_parts import SpeechListener
from gateway.engines.speech_worker import SpeechChannel, SpeechWorkerClient

CALLS_PER_CORE: Final = 4
"""What one core handles, recognition and synthesis included (measured with `gateway bench --engine local`)."""
HEARING: Final = (
    "You hear the caller through a recogniser that is weak at numbers: say every number that the caller gives back to "
    "them, digit by digit, and ask whether it is right."
)

_log = logging.getLogger(__name__)


class LocalSpeech:
    """The speech worker as a recogniser and a voice, for up to `max_calls` calls at a time."""

    name = "local"
    hearing = HEARING

    def __init__(self, worker: SpeechWorkerClient, *, max_calls: int = 0, connect_seconds: float = 5.0) -> None:
        """`max_calls` 0: as many as the machine's cores handle."""
        self._worker = worker
        self._max_calls = max_calls or CALLS_PER_CORE * (os.cpu_count() or 1)
        self._connect_seconds = connect_seconds
        self._is_running = False

    async def open_recogniser(self, listener: SpeechListener) -> SpeechChannel:
        """A session whose voice is local, too, has one channel for both."""
        await self._worker.ready(self._connect_seconds)
        return self._worker.open_channel(listener)

    open_voice = open_recogniser

    @property
    def is_ready(self) -> bool:
        """True also when the models can't be loaded: that is reported by `health`."""
        return self._worker.has_started

    @property
    def is_full(self) -> bool:
        is_full = self._worker.open_channels >= self._max_calls
        if is_full:
            _log.warning("local engine is full", extra={"calls": self._max_calls})
        return is_full

    async def probe(self) -> str:
        await self._worker.check_models()
        return "local, models intact"

    def health(self) -> dict[str, str]:
        problem = {"engine_problem": self._worker.refusal} if self._worker.refusal else {}
        return {"engine_state": self._worker.state, **problem}

    async def run(self) -> None:
        """Run the process. Several engines may share it: only the first call has an effect."""
        if not self._is_running:
            self._is_running = True
            await self._worker.run()
