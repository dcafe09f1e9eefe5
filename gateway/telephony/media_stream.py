"""A call's media stream: the carrier's socket and its codec. Admits the stream; passes audio, marks and digits on."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.errors import RemoteProtocolError
from gateway.logs import BurstLogger
from gateway.metrics import ADDED_DELAY, WATCHDOG
from gateway.telephony import codec
from gateway.telephony.codec import STREAMING, CarrierCodec, StreamStarted, StreamState
from gateway.websocket.interface import NORMAL, POLICY_VIOLATION, Socket

MAX_HELD_FRAMES: Final = 500
"""Frames kept during admission: ten seconds of audio."""

MAX_FRAMES_BEFORE_START: Final = 10
"""Carriers send `connected`, then `start`."""

MEASURED_FRAMES: Final = 50
"""One frame in this many is timed: one per second of audio."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MediaTimeouts:
    start: float = 5.0
    """Seconds after which a socket that has not sent a valid `start` is closed."""


_TIMEOUTS: Final = MediaTimeouts()


class CarrierRecorder(Protocol):
    """The part of a call's recorder that media streams write to. Every method returns at once."""

    @property
    def wants_frames(self) -> bool: ...

    def from_carrier(self, frame: bytes) -> None: ...
    def to_carrier(self, frame: bytes) -> None: ...


class MediaStreamEvents(Protocol):
    """The call: receives the events of its media stream."""

    @property
    def recorder(self) -> CarrierRecorder: ...

    name: str
    """The call's name in the log."""

    def on_caller_audio(self, audio: bytes) -> None: ...
    def on_mark(self, name: str) -> None: ...
    def on_digit(self, digit: str) -> None: ...
    def on_stream_stopped(self) -> None:
        """The carrier sent `stop`."""

    def on_stream_lost(self) -> None:
        """The socket closed without a `stop`. The caller may still be there."""


Admit = Callable[[StreamStarted, "MediaStream"], Awaitable[MediaStreamEvents | None]]
"""Verifies a `start`. Returns its call, or None if the token is invalid. May have to ask another node."""


def _drop(frame: bytes) -> None:
    """The socket is not open."""


class MediaStream:
    """One media stream. Frames before its admission are held back."""

    __slots__ = (  # used for each frame
        "_added_delay _admission _admit _call _codec _frames _gone _has_logged_problem _held _pass_on _recorder "
        "_send _socket _start_timer _stranger_log _timeouts started_at"
    ).split()

    def __init__(
        self,
        codec: CarrierCodec,
        admit: Admit,
        *,
        gone: Callable[["MediaStream"], None],
        stranger_log: BurstLogger,
        timeouts: MediaTimeouts = _TIMEOUTS,
    ) -> None:
        self._codec = codec
        self._admit = admit
        self._gone = gone
        self._stranger_log = stranger_log
        self._timeouts = timeouts
        self._socket: Socket | None = None
        self._call: MediaStreamEvents | None = None
        self._pass_on: Callable[[bytes], None] | None = None
        self._recorder: CarrierRecorder | None = None
        self._send: Callable[[bytes], None] = _drop
        self._added_delay = ADDED_DELAY.labels("to engine", codec.name)
        self._start_timer: asyncio.TimerHandle
        self._admission: asyncio.Task[None] | None = None
        self._held: list[bytes] = []
        self.started_at = 0.0
        """When the carrier sent `start`, in loop time."""
        self._has_logged_problem = False
        self._frames = 0

    @property
    def carrier(self) -> str:
        return self._codec.name

    @property
    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes if self._socket is not None else 0

    # Called by the call

    def send_audio(self, audio: bytes) -> None:
        if self._codec.state is STREAMING:
            for frame in self._codec.send_audio(audio):
                self._send(frame)

    def play_filler(self, audio: bytes) -> None:
        """Play filler audio, in whole frames. Recordings do not contain it."""
        if self._codec.state is STREAMING and self._socket is not None:
            for frame in self._codec.send_audio(audio):
                self._socket.send_text(frame)

    def stop_filler(self) -> None:
        if self._codec.state is STREAMING and self._socket is not None:
            self._socket.send_text(self._codec.send_clear())

    def finish_audio(self) -> None:
        """End of an answer: send the remainder that was too short for a frame."""
        if self._codec.state is STREAMING:
            for frame in self._codec.finish_audio():
                self._send(frame)

    def send_mark(self, name: str) -> None:
        if self._codec.state is STREAMING:
            self._send(self._codec.send_mark(name))

    def send_clear(self) -> None:
        if self._codec.state is STREAMING:
            self._send(self._codec.send_clear())

    def close(self, code: int = NORMAL) -> None:
        if self._socket is not None:
            self._socket.close(code)

    def _send_recorded(self, frame: bytes) -> None:
        if self._socket is not None and self._recorder is not None:
            self._socket.send_text(frame)
            self._recorder.to_carrier(frame)

    # Called by the socket

    def on_open(self, socket: Socket) -> None:
        self._socket = socket
        self._send = socket.send_text
        self._start_timer = asyncio.get_running_loop().call_later(self._timeouts.start, self._no_start)

    def on_text(self, data: bytes) -> None:
        self._frames += 1
        began = 0.0 if self._frames % MEASURED_FRAMES else time.perf_counter()
        if self._pass_on is None or (audio := self._codec.receive_audio(data)) is None:
            self._receive_other(data)
            return
        if self._recorder is not None:
            self._recorder.from_carrier(data)
        self._pass_on(audio)
        if began:
            self._added_delay.observe(time.perf_counter() - began)

    def _receive_other(self, data: bytes) -> None:
        if self._admission is not None:
            self._held.append(data)
            if len(self._held) > MAX_HELD_FRAMES:
                self._held.clear()
                self.close(POLICY_VIOLATION)
            return
        if self._codec.state is StreamState.CONNECTING and self._frames > MAX_FRAMES_BEFORE_START:
            self.close(POLICY_VIOLATION)
            return
        try:
            events = self._codec.receive(data)
        except RemoteProtocolError as error:
            self._protocol_error(error)
            return
        if self._recorder is not None:
            self._recorder.from_carrier(self._codec.recorded(data))
        for event in events:
            self._deliver(event)

    def on_binary(self, data: bytes) -> None:
        self._protocol_error(RemoteProtocolError(self._codec.name, "sent a binary frame"))

    def on_closed(self, code: int) -> None:
        self._start_timer.cancel()
        self._socket = None
        self._send = _drop
        if self._admission is None:
            self._end_stream()

    def _end_stream(self) -> None:
        call, was_stopped = self._call, self._codec.state is StreamState.STOPPED
        for event in self._codec.end():
            self._deliver(event)
        self._call = self._pass_on = self._recorder = None
        if call is not None and not was_stopped:
            call.on_stream_lost()
        self._gone(self)

    def _deliver(self, event: codec.CarrierEvent) -> None:
        call = self._call
        match event:
            case StreamStarted():
                self._start_timer.cancel()
                self.started_at = asyncio.get_running_loop().time()
                admission = self._run_admission(event)
                self._admission = asyncio.get_running_loop().create_task(admission, name="media admission")
            case _ if call is None:
                pass
            case codec.CarrierErrorReported(code, title):
                fields = {"call": call.name, "carrier": self.carrier, "code": code[:100], "title": title[:200]}
                _log.warning("carrier reported an error", extra=fields)
            case codec.AudioReceived(audio):
                call.on_caller_audio(audio)
            case codec.MarkReached(name):
                call.on_mark(name)
            case codec.DigitPressed(digit):
                call.on_digit(digit)
            case codec.StreamStopped():
                call.on_stream_stopped()

    async def _run_admission(self, started: StreamStarted) -> None:
        """Find the call, then deliver the frames held back, and the end if the socket has closed."""
        try:
            self._call = await self._admit(started, self)
        finally:
            self._admission = None
        held, self._held = self._held, []
        if self._call is None:
            self.close(POLICY_VIOLATION)
        else:
            self._pass_on, recorder = self._call.on_caller_audio, self._call.recorder
            self._recorder = recorder if recorder.wants_frames else None
            if self._socket is not None:
                self._send = self._socket.send_text if self._recorder is None else self._send_recorded
                self._socket.trust()
            for data in held:
                self.on_text(data)
        if self._socket is None:
            self._end_stream()

    def _no_start(self) -> None:
        WATCHDOG.labels("media socket without start").inc()
        fields = {"carrier": self.carrier, "seconds": self._timeouts.start}
        self._stranger_log.warning("media socket sent no start", fields)
        self.close(POLICY_VIOLATION)

    def _protocol_error(self, error: RemoteProtocolError) -> None:
        """Drop the frame of an admitted stream, and log it once; close any other socket."""
        fields = {"carrier": error.peer, "problem": error.problem}
        if self._call is None:
            self._stranger_log.warning("carrier protocol error", fields)
            self.close(POLICY_VIOLATION)
        elif not self._has_logged_problem:
            self._has_logged_problem = True
            _log.warning("carrier protocol error", extra={"call": self._call.name, **fields})
