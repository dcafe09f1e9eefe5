"""How a call ends by the clock, and that it ends once. Conversations are tested with whole calls."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import cast

import pytest

from gateway.agents import Agent
from gateway.calls.call import MEDIA_SILENCE_SECONDS, Call
from gateway.calls.engine_connection import STALLED_BYTES, EngineConfig
from gateway.engines.interface import EngineEvents, EngineSession, LoadSettings, VoiceEngine
from gateway.errors import CarrierRefused
from gateway.session import EndReason, VoiceSession
from gateway.telephony.media_stream import MediaStream


class Carrier:
    """A carrier link that nobody is behind."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.closed = 0

    def finish_audio(self) -> None: ...

    def play_filler(self, audio: bytes) -> None: ...

    def close(self, code: int = 1000) -> None:
        self.closed += 1


class AbsentEngine:
    """Never answers."""

    name = "absent"

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        await asyncio.Event().wait()
        raise AssertionError


class Line:
    """A call whose engine never answers, running."""

    def __init__(self, *, refuses_to_hang_up: bool = False) -> None:
        self.carrier = Carrier()
        self.hangups = 0
        self.session = VoiceSession(agent="maya", caller="+12025550143", carrier="twilio")
        self._refuses = refuses_to_hang_up
        self.call = Call(
            self.session,
            Agent("maya", "You are Maya."),
            cast(MediaStream, self.carrier),
            EngineConfig(cast(VoiceEngine, AbsentEngine())),
            line=self,
            apology=b"",
        )
        self.running = asyncio.create_task(self.call.run())

    stop_ends_call = True

    async def transfer(self, target: str) -> None:
        raise CarrierRefused("twilio", "transfer", 400)

    async def hang_up(self) -> None:
        self.hangups += 1
        if self._refuses:
            raise CarrierRefused("twilio", "hang-up", 500)

    async def ends(self) -> EndReason | None:
        async with asyncio.timeout(60):
            await self.running
        return self.session.end_reason


@pytest.fixture
async def line() -> AsyncIterator[Line]:
    line = Line()
    yield line
    line.running.cancel()


async def test_silent_carrier_ends_the_call(line: Line) -> None:
    now = asyncio.get_running_loop().time()
    line.call.tick(now + MEDIA_SILENCE_SECONDS - 1)
    assert not line.running.done()
    line.call.tick(now + MEDIA_SILENCE_SECONDS + 1)
    assert await line.ends() is EndReason.MEDIA_SILENT
    assert line.hangups == 1


async def test_any_sign_of_the_caller_counts(line: Line) -> None:
    now = asyncio.get_running_loop().time()
    line.call.on_digit("5")
    line.call.on_mark("unknown")
    line.call.on_caller_audio(b"\xff" * 160)
    line.call.tick(now + MEDIA_SILENCE_SECONDS)
    assert not line.running.done()


async def test_carrier_that_stops_reading_ends_the_call(line: Line) -> None:
    line.carrier.buffered_bytes = STALLED_BYTES + 1
    line.call.tick(asyncio.get_running_loop().time())
    assert await line.ends() is EndReason.CARRIER_STALLED


async def test_first_reason_counts(line: Line) -> None:
    line.call.on_stream_stopped()
    line.call.on_stream_lost()
    line.call.end(EndReason.SHUTDOWN)
    assert await line.ends() is EndReason.CALLER_HUNG_UP
    assert line.hangups == 0
    assert line.carrier.closed == 1


async def test_call_is_as_long_as_the_caller_was_there(line: Line) -> None:
    """What is done after the hangup takes a while, and is not part of it."""
    line.call.on_stream_stopped()
    hung_up_at = datetime.now(UTC)
    await line.ends()
    assert line.session.ended_at is not None
    assert line.session.ended_at <= hung_up_at


async def test_lost_stream_is_left_to_the_desk(line: Line) -> None:
    line.call.on_stream_lost()
    assert await line.ends() is EndReason.STREAM_LOST
    assert line.call.may_go_on
    assert line.hangups == 0


async def test_hangup_explains_a_lost_stream(line: Line) -> None:
    line.call.on_stream_lost()
    line.call.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
    assert await line.ends() is EndReason.CALLER_HUNG_UP
    assert not line.call.may_go_on


async def test_refused_hangup_is_logged_and_over(caplog: pytest.LogCaptureFixture) -> None:
    line = Line(refuses_to_hang_up=True)
    line.call.end(EndReason.AGENT_HUNG_UP)
    assert await line.ends() is EndReason.AGENT_HUNG_UP
    assert "call could not be hung up" in caplog.messages
