"""Connections that wait for the media of a call, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from gateway.agents import Agent
from gateway.calls.engine_connection import CallEngines, EngineTimeouts
from gateway.calls.recorder import NoRecorder
from gateway.engines.early_connection import EarlyConnection, NoEarlyConnection
from gateway.engines.failover import BreakerState, GuardedEngine
from gateway.engines.interface import AgentSettings, EngineEvent, EngineEvents, EngineGreeted, NoEngine, VoiceEngine
from gateway.errors import EngineError, EngineRefused, EngineUnavailable

pytestmark = pytest.mark.virtual_time

SETTINGS = AgentSettings(Agent("maya", ""), "You are Maya.")
WAIT = 8.0


class SlowEngine:
    """Connects within 0.3 s, greets, and waits for its settings; or fails."""

    has_llm = True
    is_ready = True

    def __init__(self, name: str = "slow", error: EngineError | None = None) -> None:
        self.name = name
        self.open = 0
        self.events: EngineEvents
        self._error = error

    async def connect(self, load_settings: Callable[[], Awaitable[AgentSettings]], events: EngineEvents) -> Any:
        await asyncio.sleep(0.3)
        if self._error is not None:
            raise self._error
        self.events = events
        self.open += 1
        try:
            events.recorder.from_engine(b"welcome")
            events.on_engine_event(EngineGreeted("1"))
            return await load_settings()
        except BaseException:
            self.open -= 1
            raise


class Recorder(NoRecorder):
    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def from_engine(self, frame: bytes) -> None:
        self.frames.append(frame)


class Listener:
    """The call."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.heard: list[bytes] = []
        self.events: list[EngineEvent] = []
        self.errors: list[EngineError] = []
        self.on_agent_audio = self.heard.append
        self.on_engine_event = self.events.append
        self.on_engine_closed = self.errors.append


async def load_settings() -> AgentSettings:
    return SETTINGS


def guarded(engine: Any) -> GuardedEngine:
    return GuardedEngine(cast(VoiceEngine, engine))


def early_to(*engines: GuardedEngine) -> EarlyConnection:
    return EarlyConnection(engines, WAIT, lambda early: None)


async def test_settings_need_no_handshake() -> None:
    engine, call, loop = SlowEngine(), Listener(), asyncio.get_running_loop()
    early = early_to(guarded(engine))
    await asyncio.sleep(1)
    assert (engine.open, early.connecting_since) == (1, None)
    began = loop.time()
    assert cast(Any, await early.attach(load_settings, cast(EngineEvents, call))) is SETTINGS
    assert loop.time() == began


async def test_call_gets_what_came_before_its_media() -> None:
    engine, call = SlowEngine(), Listener()
    early = early_to(guarded(engine))
    await asyncio.sleep(1)
    await early.attach(load_settings, cast(EngineEvents, call))
    assert (call.events, call.recorder.frames) == ([EngineGreeted("1")], [b"welcome"])
    engine.events.on_agent_audio(b"hello")
    engine.events.on_engine_closed(EngineUnavailable("gone"))
    assert (call.heard, len(call.errors)) == ([b"hello"], 1)
    assert engine.events.on_agent_audio == call.on_agent_audio  # no detour


async def test_media_that_comes_during_the_handshake() -> None:
    engine, call, loop = SlowEngine(), Listener(), asyncio.get_running_loop()
    early = early_to(guarded(engine))
    await asyncio.sleep(0.1)
    assert early.connecting_since == loop.time() - 0.1
    await early.attach(load_settings, cast(EngineEvents, call))
    assert engine.open == 1


async def test_connection_is_released_when_no_media_comes() -> None:
    engine = SlowEngine()
    early = early_to(guarded(engine))
    await asyncio.sleep(WAIT + 0.1)
    assert (engine.open, early.engine) == (0, None)


async def test_call_that_ends_releases_it() -> None:
    engine = SlowEngine()
    early = early_to(guarded(engine))
    await asyncio.sleep(1)
    early.close()
    await asyncio.sleep(0)
    assert (engine.open, early.engine) == (0, None)


async def test_attached_connection_belongs_to_the_call() -> None:
    engine, call = SlowEngine(), Listener()
    early = early_to(guarded(engine))
    await early.attach(load_settings, cast(EngineEvents, call))
    early.close()
    await asyncio.sleep(WAIT + 1)
    assert engine.open == 1


async def test_connection_lost_before_the_media() -> None:
    engine = SlowEngine()
    early = early_to(guarded(engine))
    await asyncio.sleep(1)
    engine.events.on_engine_closed(EngineUnavailable("idle"))
    assert early.engine is None


async def test_next_engine_is_tried_while_the_phone_rings() -> None:
    broken, works = guarded(SlowEngine("broken", EngineUnavailable("down"))), guarded(SlowEngine("works"))
    early = early_to(broken, works)
    await asyncio.sleep(1)
    assert early.engine is works
    assert broken.state is BreakerState.OPEN
    early.close()


async def test_call_connects_by_itself_if_every_engine_failed() -> None:
    early = early_to(guarded(SlowEngine(error=EngineUnavailable("down"))))
    await asyncio.sleep(1)
    assert early.engine is None
    with pytest.raises(EngineUnavailable):
        await NoEarlyConnection().attach(load_settings, cast(EngineEvents, Listener()))


async def test_call_learns_of_a_refusal() -> None:
    early = early_to(guarded(SlowEngine(error=EngineRefused("the key is wrong"))))
    await asyncio.sleep(1)
    with pytest.raises(EngineRefused):
        await early.attach(load_settings, cast(EngineEvents, Listener()))


async def test_number_of_waiting_connections_is_limited() -> None:
    engine = SlowEngine()
    made = [guarded(engine)]
    engines = CallEngines(lambda agent: made, EngineTimeouts(early=WAIT), most_early=3)
    opened = [engines.connect_early(SETTINGS.agent) for _ in range(5)]
    assert [isinstance(early, EarlyConnection) for early in opened] == [True] * 3 + [False] * 2
    await asyncio.sleep(1)
    assert engine.open == 3
    opened[0].close()
    assert isinstance(engines.connect_early(SETTINGS.agent), EarlyConnection)
    engines.close()
    await asyncio.sleep(1)
    assert engine.open == 0


async def test_no_engine_is_not_connected_to() -> None:
    made = [guarded(NoEngine())]
    engines = CallEngines(lambda agent: made, EngineTimeouts())
    assert isinstance(engines.connect_early(SETTINGS.agent), NoEarlyConnection)
