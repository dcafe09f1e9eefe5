"""
Plays a recorded call: acts as carrier and voice engine around a real gateway.

The player walks the recorded frames in order. It sends what came from a peer and waits for what went to a peer. Before
it switches to the other peer, it waits until the gateway has processed what the first one sent. So the order of frames
is the recorded one at any speed.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.replay.recording import AudioChecksum, Peer, RecordedFrame, Recording
from gateway.session import EndReason
from gateway.simulate.carriers import CarrierCall, SimulatedCarrier
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.frames import JsonFrame, ReceivedFrame
from gateway.simulate.gateway_under_test import GatewayAddress

TIMEOUT: Final = 10.0
"""How long to wait for a recorded frame. The gateway itself tries 7 s to reconnect to a lost engine."""

SILENCE: Final = AudioChecksum(FRAME_BYTES, zlib.crc32(SILENCE_FRAME))

_ENGINE_GONE: Final = {EndReason.ENGINE_LOST: 503, EndReason.ENGINE_REFUSED: 401}
GATEWAY_ENDS: Final = frozenset({EndReason.AGENT_HUNG_UP, *_ENGINE_GONE})

Observer = Callable[[RecordedFrame], None]
"""Called after each recorded frame was sent or received."""


@dataclass(frozen=True)
class Outcome:
    """What the gateway sent while a call was played. Times are seconds since `start`."""

    to_carrier: tuple[ReceivedFrame, ...]
    to_engine: tuple[ReceivedFrame, ...]
    silent_frames: int
    """Sent to the engine, including those the gateway generates while the carrier pauses."""
    gateway_hung_up: bool
    """Whether the gateway ended the call before the caller did."""
    seconds: float


@dataclass(frozen=True)
class StoredCall:
    """The archive text and the document of a finished call; empty if nothing was stored."""

    archive: str = ""
    document: str = ""


@dataclass
class _Expected:
    """How much a peer should have received by now."""

    messages: int = 0
    audio_bytes: int = 0
    given_up: bool = False


class Player:
    """Plays one recording once. Speed 1 keeps the recorded times; speed 0 waits for the gateway only."""

    def __init__(
        self,
        recording: Recording,
        carrier: SimulatedCarrier,
        engine: SimulatedEngine,
        gateway: GatewayAddress,
        *,
        speed: float = 0.0,
        timeout: float = TIMEOUT,
    ) -> None:
        self._recording = recording
        self._carrier = carrier
        self._engine = engine
        self._gateway = gateway
        self._speed = speed
        self._timeout = timeout
        self._expected: dict[Peer, _Expected] = {"carrier": _Expected(), "engine": _Expected()}
        self._last_sender: CarrierCall | SimulatedEngine | None = None
        self._awaits_engine = True  # the gateway has not connected to it yet
        self._gateway_hung_up = False
        self._began = 0.0

    async def play(self, observer: Observer | None = None) -> Outcome:
        """Play the call to its end. SettingsError if the gateway rejects it."""
        header = self._recording.header
        losses = _losses(self._recording)
        self._engine.begin_call(refusal=losses.get(0, 0))
        call = await self._carrier.place_call(header.caller, header.called, self._recording.stream_id, self._gateway)
        self._began = asyncio.get_running_loop().time()
        try:
            await self._walk(call, losses, observer)
            await self._finish(call)
        finally:
            await call.close()
        to_carrier, to_engine = (
            tuple(replace(frame, at=frame.at - self._began) for frame in sink.frames)
            for sink in (call.sink, self._engine.sink)
        )
        return Outcome(
            to_carrier=to_carrier,
            to_engine=to_engine,
            silent_frames=self._engine.sink.silent_frames,
            gateway_hung_up=self._gateway_hung_up,
            seconds=asyncio.get_running_loop().time() - self._began,
        )

    async def _walk(self, call: CarrierCall, losses: Mapping[int, int], observer: Observer | None) -> None:
        for frame in self._recording.frames:
            if self._speed:
                due = self._began + frame.at / self._speed
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            if frame.direction == "from":
                await self._send(frame, call)
            else:
                await self._wait_for(frame, call)
            if observer is not None:
                observer(frame)
            if frame.line in losses:
                await self._engine.wait_processed()
                await self._engine.disconnect(refusal=losses[frame.line])
                self._awaits_engine = True

    async def _send(self, frame: RecordedFrame, call: CarrierCall) -> None:
        sender: CarrierCall | SimulatedEngine = call if frame.peer == "carrier" else self._engine
        if self._last_sender is not None and self._last_sender is not sender:
            await self._last_sender.wait_processed()
        self._last_sender = sender
        if frame.peer == "engine" and self._awaits_engine:
            self._awaits_engine = False
            await self._engine.wait_connected(self._timeout)
        if _is(frame, "event", "stop"):
            await self._note_end(call)
        assert not isinstance(frame.content, AudioChecksum)  # recorded for sent audio only
        await sender.send(frame.content)

    async def _note_end(self, call: CarrierCall) -> None:
        """Note who ends the call. If the gateway ended the recorded call, give it time to do so again."""
        if self._recording.end_reason in GATEWAY_ENDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.ended.wait(), self._timeout)
        self._gateway_hung_up = call.ended.is_set()

    async def _wait_for(self, frame: RecordedFrame, call: CarrierCall) -> None:
        expected = self._expected[frame.peer]
        if isinstance(frame.content, AudioChecksum):
            silent = frame.peer == "engine" and frame.content == SILENCE
            expected.audio_bytes += 0 if silent else frame.content.size
        else:
            expected.messages += 1
        if expected.given_up:
            return  # one frame is missing already; the comparison reports it
        sink = call.sink if frame.peer == "carrier" else self._engine.sink
        expected.given_up = not await sink.wait_for(
            messages=expected.messages, audio_bytes=expected.audio_bytes, timeout=self._timeout
        )

    async def _finish(self, call: CarrierCall) -> None:
        """End the call as recorded, including the carrier's status callback."""
        if any(frame.direction == "from" and _is(frame, "event", "stop") for frame in self._recording.frames):
            await call.wait_processed()
        else:
            await self._note_end(call)
        if self._recording.end_reason not in (*GATEWAY_ENDS, EndReason.STREAM_LOST):
            await self._carrier.hang_up(call, self._gateway)


def _losses(recording: Recording) -> dict[int, int]:
    """
    Lines after which the engine's connection is lost, with the HTTP status that refuses further handshakes (0: none).

    A recording has no frame for the loss itself. It precedes a second conversation, or ends a call whose end reason
    says so. Line 0 stands for an engine that was never reachable.
    """
    losses: dict[int, int] = {}
    last, configured = 0, False
    for frame in recording.frames:
        if frame.peer != "engine":
            continue
        if configured and (_is(frame, "type", "Welcome") or _is(frame, "type", "Settings")):
            losses[last] = 0
            configured = False
        configured |= _is(frame, "type", "Settings")
        last = frame.line
    if recording.end_reason in _ENGINE_GONE:
        losses[last] = _ENGINE_GONE[recording.end_reason]
    return losses


def _is(frame: RecordedFrame, name: str, value: str) -> bool:
    return isinstance(frame.content, JsonFrame) and frame.content.fields.get(name) == value
