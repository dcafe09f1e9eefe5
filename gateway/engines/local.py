"""
Recogniser and voice on this machine: starts the speech worker process, restarts it when it dies, and gives each call a
channel to it.

Audio and text pass through two pipes. Nothing here waits for a model, and only `probe` loads one into this process.
"""

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.engines.interface import Patience
from gateway.engines.speech_parts import SpeechListener
from gateway.errors import EngineRefused, EngineUnavailable
from gateway.speech.config import SpeechConfig
from gateway.speech.protocol import MessageKind, SpeechMessage, SpeechReader

CALLS_PER_CORE: Final = 4
"""What one core handles, recognition and synthesis included (measured with `gateway bench --engine local`)."""
HEARING: Final = (
    "You hear the caller through a recogniser that is weak at numbers: say every number that the caller gives back to "
    "them, digit by digit, and ask whether it is right."
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpeechWorkerTimeouts:
    ready: float = 5.0
    """How long a call waits for the models."""
    stop: float = 2.0
    """After this long without exiting the process is killed."""
    restart: float = 5.0
    """Pause after a process that died before it was ready."""
    restart_ready: float = 0.1
    """Pause after a process that had been ready."""


@dataclass(eq=False)
class SpeechChannel:
    """One call's connection to the worker: a `RecogniserStream` and a `VoiceStream`."""

    worker: "LocalSpeech"
    call: int
    listener: SpeechListener
    last_number: int = 0

    def send_audio(self, audio: bytes) -> None:
        self.worker.send(SpeechMessage(MessageKind.AUDIO, self.call, body=audio))

    def set_keyterms(self, terms: Sequence[str]) -> None:
        """The recognisers on this machine take none."""

    def set_patience(self, patience: Patience) -> None:
        self.worker.send(SpeechMessage(MessageKind.PATIENCE, self.call, body=patience.encode()))

    def say(self, text: str) -> int:
        """Synthesize this. Returns the number under which the audio comes."""
        self.last_number += 1
        self.worker.send(SpeechMessage(MessageKind.SAY, self.call, self.last_number, text.encode()))
        return self.last_number

    def cancel_speech(self) -> None:
        """Cancel everything that `say` was called with so far."""
        self.worker.send(SpeechMessage(MessageKind.CANCEL, self.call, self.last_number + 1))

    def end_turn(self) -> None:
        self.worker.send(SpeechMessage(MessageKind.END_TURN, self.call))

    def close(self) -> None:
        self.worker.close_channel(self.call)

    @property
    def buffered_bytes(self) -> int:
        return self.worker.buffered_bytes


class LocalSpeech:
    """The speech worker as a recogniser and a voice, for up to `max_calls` calls at a time."""

    name = "local"
    hearing = HEARING

    def __init__(self, environ: Mapping[str, str], timeouts: SpeechWorkerTimeouts, *, max_calls: int = 0) -> None:
        """`environ` is added to this process's environment. `max_calls` 0: as many as the machine's cores handle."""
        self._environ = environ
        self._max_calls = max_calls or CALLS_PER_CORE * (os.cpu_count() or 1)
        self._timeouts = timeouts
        self._is_running = False
        self._process: Process | None = None
        self._channels: dict[int, SpeechChannel] = {}
        self._last_call = 0
        self._ready = asyncio.Event()
        self._refusal = ""
        """Why the models can't be loaded; empty if they can, or while that is not known."""

    # SpeechService

    async def open_recogniser(self, listener: SpeechListener) -> SpeechChannel:
        """A session whose voice is local, too, has one channel for both."""
        await self.ready(self._timeouts.ready)
        return self.open_channel(listener)

    open_voice = open_recogniser

    @property
    def is_ready(self) -> bool:
        """True also when the models can't be loaded: that is reported by `health`."""
        return self._ready.is_set()

    @property
    def is_full(self) -> bool:
        is_full = len(self._channels) >= self._max_calls
        if is_full:
            _log.warning("local engine is full", extra={"calls": self._max_calls})
        return is_full

    async def probe(self) -> str:
        """Load the models in this process, which takes seconds."""
        from gateway.speech.models import Models  # imports numpy

        config = SpeechConfig.read(self._environ["LOCAL_RECOGNISER"], self._environ["LOCAL_VOICE"])
        await asyncio.to_thread(Models.load, config)
        return "local, models intact"

    def health(self) -> dict[str, str]:
        if self._refusal:
            return {"engine_state": "failed", "engine_problem": self._refusal}
        return {"engine_state": "ready" if self._ready.is_set() else "loading"}

    async def run(self) -> None:
        """
        Keep the process alive until cancelled. One that can't load its models is not restarted.

        Several engines may share it: only the first call has an effect.
        """
        if self._is_running:
            return
        self._is_running = True
        while not self._refusal:
            try:
                await self._run_process()
            except (OSError, ValueError) as error:
                _log.error("speech process failed", extra={"error": type(error).__name__})
            finally:
                was_ready = self._ready.is_set()
                self._ready.clear()
                channels, self._channels = list(self._channels.values()), {}
                for channel in channels:
                    channel.listener.on_speech_failed("the speech process ended")
            if not self._refusal:
                _log.warning("speech process ended, starting another")
                await asyncio.sleep(self._timeouts.restart_ready if was_ready else self._timeouts.restart)
        self._ready.set()
        _log.error("local engine can't be used", extra={"reason": self._refusal})

    # Channels

    async def ready(self, seconds: float) -> None:
        """Wait for the models. Raises EngineRefused if they can't be loaded, EngineUnavailable after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._ready.wait()
        except TimeoutError:
            raise EngineUnavailable("the speech process is not ready") from None
        if self._refusal:
            raise EngineRefused(self._refusal)

    def open_channel(self, listener: SpeechListener) -> SpeechChannel:
        """The channel of this listener: a new one, or the one that it has."""
        for open_channel in self._channels.values():
            if open_channel.listener is listener:
                return open_channel
        self._last_call += 1
        channel = self._channels[self._last_call] = SpeechChannel(self, self._last_call, listener)
        self.send(SpeechMessage(MessageKind.OPEN, self._last_call))
        return channel

    def close_channel(self, call: int) -> None:
        if self._channels.pop(call, None) is not None:
            self.send(SpeechMessage(MessageKind.CLOSE, call))

    def send(self, message: SpeechMessage) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(message.encoded())

    @property
    def buffered_bytes(self) -> int:
        """What the process has not read yet, of all calls."""
        if self._process is None or self._process.stdin is None:
            return 0
        return self._process.stdin.transport.get_write_buffer_size()

    # The process

    async def _run_process(self) -> None:
        # In a session of its own: Ctrl-C in the terminal is for the gateway, which drains its calls first.
        command = (sys.executable, "-m", "gateway.speech.worker")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, start_new_session=True, env={**os.environ, **self._environ}
        )
        self._process = process
        assert process.stdin is not None and process.stdout is not None
        try:
            reader = SpeechReader()
            while data := await process.stdout.read(65536):
                for message in reader.feed(data):
                    self._receive(message)
        finally:
            self._process = None
            process.stdin.close()  # which ends it
            try:
                # One that is still loading its models does not read its stdin.
                async with asyncio.timeout(self._timeouts.stop if self._ready.is_set() else 0.0):
                    await process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    def _receive(self, message: SpeechMessage) -> None:
        if message.kind is MessageKind.READY:
            self._ready.set()
        elif message.kind is MessageKind.UNUSABLE:
            self._refusal = message.text
        elif channel := self._channels.get(message.call):
            match message.kind:
                case MessageKind.SPEECH_STARTED:
                    channel.listener.on_speech_started()
                case MessageKind.SPEECH_ENDED:
                    channel.listener.on_speech_ended(message.text)
                case MessageKind.SYNTHESIZED:
                    channel.listener.on_audio(message.number, message.body)
                case MessageKind.SPOKEN:
                    channel.listener.on_spoken(message.number)
                case MessageKind.FAILED:
                    channel.listener.on_speech_failed(message.text)
