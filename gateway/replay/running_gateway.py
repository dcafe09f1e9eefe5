"""Recorded calls into a gateway that is already running: as carrier and engine, or as the caller alone."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from gateway.audio import seconds_of
from gateway.errors import RecordingError
from gateway.replay.carrier_player import Carrier, CarrierCall, GatewayAddress
from gateway.replay.engine_player import EnginePlayer
from gateway.replay.player import Outcome, Player
from gateway.replay.recording import RecordedMessage, RecordedSound, RecordedStep, Recording
from gateway.replay.sink import ReceivedRequest
from gateway.replay.telnyx_player import TelnyxPlayer
from gateway.replay.twilio_player import TwilioPlayer
from gateway.settings import Secret


@dataclass(frozen=True)
class RunningGateway:
    """A gateway somebody else started, and the Twilio account it works for."""

    address: GatewayAddress
    account_sid: str
    auth_token: Secret

    async def play(self, recording: Recording, *, engine_port: int, speed: float) -> Outcome:
        """As carrier and engine: everything at both can be compared."""
        async with httpx.AsyncClient(trust_env=False) as http, EnginePlayer(engine_port) as engine:
            player = Player(recording, self._twilio(recording, http), engine, self.address, speed=speed)
            return await player.play()

    async def speak(self, recording: Recording, *, speed: float) -> "Heard":
        """As the caller alone: the gateway's own engine answers, so there is nothing to compare."""
        async with httpx.AsyncClient(trust_env=False) as http:
            carrier = self._twilio(recording, http)
            call = await carrier.place(recording, self.address)
            try:
                await _speak(recording, carrier, call, self.address, speed)
            finally:
                await call.close()
            return Heard.of(call.inbox.arrivals)

    def _twilio(self, recording: Recording, http: httpx.AsyncClient) -> TwilioPlayer:
        if recording.header.carrier == TelnyxPlayer.name:
            raise RecordingError(
                f"{recording.path} is a Telnyx call, and only Telnyx can sign for a running gateway; leave out --url"
            )
        return TwilioPlayer(http, account_sid=self.account_sid, auth_token=self.auth_token)


@dataclass(frozen=True)
class Heard:
    """What a caller got back."""

    seconds: float
    marks: int
    clears: int

    @classmethod
    def of(cls, arrivals: list[ReceivedRequest]) -> "Heard":
        sounds = (arrival.content.audio for arrival in arrivals if isinstance(arrival.content, RecordedSound))
        events = [
            arrival.content.fields.get("event") for arrival in arrivals if isinstance(arrival.content, RecordedMessage)
        ]
        return cls(seconds_of(sum(map(len, sounds))), events.count("mark"), events.count("clear"))


async def _speak(
    recording: Recording, carrier: Carrier, call: CarrierCall, gateway: GatewayAddress, speed: float
) -> None:
    clock = asyncio.get_running_loop().time
    began = clock()
    echoed = 0
    for step in _callers_frames(recording):
        await asyncio.sleep(max(0.0, began + step.at / speed - clock()) if speed else 0)
        if call.ended.is_set():
            return
        marks = [arrival.content for arrival in call.inbox.arrivals if _is_mark(arrival)]
        for mark in marks[echoed:]:
            await call.send(mark)  # a mark comes back as it was sent
        echoed = len(marks)
        await call.send(step.content)
    await carrier.hang_up(call, recording.header, gateway)


def _callers_frames(recording: Recording) -> Iterator[RecordedStep]:
    """What the caller did. Marks are left out: they answer what a gateway sends."""
    for step in recording.steps:
        if step.peer == "carrier" and step.direction == "from":
            if not isinstance(step.content, RecordedMessage) or step.content.fields.get("event") != "mark":
                yield step


def _is_mark(arrival: ReceivedRequest) -> bool:
    return isinstance(arrival.content, RecordedMessage) and arrival.content.fields.get("event") == "mark"
