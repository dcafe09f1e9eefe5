"""The engine connection over an engine that the test controls."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.agents import Agent
from gateway.audio import SILENCE_FRAME
from gateway.calls.agent_context import AgentContext
from gateway.calls.caller_audio import IncomingAudio
from gateway.calls.engine_connection import STALLED_BYTES, CallEngines, EngineConnection, EngineTimeouts
from gateway.calls.monitoring import CallMonitor
from gateway.calls.recorder import NoRecorder
from gateway.engines.early_connection import NoEarlyConnection
from gateway.engines.failover import GuardedEngine
from gateway.engines.interface import (
    AgentSettings,
    EngineEvent,
    EngineEvents,
    EngineSession,
    LatencyReported,
    LoadSettings,
    SettingsApplied,
    VoiceEngine,
)
from gateway.errors import EngineError, EngineRefused, EngineUnavailable
from gateway.history.live_events import EventPublisher
from tests.fakes.call_parts import make_transcript

pytestmark = pytest.mark.virtual_time

AUDIO = bytes(range(160))
TIMEOUTS = EngineTimeouts()


class FakeSession:
    """Keeps what it is given."""

    def __init__(self, events: EngineEvents, settings: AgentSettings) -> None:
        self.events = events
        self.settings = settings
        self.buffered_bytes = 0
        self.audio: list[bytes] = []
        self.said: list[str | tuple[str, str]] = []
        self.is_closed = False

    def send_audio(self, audio: bytes) -> None:
        self.audio.append(audio)

    send_silence = send_audio

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self.said.append((text, "interrupts") if interrupt else text)

    def update_instructions(self, text: str) -> None:
        self.said.append(f"added: {text}")

    def replace_settings(self, settings: AgentSettings) -> None:
        self.settings = settings

    def close(self) -> None:
        self.is_closed = True

    # The engine's side

    def is_ready(self) -> None:
        self.events.on_engine_event(SettingsApplied())

    def is_lost(self, error: EngineError | None = None) -> None:
        self.events.on_engine_closed(error or EngineUnavailable("the engine closed the connection"))


class FakeEngine:
    """Opens sessions that are ready at once; or not, or refuses to."""

    name = "fake"
    has_llm = True

    def __init__(self) -> None:
        self.sessions: list[FakeSession] = []
        self.attempts: list[float] = []
        self.error: EngineError | None = None
        self.handshake_seconds = 0.0
        self.applies_settings = True

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        self.attempts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.handshake_seconds)
        if self.error is not None:
            raise self.error
        session = FakeSession(events, await load_settings())
        self.sessions.append(session)
        if self.applies_settings:
            asyncio.get_running_loop().call_soon(session.is_ready)
        return cast(EngineSession, session)

    @property
    def session(self) -> FakeSession:
        return self.sessions[-1]


class FakeContext:
    """The agent's context, without memory."""

    memory_event = {"outcome": "off"}
    recorded_memory: dict[str, Any] = {}

    def __init__(self) -> None:
        self.prompt = "You are Maya."
        self.late = ""
        self.waits: list[float] = []

    async def load_settings(self, seconds: float) -> AgentSettings:
        self.waits.append(seconds)
        return self.settings()

    def settings(self) -> AgentSettings:
        return AgentSettings(Agent("maya", ""), self.prompt)

    def late_memory(self) -> str:
        late, self.late = self.late, ""
        return late


class FakeCall:
    """The call that the connection belongs to."""

    def __init__(self) -> None:
        self.recorder = NoRecorder()
        self.caller_audio = IncomingAudio(CallMonitor())
        self.transcript = make_transcript()
        self.events: list[EngineEvent] = []
        self.heard: list[bytes] = []

    def on_agent_audio(self, audio: bytes) -> None:
        self.heard.append(audio)

    def on_engine_event(self, event: EngineEvent) -> None:
        self.events.append(event)


class Stage:
    def __init__(self, *, resumed: bool = False, timeouts: EngineTimeouts = TIMEOUTS, rings: bool = False) -> None:
        self.engine, self.context, self.call = FakeEngine(), FakeContext(), FakeCall()
        made, agent = [GuardedEngine(cast(VoiceEngine, self.engine))], Agent("maya", "")
        engines = CallEngines(lambda agent: made, timeouts)
        early = engines.connect_early(agent) if rings else NoEarlyConnection()
        self.connection = EngineConnection(
            self.call,
            engines.config(agent, early),
            cast(AgentContext, self.context),
            EventPublisher().call("", "", "", "", kept=False),
            logging.LoggerAdapter(logging.getLogger(__name__)),
            sorry="Sorry.",
            resumed=resumed,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        """Runs the connection; its first session is ready."""
        task = asyncio.create_task(self.connection.run())
        await asyncio.sleep(0.01)
        yield task
        task.cancel()
        await asyncio.wait({task})

    async def reconnects(self) -> None:
        self.engine.session.is_lost()
        await asyncio.sleep(TIMEOUTS.retry_pauses[0] + 0.01)

    async def ticks(self, seconds: float) -> None:
        """As the call manager does."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(0.1)
            self.connection.tick(loop.time())
            self.connection.check(loop.time())


@pytest.fixture
async def stage() -> Stage:
    return Stage()


# Connecting


async def test_audio_waits_for_a_ready_session(stage: Stage) -> None:
    stage.engine.applies_settings = False
    async with stage.running():
        stage.call.caller_audio.pass_on(AUDIO)
        assert stage.engine.session.audio == []
        stage.engine.session.is_ready()
        stage.call.caller_audio.pass_on(AUDIO)
        assert stage.engine.session.audio == [AUDIO, AUDIO]
        assert stage.engine.session.said == []
        assert stage.call.events == [SettingsApplied()]


async def test_only_the_last_ten_seconds_wait(stage: Stage) -> None:
    for number in range(600):
        stage.call.caller_audio.pass_on(bytes([number % 256]) * 160)
    async with stage.running():
        assert len(stage.engine.session.audio) == 500
        assert stage.engine.session.audio[0] == bytes([100]) * 160


async def test_handshake_shortens_the_wait_for_memory(stage: Stage) -> None:
    """The settings have to leave within a fixed time after the call's start."""
    stage.engine.handshake_seconds = 0.05
    async with stage.running():
        await asyncio.sleep(0.05)
        assert stage.context.waits == [pytest.approx(TIMEOUTS.memory - 0.05)]


async def test_agent_audio_reaches_the_call(stage: Stage) -> None:
    async with stage.running():
        stage.engine.session.events.on_agent_audio(AUDIO)
        assert stage.call.heard == [AUDIO]


async def test_session_without_settings_is_replaced(stage: Stage) -> None:
    stage.engine.applies_settings = False
    async with stage.running():
        await asyncio.sleep(TIMEOUTS.settings + 1)
        assert len(stage.engine.sessions) == 2
        assert stage.engine.sessions[0].is_closed


async def test_end_closes_the_session(stage: Stage) -> None:
    async with stage.running():
        session = stage.engine.session
    assert session.is_closed
    assert stage.connection.session is None


async def test_connection_of_the_ringing_phone_is_used() -> None:
    """Its engine may apply the settings before the call has the session, as one on this machine does."""
    stage = Stage(rings=True)
    await asyncio.sleep(1)
    async with stage.running():
        assert len(stage.engine.attempts) == len(stage.engine.sessions) == 1
        assert stage.connection.ready
        await stage.reconnects()
        assert len(stage.engine.sessions) == 2


# Reconnecting


async def test_second_session_says_sorry(stage: Stage) -> None:
    async with stage.running():
        await stage.reconnects()
        assert len(stage.engine.sessions) == 2
        assert stage.engine.sessions[0].is_closed
        assert stage.engine.session.said == ["Sorry."]


async def test_only_the_last_second_waits_for_a_second_session(stage: Stage) -> None:
    async with stage.running():
        stage.engine.session.is_lost()
        await asyncio.sleep(0.01)
        for _ in range(100):
            stage.call.caller_audio.pass_on(AUDIO)
        await asyncio.sleep(1)
        assert len(stage.engine.session.audio) == 50


async def test_session_that_is_ready_twice_says_nothing(stage: Stage) -> None:
    async with stage.running():
        stage.engine.session.is_ready()
        assert stage.engine.session.said == []


async def test_resumed_call_says_sorry() -> None:
    stage = Stage(resumed=True)
    async with stage.running():
        assert stage.engine.session.said == ["Sorry."]


async def test_attempts_pause_longer_and_longer_and_end(stage: Stage) -> None:
    stage.engine.error = EngineUnavailable("the engine can't be reached")
    with pytest.raises(EngineUnavailable):
        await stage.connection.run()
    pauses = [later - earlier for earlier, later in zip(stage.engine.attempts, stage.engine.attempts[1:], strict=False)]
    assert pauses == pytest.approx(TIMEOUTS.retry_pauses)


async def test_slow_attempts_end_sooner() -> None:
    """Each attempt may take seconds, and the caller hears silence."""
    stage = Stage()
    stage.engine.error, stage.engine.handshake_seconds = EngineUnavailable("the engine can't be reached"), 5.0
    with pytest.raises(EngineUnavailable):
        await stage.connection.run()
    assert len(stage.engine.attempts) == 3


async def test_refused_session_is_not_tried_again(stage: Stage) -> None:
    stage.engine.error = EngineRefused("a wrong key")
    with pytest.raises(EngineRefused):
        await stage.connection.run()
    assert len(stage.engine.attempts) == 1


async def test_session_that_is_refused_later_ends_the_connection(stage: Stage) -> None:
    async with stage.running() as task:
        stage.engine.session.is_lost(EngineRefused("the engine gave up: INVALID_SETTINGS"))
        await asyncio.wait({task})
        assert isinstance(task.exception(), EngineRefused)


async def test_steady_session_resets_the_pauses() -> None:
    stage = Stage(timeouts=replace(TIMEOUTS, retry_pauses=(0.2,)))
    async with stage.running() as task:
        for _ in range(3):
            await asyncio.sleep(TIMEOUTS.steady + 1)
            await stage.reconnects()
        assert len(stage.engine.sessions) == 4
        await stage.reconnects()
        assert task.done()


# Commands


async def test_text_waits_for_a_session(stage: Stage) -> None:
    stage.connection.say("One moment.")
    async with stage.running():
        stage.connection.say("Here I am.")
        stage.connection.say("Stop.", interrupt=True)
        assert stage.engine.session.said == ["One moment.", "Here I am.", ("Stop.", "interrupts")]


async def test_settings_that_changed_while_connecting_are_replaced(stage: Stage) -> None:
    stage.engine.applies_settings = False
    async with stage.running():
        stage.context.prompt = "You are Max."
        stage.connection.replace_settings()
        assert stage.engine.session.settings.prompt == "You are Maya."
        stage.engine.session.is_ready()
        assert stage.engine.session.settings.prompt == "You are Max."


async def test_late_memory_is_added_once(stage: Stage) -> None:
    async with stage.running():
        stage.context.late = "The caller is Anna."
        stage.connection.send_late_memory()
        stage.connection.send_late_memory()
        assert stage.engine.session.said == ["added: The caller is Anna."]


async def test_flush_waits_for_the_buffered_audio(stage: Stage) -> None:
    stage.call.caller_audio.pass_on(AUDIO)
    flushing = asyncio.create_task(stage.connection.flush(60))
    await asyncio.sleep(1)
    assert not flushing.done()
    async with stage.running():
        assert await flushing
        assert stage.engine.session.audio == [AUDIO]


async def test_flush_gives_up(stage: Stage) -> None:
    stage.call.caller_audio.pass_on(AUDIO)
    assert not await stage.connection.flush(2)


async def test_nothing_to_flush_takes_no_time(stage: Stage) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert not await stage.connection.flush(3600)
    assert loop.time() == began


# The clock


async def test_pause_is_filled_in_real_time(stage: Stage) -> None:
    async with stage.running():
        stage.call.caller_audio.pass_on(AUDIO)
        stage.engine.session.audio.clear()
        await stage.ticks(0.1)
        assert stage.engine.session.audio == []
        await stage.ticks(0.9)
        assert set(stage.engine.session.audio) == {SILENCE_FRAME}
        assert 45 <= len(stage.engine.session.audio) <= 55


async def test_caller_who_is_ignored_is_replaced_by_silence(stage: Stage) -> None:
    """Also in a session that replaces the present one."""
    async with stage.running():
        stage.connection.ignore_caller()
        for session in (1, 2):
            stage.engine.session.audio.clear()
            for _ in range(10):
                stage.call.caller_audio.pass_on(AUDIO)
                await stage.ticks(0.1)
            assert set(stage.engine.session.audio) == {SILENCE_FRAME}
            if session == 1:
                stage.engine.session.events.on_engine_closed(EngineUnavailable("gone"))
                await stage.ticks(5)
    assert len(stage.engine.sessions) == 2


async def test_session_that_stops_answering_is_replaced(stage: Stage) -> None:
    async with stage.running():
        first = stage.engine.session
        stage.connection.answer_due_since = asyncio.get_running_loop().time()
        await stage.ticks(5)
        first.events.on_engine_event(LatencyReported())
        await stage.ticks(TIMEOUTS.answer - 1)
        assert not first.is_closed
        await stage.ticks(2)
        assert first.is_closed
        assert len(stage.engine.sessions) == 2


async def test_silent_session_is_fine_while_no_answer_is_due(stage: Stage) -> None:
    async with stage.running():
        await stage.ticks(10 * TIMEOUTS.answer)
        assert not stage.engine.session.is_closed


async def test_session_that_stops_reading_is_replaced(stage: Stage) -> None:
    async with stage.running():
        first = stage.engine.session
        first.buffered_bytes = STALLED_BYTES + 1
        await stage.ticks(1)
        assert first.is_closed
