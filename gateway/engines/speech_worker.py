"""
The speech process, seen from the gateway: started with it, started again when it dies, and a seat in it for each call.

Sound and words go through two pipes; nothing here waits for a model, and no model is loaded into this process.
"""

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol

from gateway.errors import EngineRefused, EngineUnavailable
from gateway.speech.protocol import MessageKind, SpeechMessage, SpeechReader

START_SECONDS: Final = 30.0
"""To load the models takes two; a machine that is busy or has a slow disk may take longer."""
STOP_SECONDS: Final = 2.0
RESTART_SECONDS: Final = 5.0
"""Before another try with a process that died before it was ready."""

_log = logging.getLogger(__name__)


class SpeechListener(Protocol):
    """Who sits in a seat. Called on the event loop; returns at once."""

    def on_began(self) -> None: ...
    def on_ended(self, text: str) -> None: ...
    def on_sound(self, number: int, audio: bytes) -> None: ...
    def on_spoken(self, number: int) -> None:
        """All sound of this text has come."""

    def on_speech_broke(self, what: str) -> None:
        """Something could not be heard, or not be said."""

    def on_speech_lost(self) -> None:
        """The process is gone, and the seat with it."""


class SpeechChannel:
    """One call's place in the speech process."""

    def __init__(self, host: "SpeechWorkerClient", call: int, listener: SpeechListener) -> None:
        self._host = host
        self._call = call
        self.listener = listener
        self._said = 0

    def hear(self, audio: bytes) -> None:
        self._host.send(SpeechMessage(MessageKind.AUDIO, self._call, body=audio))

    def say(self, text: str) -> int:
        """Have this made into sound; the number under which it comes."""
        self._said += 1
        self._host.send(SpeechMessage(MessageKind.SAY, self._call, self._said, text.encode()))
        return self._said

    def hush(self) -> None:
        """Nothing that was to be said so far is wanted any more."""
        self._host.send(SpeechMessage(MessageKind.HUSH, self._call, self._said + 1))

    def end_turn(self) -> None:
        self._host.send(SpeechMessage(MessageKind.END_TURN, self._call))

    def leave(self) -> None:
        self._host.left(self._call)

    @property
    def buffered_bytes(self) -> int:
        return self._host.buffered_bytes


class SpeechWorkerClient:
    """Runs the speech process for as long as it is wanted."""

    def __init__(self, environ: Mapping[str, str] = MappingProxyType({})) -> None:
        """`environ` is for the process, beside what this one has."""
        self._environ = environ
        self._process: Process | None = None
        self._seats: dict[int, SpeechChannel] = {}
        self._calls = 0
        self._ready = asyncio.Event()
        self.refusal = ""
        """Why there will never be one, where that is known."""

    async def run(self) -> None:
        """Keep the process alive until cancelled. One that can't load its models is not started again."""
        while not self.refusal:
            try:
                await self._live()
            except (OSError, ValueError) as error:
                _log.error("speech process failed", extra={"error": type(error).__name__})
            finally:
                was_ready = self._ready.is_set()
                self._ready.clear()
                self._lose_seats()
            if not self.refusal:
                _log.warning("speech process ended, starting another")
                await asyncio.sleep(0.1 if was_ready else RESTART_SECONDS)
        self._ready.set()
        _log.error("local engine can't be used", extra={"reason": self.refusal})

    async def ready(self, timeout: float = START_SECONDS) -> None:
        """Until the models are loaded. EngineRefused where they never will be, EngineUnavailable when it takes long."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise EngineUnavailable("the speech process is not ready") from None
        if self.refusal:
            raise EngineRefused(self.refusal)

    @property
    def has_started(self) -> bool:
        """Whether the models are loaded, or it is known that they can't be."""
        return self._ready.is_set()

    @property
    def state(self) -> str:
        return "failed" if self.refusal else "ready" if self._ready.is_set() else "loading"

    # The calls' side

    @property
    def taken_seats(self) -> int:
        return len(self._seats)

    def speech_channel(self, listener: SpeechListener) -> SpeechChannel:
        self._calls += 1
        speech_channel = self._seats[self._calls] = SpeechChannel(self, self._calls, listener)
        self.send(SpeechMessage(MessageKind.OPEN, self._calls))
        return speech_channel

    def left(self, call: int) -> None:
        if self._seats.pop(call, None) is not None:
            self.send(SpeechMessage(MessageKind.CLOSE, call))

    def send(self, message: SpeechMessage) -> None:
        if self._process is not None and self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(message.encoded())

    @property
    def buffered_bytes(self) -> int:
        """What the process has not taken yet, of all calls."""
        if self._process is None or self._process.stdin is None:
            return 0
        return self._process.stdin.transport.get_write_buffer_size()

    # The process's side

    async def _live(self) -> None:
        """One process, from its start to its end."""
        # In a session of its own: a Ctrl-C in the terminal is for the gateway, which lets calls come to an end.
        arguments = ("-m", "gateway.speech.worker")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,
            env={**os.environ, **self._environ},
        )
        self._process = process
        try:
            assert process.stdout is not None
            reader = SpeechReader()
            while data := await process.stdout.read(65536):
                for message in reader.feed(data):
                    self._receive(message)
        finally:
            self._process = None
            # One that still loads its models hears nothing.
            await _stopped(process, STOP_SECONDS if self._ready.is_set() else 0.0)

    def _receive(self, message: SpeechMessage) -> None:
        if message.kind is MessageKind.READY:
            self._ready.set()
        elif message.kind is MessageKind.FAILED:
            self.refusal = message.text
        elif speech_channel := self._seats.get(message.call):
            match message.kind:
                case MessageKind.BEGAN:
                    speech_channel.listener.on_began()
                case MessageKind.ENDED:
                    speech_channel.listener.on_ended(message.text)
                case MessageKind.SOUND:
                    speech_channel.listener.on_sound(message.number, message.body)
                case MessageKind.SPOKEN:
                    speech_channel.listener.on_spoken(message.number)
                case MessageKind.BROKE:
                    speech_channel.listener.on_speech_broke(message.text)

    def _lose_seats(self) -> None:
        seats, self._seats = list(self._seats.values()), {}
        for speech_channel in seats:
            speech_channel.listener.on_speech_lost()


async def _stopped(process: Process, patience: float) -> None:
    """It ends when its stdin does; else it is ended."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(patience):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
