"""Deepgram sessions over a socket that the test controls. The real protocol is tested with whole calls."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from gateway.agents import Agent
from gateway.engines.deepgram import DeepgramEngine, DeepgramSession, DeepgramTimeouts
from gateway.engines.interface import (
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineFailed,
    EngineGreeted,
    SettingsApplied,
)
from gateway.errors import EngineError, EngineRefused, EngineUnavailable
from gateway.settings import Secret
from gateway.websocket.interface import NORMAL, Socket, SocketOwner

pytestmark = pytest.mark.virtual_time

AUDIO = bytes(range(160))
TIMEOUTS = DeepgramTimeouts()


class FakeSocket:
    buffered_bytes = 0

    def __init__(self, owner: SocketOwner) -> None:
        self.owner = owner
        self.sent: list[Any] = []
        self.is_closed = False

    def send_text(self, data: bytes) -> None:
        self.sent.append(json.loads(data))

    def send_binary(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, code: int = NORMAL) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self.owner.on_closed, code)

    def receives(self, **message: Any) -> None:
        self.owner.on_text(json.dumps(message).encode())


class FakeDeepgramServer:
    """Opens sockets, and lets the test say what happens on each."""

    def __init__(self) -> None:
        self.on_open: Callable[[FakeSocket], None] = lambda socket: socket.receives(type="Welcome", request_id="r1")
        self.headers: Mapping[str, str] = {}

    async def __call__(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket:
        self.headers = headers
        self.socket = FakeSocket(owner)
        owner.on_open(self.socket)
        asyncio.get_running_loop().call_soon(self.on_open, self.socket)
        return self.socket


class FakeRecorder:
    wants_frames = True

    def __init__(self) -> None:
        self.lines: list[tuple[str, bytes]] = []

    def from_engine(self, frame: bytes) -> None:
        self.lines.append(("from", frame))

    def to_engine(self, frame: bytes) -> None:
        self.lines.append(("to", frame))

    def audio_from_engine(self, audio: bytes) -> None:
        self.lines.append(("audio from", audio))

    def audio_to_engine(self, audio: bytes) -> None:
        self.lines.append(("audio to", audio))


class Events:
    def __init__(self) -> None:
        self.recorder = FakeRecorder()
        self.received: list[EngineEvent | bytes | EngineError] = []

    def on_agent_audio(self, audio: bytes) -> None:
        self.received.append(audio)

    def on_engine_event(self, event: EngineEvent) -> None:
        self.received.append(event)

    def on_engine_closed(self, error: EngineError) -> None:
        self.received.append(error)


async def load_settings() -> AgentSettings:
    return AgentSettings(Agent("maya", ""), "You are Maya.", "Hello.")


class Stage:
    def __init__(self) -> None:
        self.server, self.events = FakeDeepgramServer(), Events()
        self.engine = DeepgramEngine(self.server, "wss://agent.example.com", Secret("dg-key"), TIMEOUTS)

    async def connect(self) -> DeepgramSession:
        return cast(DeepgramSession, await self.engine.connect(load_settings, self.events))

    @property
    def socket(self) -> FakeSocket:
        return self.server.socket


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_settings_follow_welcome(stage: Stage) -> None:
    await stage.connect()
    assert stage.server.headers == {"Authorization": "Token dg-key"}
    [settings] = stage.socket.sent
    assert (settings["type"], settings["agent"]["greeting"]) == ("Settings", "Hello.")
    assert stage.events.received == [EngineGreeted("r1")]


async def test_settings_leave_without_welcome(stage: Stage) -> None:
    stage.server.on_open = lambda socket: None
    began = asyncio.get_running_loop().time()
    await stage.connect()
    assert asyncio.get_running_loop().time() - began == pytest.approx(TIMEOUTS.welcome)
    assert stage.socket.sent[0]["type"] == "Settings"


async def test_connection_that_closes_at_once_is_an_error(stage: Stage) -> None:
    stage.server.on_open = lambda socket: socket.close()
    with pytest.raises(EngineUnavailable, match="the engine closed the connection"):
        await stage.connect()


async def test_error_instead_of_welcome_is_final(stage: Stage) -> None:
    stage.server.on_open = lambda socket: socket.receives(type="Error", code="INVALID_SETTINGS")
    with pytest.raises(EngineRefused, match="INVALID_SETTINGS"):
        await stage.connect()


async def test_cancelled_connect_closes_the_socket(stage: Stage) -> None:
    stage.server.on_open = lambda socket: None
    connecting = asyncio.create_task(stage.connect())
    await asyncio.sleep(0.01)
    connecting.cancel()
    await asyncio.wait({connecting})
    assert stage.socket.is_closed


async def test_audio_passes_both_ways_and_is_recorded(stage: Stage) -> None:
    session = await stage.connect()
    session.send_audio(AUDIO)
    session.send_silence(b"\xff" * 160)
    for _ in range(60):
        session.on_binary(AUDIO)
    assert stage.socket.sent[1:] == [AUDIO, b"\xff" * 160]
    assert stage.events.received[1:] == [AUDIO] * 60
    recorded = [line for line in stage.events.recorder.lines if line[0].startswith("audio")]
    assert recorded == [("audio to", AUDIO), *[("audio from", AUDIO)] * 60]  # silence of ours is not recorded


async def test_commands_are_sent_and_recorded(stage: Stage) -> None:
    session = await stage.connect()
    functions = [{"id": "f1", "name": "end_call", "arguments": "", "client_side": True}]
    stage.socket.receives(type="FunctionCallRequest", functions=functions)
    session.say("One moment.")
    session.update_instructions("It is late.")
    session.replace_settings(await load_settings())
    session.truncate(400)
    session.end_user_turn()
    session.answer_tool("f1", "ok")
    session.answer_tool("f1", "twice")
    sent = ["InjectAgentMessage", "UpdatePrompt", "UpdateThink", "ForceEndTurn", "FunctionCallResponse"]
    assert [message["type"] for message in stage.socket.sent[1:]] == sent
    recorded = [json.loads(frame)["type"] for direction, frame in stage.events.recorder.lines if direction == "to"]
    assert recorded == ["Settings", *sent]


async def test_bad_frames_are_recorded_and_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    session = await stage.connect()
    session.on_text(b"{not json")
    session.on_text(b"{not json")
    stage.socket.receives(type="SettingsApplied")
    stage.socket.receives(type="SomethingNew")
    assert stage.events.received[1:] == [SettingsApplied()]
    assert stage.events.recorder.lines.count(("from", b"{not json")) == 2
    stage.socket.close()
    await asyncio.sleep(0)
    assert caplog.messages == ["engine broke its protocol"]


@pytest.mark.parametrize(
    ("code", "kind"), [("SERVER_GOING_AWAY", EngineUnavailable), ("INVALID_SETTINGS", EngineRefused)]
)
async def test_error_ends_the_session(stage: Stage, code: str, kind: type[EngineError]) -> None:
    await stage.connect()
    stage.socket.receives(type="Error", code=code)
    assert stage.socket.is_closed
    await asyncio.sleep(0)
    failed, error = stage.events.received[1:]
    assert failed == EngineFailed(code, retryable=kind is EngineUnavailable)
    assert type(error) is kind


async def test_lost_connection_is_reported(stage: Stage) -> None:
    session = await stage.connect()
    stage.socket.close(1006)
    await asyncio.sleep(0)
    assert type(stage.events.received[-1]) is EngineUnavailable
    session.send_audio(AUDIO)
    session.say("Hello?")
    assert len(stage.socket.sent) == 1


async def test_closed_session_reports_nothing(stage: Stage) -> None:
    """Frames that were in flight are still read."""
    session = await stage.connect()
    session.close()
    session.on_binary(AUDIO)
    stage.socket.receives(type="ConversationText", role="assistant", content="Hi.")
    await asyncio.sleep(0)
    assert AgentSaid("Hi.") not in stage.events.received
    assert stage.events.received == [EngineGreeted("r1")]
