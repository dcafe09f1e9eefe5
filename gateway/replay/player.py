"""
Plays a recorded call: acts as carrier and voice engine around a real gateway.

The player walks the recording in order. It sends what came from a peer and waits for what went to a peer. Before it
switches to the other peer, it waits until the gateway has processed what the first one sent. So the order of frames is
the recorded one at any speed.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

import httpx

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.calls.call import Call
from gateway.errors import SettingsError
from gateway.replay.recording import AudioChecksum, Peer, RecordedFrame, RecordedNote, Recording
from gateway.session import EndReason
from gateway.simulate.carriers import CarrierCall, SimulatedCarrier
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.frames import JsonFrame, ReceivedFrame
from gateway.simulate.gateway_under_test import GatewayAddress
from gateway.telephony.machine_detection import AnsweredBy

TIMEOUT: Final = 10.0
"""How long to wait for a recorded frame. The gateway itself tries 7 s to reconnect to a lost engine."""

SILENCE: Final = AudioChecksum(FRAME_BYTES, zlib.crc32(SILENCE_FRAME))

_ENGINE_GONE: Final = {EndReason.ENGINE_LOST: 503, EndReason.ENGINE_REFUSED: 401}
GATEWAY_ENDS: Final = frozenset(
    {
        EndReason.AGENT_HUNG_UP,
        EndReason.CALLER_SILENT,
        EndReason.OPERATOR_HUNG_UP,
        EndReason.SHUTDOWN,
        EndReason.TIME_LIMIT,
        EndReason.VOICEMAIL_LEFT,
        EndReason.VOICEMAIL_REACHED,
        *_ENGINE_GONE,
    }
)

Observer = Callable[[RecordedFrame], None]
"""Called after each recorded frame was sent or received."""


class GatewayInternals(Protocol):
    """Access to a gateway in this process, for events that come from neither carrier nor engine."""

    def live_call(self) -> Call | None: ...
    def memory_arrives(self) -> None:
        """Release the memory that arrived late in the recorded call."""


class NoInternals:
    """For a gateway in another process: what tools and operators did is left out."""

    def live_call(self) -> None:
        return None

    def memory_arrives(self) -> None: ...


_NO_INTERNALS: Final = NoInternals()


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
    replies: tuple[str, ...] = ()
    """The gateway's own replies to requests of the engine for its language model."""


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
    """Plays one recording once, at the event loop's time or faster: `speed` 0 waits for the gateway only."""

    def __init__(
        self,
        recording: Recording,
        carrier: SimulatedCarrier,
        engine: SimulatedEngine,
        gateway: GatewayAddress,
        *,
        internals: GatewayInternals = _NO_INTERNALS,
        speed: float = 0.0,
        timeout: float = TIMEOUT,
    ) -> None:
        self._recording = recording
        self._carrier = carrier
        self._engine = engine
        self._gateway = gateway
        self._internals = internals
        self._speed = speed
        self._timeout = timeout
        self._expected: dict[Peer, _Expected] = {"carrier": _Expected(), "engine": _Expected()}
        self._last_sender: CarrierCall | SimulatedEngine | None = None
        self._awaits_engine = True  # the gateway has not connected to it yet
        self._has_settings = False
        self._stream_is_over = False
        self._gateway_hung_up = False
        self._began = 0.0
        self._replies: list[str] = []

    async def play(self, observer: Observer | None = None) -> Outcome:
        """Play the call to its end. SettingsError if the gateway rejects it."""
        header = self._recording.header
        losses = _losses(self._recording)
        self._engine.begin_call(refusal=losses.get(0, 0), holds=_has_engine_notes(self._recording))
        call = await self._carrier.place_call(header.caller, header.called, self._recording.stream_id, self._gateway)
        self._began = asyncio.get_running_loop().time()
        try:
            await self._walk(call, losses, observer)
            await self._finish(call)
        finally:
            await call.close()
            self._engine.end_call()
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
            replies=tuple(self._replies),
        )

    async def _walk(self, call: CarrierCall, losses: Mapping[int, int], observer: Observer | None) -> None:
        for step in self._recording.steps:
            if self._speed:
                due = self._began + step.at / self._speed
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))
            if isinstance(step, RecordedNote):
                await self._repeat(step, call)
                continue
            if step.direction == "from":
                await self._send(step, call)
            else:
                await self._wait_for(step, call)
            if observer is not None:
                observer(step)
            if step.line in losses:
                await self._engine.wait_processed()
                await self._engine.disconnect(refusal=losses[step.line])
                self._awaits_engine = True

    # Frames

    async def _send(self, frame: RecordedFrame, call: CarrierCall) -> None:
        sender: CarrierCall | SimulatedEngine = call if frame.peer == "carrier" else self._engine
        await self._switch_to(sender)
        await self._admit_for(frame)
        if _is(frame, "event", "stop"):
            self._stream_is_over = True
            await self._note_end(call)
        assert not isinstance(frame.content, AudioChecksum)  # recorded for sent audio only
        await sender.send(frame.content)

    async def _admit_for(self, frame: RecordedFrame) -> None:
        """Accept the connection that the first frame of an engine's session needs, whichever side sent it."""
        if frame.peer == "engine" and self._awaits_engine:
            self._awaits_engine = False
            self._engine.admit()
            await self._engine.wait_connected(self._timeout)

    async def _switch_to(self, sender: CarrierCall | SimulatedEngine | None) -> None:
        if self._last_sender is not None and self._last_sender is not sender:
            await self._last_sender.wait_processed()
        self._last_sender = sender

    async def _note_end(self, call: CarrierCall) -> None:
        """Note who ends the call. If the gateway ended the recorded call, give it time to do so again."""
        if self._recording.end_reason in GATEWAY_ENDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.ended.wait(), self._timeout)
        self._gateway_hung_up = call.ended.is_set()

    async def _wait_for(self, frame: RecordedFrame, call: CarrierCall) -> None:
        await self._admit_for(frame)
        expected = self._expected[frame.peer]
        if isinstance(frame.content, AudioChecksum):
            silent = frame.peer == "engine" and frame.content == SILENCE
            expected.audio_bytes += 0 if silent else frame.content.size
        else:
            expected.messages += 1
            self._has_settings |= _is(frame, "type", "Settings")
        if expected.given_up:
            return  # one frame is missing already; the comparison reports it
        sink = call.sink if frame.peer == "carrier" else self._engine.sink
        expected.given_up = not await sink.wait_for(
            messages=expected.messages, audio_bytes=expected.audio_bytes, timeout=self._timeout
        )

    # Notes

    async def _repeat(self, note: RecordedNote, call: CarrierCall) -> None:
        """Repeat what was not a frame of carrier or engine."""
        await self._switch_to(None)
        match note.name:
            case "engine":
                self._awaits_engine = True
            case "engine lost":
                await self._lose_engine(refused=note.content["refused"] is True)
            case "reply":
                self._replies.append(await self._fetch_reply(note.content["said"]))
            case "late memory":
                self._internals.memory_arrives()
            case "action" if self._has_settings and (live := self._internals.live_call()):
                _act(live, note)  # before the settings, it is part of the greeting
            case "stream lost":
                if not self._stream_is_over:
                    await call.lose_stream()
            case "stream":
                self._stream_is_over = False
                with contextlib.suppress(SettingsError):  # the comparison reports what is missing
                    await self._carrier.resume_call(call, self._recording.stream_id, self._gateway)

    async def _lose_engine(self, *, refused: bool) -> None:
        if self._awaits_engine:
            await self._engine.refuse(401 if refused else 503, self._timeout)
        else:
            await self._engine.disconnect()

    async def _fetch_reply(self, said: str) -> str:
        """Ask for an answer to these words, as the engine did."""
        request = {"model": "voice-gateway", "messages": [{"role": "user", "content": said}]}
        headers = self._engine.endpoint.get("headers", {})
        url = self._gateway.local("/v1/chat/completions")
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=self._timeout) as http:
                answer = (await http.post(url, json=request, headers=headers)).json()
            return str(answer["choices"][0]["message"]["content"] or "")
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return ""

    async def _finish(self, call: CarrierCall) -> None:
        """End the call as recorded, including the carrier's status callback."""
        if self._stream_is_over:
            await call.wait_processed()
        else:
            await self._note_end(call)
        if self._recording.end_reason not in (*GATEWAY_ENDS, EndReason.STREAM_LOST):
            await self._carrier.hang_up(call, self._gateway)


def _act(call: Call, note: RecordedNote) -> None:
    """Repeat what a tool or an operator did."""
    match note.content:
        case {"do": "say", "text": str(text)}:
            call.actions.say(text)
        case {"do": "operator says", "text": str(text)}:
            call.operator_says(text)
        case {"do": "hang up"}:
            call.actions.hang_up()
        case {"do": "transfer", "target": str(target)}:
            call.actions.transfer(target)
        case {"do": "identify", "caller": str(caller)}:
            call.actions.identity.identified_as(caller)
        case {"do": "end", "reason": str(reason)}:
            call.end(EndReason(reason))
        case {"do": "answered by", "report": str(report), "message": str(message)}:
            call.answered_by(AnsweredBy(report), message)


def _has_engine_notes(recording: Recording) -> bool:
    return any(isinstance(step, RecordedNote) and step.name == "engine" for step in recording.steps)


def _losses(recording: Recording) -> dict[int, int]:
    """
    Lines after which the engine's connection is lost, with the HTTP status that refuses further handshakes (0: none).

    For recordings of earlier versions, which have no notes about the engine. The loss precedes a second conversation,
    or ends a call whose end reason says so. Line 0 stands for an engine that was never reachable.
    """
    if _has_engine_notes(recording):
        return {}
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
