"""The carrier's media socket and its codec, as one end of a call. Decides nothing about the conversation."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from gateway.errors import RemoteProtocolError
from gateway.metrics import ADDED_DELAY, WATCHDOG
from gateway.telephony.codec import CarrierCodec, StreamState
from gateway.telephony.events import (
    AudioReceived,
    CarrierErrorReported,
    CarrierEvent,
    DigitPressed,
    MarkReached,
    StreamStarted,
    StreamStopped,
)
from gateway.websocket.interface import NORMAL, POLICY_VIOLATION, Socket

START_SECONDS: Final = 5.0
"""A socket that has not sent a valid `start` by then is closed."""

MOST_HELD: Final = 500
"""Frames kept while a `start` is judged: ten seconds of audio."""

MEASURED_FRAMES: Final = 50
"""Of so many frames one is timed: a second of sound."""

_STREAMING: Final = StreamState.STREAMING

_log = logging.getLogger(__name__)


class CarrierRecorder(Protocol):
    """The part of a call's recorder that media streams write to. Every method returns at once."""

    def from_carrier(self, frame: bytes) -> None: ...
    def to_carrier(self, frame: bytes) -> None: ...


class MediaStreamEvents(Protocol):
    """The call, as its carrier sees it."""

    @property
    def recorder(self) -> CarrierRecorder: ...

    name: str
    """As the log has it."""

    def on_caller_audio(self, audio: bytes) -> None: ...
    def on_mark(self, name: str) -> None: ...
    def on_digit(self, digit: str) -> None: ...
    def on_stream_stopped(self) -> None:
        """The carrier ended the stream in good order."""

    def on_stream_lost(self) -> None: ...


Admit = Callable[[StreamStarted, "MediaStream"], Awaitable[MediaStreamEvents | None]]
"""Judges a `start`: the call it belongs to, or None for a stranger. May have to ask another machine."""


class MediaStream:
    """One media stream. Nothing passes before `admit` has let its `start` in."""

    def __init__(self, codec: CarrierCodec, admit: Admit, *, gone: Callable[["MediaStream"], None]) -> None:
        self._codec = codec
        self._admit = admit
        self._gone = gone
        self._socket: Socket | None = None
        self._call: MediaStreamEvents | None = None
        self._start_timer: asyncio.TimerHandle | None = None
        self._judging: asyncio.Task[None] | None = None
        self._held: list[bytes] = []
        self._complained = False
        self._frames = 0

    @property
    def carrier(self) -> str:
        return self._codec.name

    @property
    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes if self._socket is not None else 0

    # The call's side

    def send_audio(self, audio: bytes) -> None:
        if self._codec.state is _STREAMING:
            for frame in self._codec.send_audio(audio):
                self._send(frame)

    def play_filler(self, audio: bytes) -> None:
        """Sound that fills a pause, whole frames of it. A recording is of the conversation, and has none of it."""
        if self._codec.state is _STREAMING and self._socket is not None:
            for frame in self._codec.send_audio(audio):
                self._socket.send_text(frame)

    def stop_filler(self) -> None:
        if self._codec.state is _STREAMING and self._socket is not None:
            self._socket.send_text(self._codec.send_clear())

    def finish_audio(self) -> None:
        """An answer is complete: send what was too short to go alone."""
        if self._codec.state is _STREAMING:
            for frame in self._codec.finish_audio():
                self._send(frame)

    def send_mark(self, name: str) -> None:
        if self._codec.state is _STREAMING:
            self._send(self._codec.send_mark(name))

    def send_clear(self) -> None:
        if self._codec.state is _STREAMING:
            self._send(self._codec.send_clear())

    def close(self, code: int = NORMAL) -> None:
        if self._socket is not None:
            self._socket.close(code)

    def _send(self, frame: bytes) -> None:
        if self._socket is not None:
            self._socket.send_text(frame)
            if self._call is not None:
                self._call.recorder.to_carrier(frame)

    # The socket's side

    def on_open(self, socket: Socket) -> None:
        self._socket = socket
        self._start_timer = asyncio.get_running_loop().call_later(START_SECONDS, self._no_start)

    def on_text(self, data: bytes) -> None:
        self._frames += 1
        if self._frames % MEASURED_FRAMES:
            self._take(data)
            return
        began = time.perf_counter()
        self._take(data)
        ADDED_DELAY.labels("to engine", self.carrier).observe(time.perf_counter() - began)

    def _take(self, data: bytes) -> None:
        call = self._call
        if call is None or (audio := self._codec.receive_audio(data)) is None:
            self._take_other(data)
            return
        call.recorder.from_carrier(data)
        call.on_caller_audio(audio)

    def _take_other(self, data: bytes) -> None:
        if self._judging is not None:
            self._hold(data)
            return
        try:
            events = self._codec.receive(data)
        except RemoteProtocolError as error:
            self._complain(error)
            return
        if self._call is not None:
            self._call.recorder.from_carrier(data)
        for event in events:
            self._deliver(event)

    def on_binary(self, data: bytes) -> None:
        self._complain(RemoteProtocolError(self._codec.name, "sent a binary frame"))

    def on_closed(self, code: int) -> None:
        self._forget_timer()
        self._socket = None
        if self._judging is None:
            self._end_stream()

    def _end_stream(self) -> None:
        call, was_stopped = self._call, self._codec.state is StreamState.STOPPED
        for event in self._codec.end():
            self._deliver(event)
        self._call = None
        if call is not None and not was_stopped:
            call.on_stream_lost()
        self._gone(self)

    def _deliver(self, event: CarrierEvent) -> None:
        call = self._call
        match event:
            case AudioReceived(audio) if call is not None:
                call.on_caller_audio(audio)
            case MarkReached(name) if call is not None:
                call.on_mark(name)
            case DigitPressed(digit) if call is not None:
                call.on_digit(digit)
            case StreamStopped() if call is not None:
                call.on_stream_stopped()
            case StreamStarted():
                self._started(event)
            case CarrierErrorReported(code, title):
                fields = {**self._whose, "carrier": self.carrier, "code": code, "title": title}
                _log.warning("carrier complained", extra=fields)

    def _started(self, started: StreamStarted) -> None:
        self._forget_timer()
        self._judging = asyncio.get_running_loop().create_task(self._judge(started), name="media admission")

    async def _judge(self, started: StreamStarted) -> None:
        """Whose stream it is; what came meanwhile is delivered then, and a stream that ended meanwhile ends then."""
        try:
            self._call = await self._admit(started, self)
        finally:
            self._judging = None
        held, self._held = self._held, []
        if self._call is None:
            self.close(POLICY_VIOLATION)
        else:
            for data in held:
                self.on_text(data)
        if self._socket is None:
            self._end_stream()

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        if len(self._held) > MOST_HELD:
            self._held.clear()
            self.close(POLICY_VIOLATION)

    def _no_start(self) -> None:
        WATCHDOG.labels("media socket without start").inc()
        _log.warning("media socket sent no start", extra={"carrier": self.carrier, "seconds": START_SECONDS})
        self.close(POLICY_VIOLATION)

    def _complain(self, error: RemoteProtocolError) -> None:
        """A stranger is shown the door; a call goes on without the frame, and the log hears of it once."""
        if not self._complained:
            self._complained = True
            fields = {**self._whose, "carrier": error.peer, "problem": error.problem}
            _log.warning("carrier broke its protocol", extra=fields)
        if self._call is None:
            self.close(POLICY_VIOLATION)

    @property
    def _whose(self) -> dict[str, str]:
        """What a log line says of the call; nothing of a stranger's socket."""
        return {"call": self._call.name} if self._call is not None else {}

    def _forget_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
