"""
Plays a recorded call: the player is the carrier and the voice engine, the gateway between them is real.

The recorded frames are walked in order. What came from a peer is sent; what went to a peer is waited for. Before the
other peer sends, the gateway has dealt with what the first one sent. So the order of things is the recorded one at any
speed.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.replay.carrier_player import Carrier, CarrierCall, GatewayAddress
from gateway.replay.engine_player import EnginePlayer
from gateway.replay.recording import Peer, RecordedMessage, RecordedStep, Recording, SoundPrint
from gateway.replay.sink import ReceivedRequest
from gateway.session import EndReason

PATIENCE: Final = 10.0
"""How long something recorded is waited for. The gateway itself tries 7 s to get a lost engine back."""

SILENCE: Final = SoundPrint(FRAME_BYTES, zlib.crc32(SILENCE_FRAME))

_ENGINE_GONE: Final = {EndReason.ENGINE_LOST: 503, EndReason.ENGINE_REFUSED: 401}
GATEWAY_ENDS: Final = frozenset({EndReason.AGENT_HUNG_UP, *_ENGINE_GONE})

Watch = Callable[[RecordedStep], None]


@dataclass(frozen=True)
class Outcome:
    """What came out of the gateway while a call was played. Times are seconds since `start`."""

    to_carrier: tuple[ReceivedRequest, ...]
    to_engine: tuple[ReceivedRequest, ...]
    silent_frames: int
    """To the engine; those that the gateway makes for a pausing carrier are among them."""
    gateway_hung_up: bool
    """Whether the gateway ended the call, before the caller did."""
    seconds: float


@dataclass
class _Expected:
    """How much a peer should have received by now."""

    messages: int = 0
    sound_bytes: int = 0
    given_up: bool = False


class Player:
    """Plays one recording, once. Speed 1 keeps the recorded times, 0 waits for nothing but the gateway."""

    def __init__(
        self,
        recording: Recording,
        carrier: Carrier,
        engine: EnginePlayer,
        gateway: GatewayAddress,
        *,
        speed: float = 0.0,
        patience: float = PATIENCE,
        watch: Watch | None = None,
    ) -> None:
        self._recording = recording
        self._carrier = carrier
        self._engine = engine
        self._gateway = gateway
        self._speed = speed
        self._patience = patience
        self._watch = watch
        self._expected: dict[Peer, _Expected] = {"carrier": _Expected(), "engine": _Expected()}
        self._last_sender: CarrierCall | EnginePlayer | None = None
        self._engine_due = True  # the gateway has yet to connect to it
        self._gateway_hung_up = False
        self._began = 0.0

    async def play(self) -> Outcome:
        """Play the call to its end. SettingsError when the gateway does not take it."""
        losses = _losses(self._recording)
        self._engine.begin_call(refusal=losses.get(0, 0))
        call = await self._carrier.place(self._recording, self._gateway)
        self._began = asyncio.get_running_loop().time()
        try:
            await self._walk(call, losses)
            await self._finish(call)
        finally:
            await call.close()
        return Outcome(
            to_carrier=self._since_start(call.inbox.arrivals),
            to_engine=self._since_start(self._engine.inbox.arrivals),
            silent_frames=self._engine.inbox.silent_frames,
            gateway_hung_up=self._gateway_hung_up,
            seconds=asyncio.get_running_loop().time() - self._began,
        )

    async def _walk(self, call: CarrierCall, losses: Mapping[int, int]) -> None:
        for step in self._recording.steps:
            await self._keep_time(step)
            if step.direction == "from":
                await self._send(step, call)
            else:
                await self._wait_for(step, call)
            if self._watch is not None:
                self._watch(step)
            if step.line in losses:
                await self._engine.settled()
                await self._engine.hang_up(refusal=losses[step.line])
                self._engine_due = True

    async def _keep_time(self, step: RecordedStep) -> None:
        if self._speed:
            due = self._began + step.at / self._speed
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    # What a peer sends

    async def _send(self, step: RecordedStep, call: CarrierCall) -> None:
        sender: CarrierCall | EnginePlayer = call if step.peer == "carrier" else self._engine
        if self._last_sender is not None and self._last_sender is not sender:
            await self._last_sender.settled()
        self._last_sender = sender
        if step.peer == "engine" and self._engine_due:
            self._engine_due = False
            await self._engine.connected(self._patience)
        if _is(step, "event", "stop"):
            await self._note_end(call)
        await sender.send(step.content)

    async def _note_end(self, call: CarrierCall) -> None:
        """The caller is about to go: has the gateway ended the call? Where it did when recorded, it gets the time."""
        if self._recording.end_reason in GATEWAY_ENDS:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(call.ended.wait(), self._patience)
        self._gateway_hung_up = call.ended.is_set()

    # What a peer receives

    async def _wait_for(self, step: RecordedStep, call: CarrierCall) -> None:
        expected = self._expected[step.peer]
        if isinstance(step.content, SoundPrint):
            silent = step.peer == "engine" and step.content == SILENCE
            expected.sound_bytes += 0 if silent else step.content.size
        else:
            expected.messages += 1
        if expected.given_up:
            return  # the comparison will tell; waiting for each frame after a missing one would take for ever
        inbox = call.inbox if step.peer == "carrier" else self._engine.inbox
        came = await inbox.holds(messages=expected.messages, sound_bytes=expected.sound_bytes, patience=self._patience)
        expected.given_up = not came

    # The end

    async def _finish(self, call: CarrierCall) -> None:
        """End the call the recorded way, and tell of it as carriers do."""
        if any(step.direction == "from" and _is(step, "event", "stop") for step in self._recording.steps):
            await call.settled()
        else:
            await self._note_end(call)
        if self._recording.end_reason not in (*GATEWAY_ENDS, EndReason.STREAM_LOST):
            await self._carrier.hang_up(call, self._recording.header, self._gateway)

    def _since_start(self, arrivals: list[ReceivedRequest]) -> tuple[ReceivedRequest, ...]:
        return tuple(replace(arrival, at=arrival.at - self._began) for arrival in arrivals)


def _losses(recording: Recording) -> dict[int, int]:
    """
    After which lines the engine's connection is lost, with the status that meets the next handshakes; 0 for none.

    The loss itself is no frame. It stands before a second conversation, and at the end of a call that ended for it;
    line 0 is an engine that was never there.
    """
    losses: dict[int, int] = {}
    last, configured = 0, False
    for step in recording.steps:
        if step.peer != "engine":
            continue
        if configured and (_is(step, "type", "Welcome") or _is(step, "type", "Settings")):
            losses[last] = 0
            configured = False
        configured |= _is(step, "type", "Settings")
        last = step.line
    if recording.end_reason in _ENGINE_GONE:
        losses[last] = _ENGINE_GONE[recording.end_reason]
    return losses


def _is(step: RecordedStep, name: str, value: str) -> bool:
    return isinstance(step.content, RecordedMessage) and step.content.fields.get(name) == value
