"""
Plays a recorded call: the player is the carrier and the voice engine, the gateway between them is real.

The recorded frames are walked in order. What came from a peer is sent; what went to a peer is waited for. Before the
other peer sends, the gateway has dealt with what the first one sent. So the order of things is the recorded one at any
speed.
"""

import asyncio
import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.replay.carrier_player import Carrier, CarrierCall, GatewayAddress
from gateway.replay.engine_player import EnginePlayer
from gateway.replay.inbox import Arrival
from gateway.replay.recording import Message, Peer, Recording, SoundPrint, Step

PATIENCE: Final = 10.0
"""How long something recorded is waited for. The gateway itself tries 7 s to get a lost engine back."""

SILENCE: Final = SoundPrint(FRAME_BYTES, zlib.crc32(SILENCE_FRAME))

_ENGINE_GONE: Final = {"voice engine lost": 503, "voice engine refused": 401}
_GATEWAY_ENDS: Final = frozenset({"agent hung up", *_ENGINE_GONE})

Watch = Callable[[Step], None]


@dataclass(frozen=True)
class Outcome:
    """What came out of the gateway while a call was played. Times are seconds since `start`."""

    to_carrier: tuple[Arrival, ...]
    to_engine: tuple[Arrival, ...]
    silent_frames: int
    """To the engine; those that the gateway makes for a pausing carrier are among them."""
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
        self._configured = False
        self._began = 0.0

    async def play(self) -> Outcome:
        """Play the call to its end. SettingsError when the gateway does not take it."""
        self._engine.begin_call()
        call = await self._carrier.place(self._recording, self._gateway)
        self._began = asyncio.get_running_loop().time()
        try:
            await self._walk(call)
            await self._finish(call)
        finally:
            await call.close()
        return Outcome(
            to_carrier=self._since_start(call.inbox.arrivals),
            to_engine=self._since_start(self._engine.inbox.arrivals),
            silent_frames=self._engine.inbox.silent_frames,
            seconds=asyncio.get_running_loop().time() - self._began,
        )

    async def _walk(self, call: CarrierCall) -> None:
        refusal = _ENGINE_GONE.get(self._recording.end_reason, 0)
        last_of_engine = max((step.line for step in self._recording.steps if step.peer == "engine"), default=0)
        if refusal and not last_of_engine:
            await self._engine.hang_up(refusal=refusal)
        for step in self._recording.steps:
            await self._keep_time(step)
            if step.direction == "from":
                await self._send(step, call)
            else:
                await self._wait_for(step, call)
            if self._watch is not None:
                self._watch(step)
            if refusal and step.line == last_of_engine:
                await self._engine.hang_up(refusal=refusal)

    async def _keep_time(self, step: Step) -> None:
        if self._speed:
            due = self._began + step.at / self._speed
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    # What a peer sends

    async def _send(self, step: Step, call: CarrierCall) -> None:
        sender: CarrierCall | EnginePlayer = call if step.peer == "carrier" else self._engine
        if self._last_sender is not None and self._last_sender is not sender:
            await self._last_sender.settled()
        self._last_sender = sender
        if step.peer == "engine":
            await self._follow_conversation(step)
        elif _is(step, "event", "stop") and self._recording.end_reason in _GATEWAY_ENDS:
            await self._ended_by_gateway(call)
        await sender.send(step.content)

    async def _follow_conversation(self, step: Step) -> None:
        """A second Welcome is a second connection: the first was lost."""
        if _is(step, "type", "Welcome") and self._configured:
            self._configured = False
            await self._engine.hang_up()
        await self._engine.connected(self._patience)

    async def _ended_by_gateway(self, call: CarrierCall) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(call.ended.wait(), self._patience)

    # What a peer receives

    async def _wait_for(self, step: Step, call: CarrierCall) -> None:
        expected = self._expected[step.peer]
        if isinstance(step.content, SoundPrint):
            silent = step.peer == "engine" and step.content == SILENCE
            expected.sound_bytes += 0 if silent else step.content.size
        else:
            expected.messages += 1
            self._configured |= _is(step, "type", "Settings")
        if expected.given_up:
            return  # the comparison will tell; waiting for each frame after a missing one would take for ever
        inbox = call.inbox if step.peer == "carrier" else self._engine.inbox
        came = await inbox.holds(messages=expected.messages, sound_bytes=expected.sound_bytes, patience=self._patience)
        expected.given_up = not came

    # The end

    async def _finish(self, call: CarrierCall) -> None:
        """End the call the recorded way, where no recorded frame did."""
        if any(step.direction == "from" and _is(step, "event", "stop") for step in self._recording.steps):
            await call.settled()
        elif self._recording.end_reason in _GATEWAY_ENDS:
            await self._ended_by_gateway(call)
        elif self._recording.end_reason != "media stream lost":
            await self._carrier.tell_hangup(call, self._recording.header, self._gateway)

    def _since_start(self, arrivals: list[Arrival]) -> tuple[Arrival, ...]:
        return tuple(replace(arrival, at=arrival.at - self._began) for arrival in arrivals)


def _is(step: Step, name: str, value: str) -> bool:
    return isinstance(step.content, Message) and step.content.fields.get(name) == value
