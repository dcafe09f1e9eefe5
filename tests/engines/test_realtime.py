"""Realtime sessions over a socket that the test controls. The real protocol is tested with whole calls."""

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from gateway.agents import Agent
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    AgentSettings,
    EngineFailed,
    EngineGreeted,
    HistoryMessage,
    InjectionRefused,
    SettingsApplied,
    TurnEnded,
    UserSaid,
)
from gateway.engines.realtime import RealtimeEngine, RealtimeSession, RealtimeTimeouts
from gateway.engines.realtime_codec import NOT_TRANSCRIBED
from gateway.engines.realtime_dialect import OPENAI, XAI
from gateway.errors import EngineError, EngineRefused, EngineUnavailable
from gateway.llm.chat import LlmEndpoint, ModelName
from gateway.settings import Secret
from gateway.websocket.interface import Socket, SocketOwner
from tests.engines.test_deepgram import Events, FakeSocket

pytestmark = pytest.mark.virtual_time

AUDIO = bytes(range(160))
TIMEOUTS = RealtimeTimeouts()
PCMU = {"format": {"type": "audio/pcmu"}}
APPLIED = {"type": "session.updated", "session": {"audio": {"input": PCMU, "output": PCMU}}}


class FakeRealtimeServer:
    """Opens sockets, and lets the test say what happens on each."""

    def __init__(self) -> None:
        self.on_open: Callable[[FakeSocket], None] = lambda socket: socket.receives(
            type="session.created", session={"id": "s1"}
        )
        self.headers: Mapping[str, str] = {}
        self.sockets: list[FakeSocket] = []
        self.url = ""

    async def __call__(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket:
        self.url, self.headers = url, headers
        socket = FakeSocket(owner)
        self.sockets.append(socket)
        owner.on_open(cast(Socket, socket))
        self.on_open(socket)
        return cast(Socket, socket)


class Stage:
    def __init__(self, url: str = "wss://realtime.example.com/v1/realtime") -> None:
        self.server, self.events = FakeRealtimeServer(), Events()
        self.engine = RealtimeEngine(self.server, url, Secret("sk-key"), OPENAI, TIMEOUTS)
        self.settings = AgentSettings(Agent("maya", ""), "You are Maya.", "Hello.")

    async def connect(self) -> RealtimeSession:
        return cast(RealtimeSession, await self.engine.connect(self.load_settings, self.events))

    async def applied(self) -> RealtimeSession:
        session = await self.connect()
        self.socket.receives(**APPLIED)
        return session

    async def load_settings(self) -> AgentSettings:
        return self.settings

    @property
    def socket(self) -> FakeSocket:
        return self.server.sockets[-1]

    @property
    def sent(self) -> list[str]:
        return [message["type"] for message in self.socket.sent]


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_settings_leave_at_once(stage: Stage) -> None:
    await stage.connect()
    assert stage.server.url == "wss://realtime.example.com/v1/realtime?model=gpt-realtime-2.1"
    assert stage.server.headers == {"Authorization": "Bearer sk-key"}
    assert stage.sent == ["session.update"]
    assert stage.events.received == [EngineGreeted("s1")]
    stage.socket.receives(**APPLIED)
    assert stage.sent == ["session.update", "response.create"]
    assert stage.events.received[-1] == SettingsApplied()


async def test_azure_has_its_own_header_and_name() -> None:
    stage = Stage("wss://shop.openai.azure.com/openai/v1/realtime?model=front-desk")
    await stage.connect()
    assert stage.server.headers == {"api-key": "sk-key"}
    assert stage.server.url.endswith("/openai/v1/realtime?model=front-desk")
    assert stage.engine.own_model(stage.settings.agent) == ModelName("azure", "front-desk")


async def test_model_joins_other_parameters() -> None:
    stage = Stage("wss://realtime.example.com/v1/realtime?tier=1")
    await stage.connect()
    assert stage.server.url.endswith("/v1/realtime?tier=1&model=gpt-realtime-2.1")


async def test_audio_passes_both_ways_and_is_recorded(stage: Stage) -> None:
    session = await stage.applied()
    session.send_audio(AUDIO)
    session.send_silence(b"\xff" * 160)
    appended = [message["audio"] for message in stage.socket.sent if message["type"] == "input_audio_buffer.append"]
    assert list(map(base64.b64decode, appended)) == [AUDIO, b"\xff" * 160]
    delta = base64.b64encode(AUDIO).decode()
    stage.socket.receives(type="response.output_audio.delta", response_id="r1", item_id="a1", delta=delta)
    stage.socket.receives(type="response.done", response={"id": "r1", "status": "completed"})
    assert stage.events.received[-3:] == [AUDIO, AgentSaid("Hello."), AgentAudioDone()]
    recorded = [line for line in stage.events.recorder.lines if line[0].startswith("audio")]
    assert recorded == [("audio to", AUDIO), ("audio from", AUDIO)]  # silence of ours is not recorded


async def test_recordings_hold_deepgram_messages(stage: Stage) -> None:
    """So `gateway replay` plays the calls of every engine."""
    session = await stage.applied()
    session.say("One moment.")
    session.update_instructions("It is late.")
    session.replace_settings(stage.settings)
    session.end_user_turn()
    kinds = [(direction, json.loads(frame)["type"]) for direction, frame in stage.events.recorder.lines]
    assert kinds == [
        ("from", "Welcome"),
        ("to", "Settings"),
        ("from", "SettingsApplied"),
        ("to", "InjectAgentMessage"),
        ("to", "UpdatePrompt"),
        ("to", "UpdateThink"),
        ("to", "ForceEndTurn"),
    ]


@pytest.mark.parametrize(
    ("code", "kind"), [("session_expired", EngineUnavailable), ("insufficient_quota", EngineRefused)]
)
async def test_error_ends_the_session(stage: Stage, code: str, kind: type[EngineError]) -> None:
    session = await stage.applied()
    stage.socket.receives(type="error", error={"code": code})
    assert stage.socket.is_closed
    await asyncio.sleep(0)
    failed, error = stage.events.received[-2:]
    assert failed == EngineFailed(code, retryable=kind is EngineUnavailable)
    assert type(error) is kind
    session.send_audio(AUDIO)
    session.say("Hello?")


async def test_closed_session_reports_nothing(stage: Stage) -> None:
    session = await stage.applied()
    before = list(stage.events.received)
    session.close()
    stage.socket.receives(type="input_audio_buffer.speech_started", item_id="u1")
    await asyncio.sleep(TIMEOUTS.renew + 1)
    assert stage.events.received == before


async def test_connection_that_closes_at_once_is_an_error(stage: Stage) -> None:
    async def load() -> AgentSettings:
        stage.socket.close()
        await asyncio.sleep(0.01)
        return stage.settings

    with pytest.raises(EngineUnavailable, match="the engine closed the connection"):
        await stage.engine.connect(load, stage.events)


async def test_refused_text_is_reported_later(stage: Stage) -> None:
    session = await stage.applied()
    stage.socket.receives(type="input_audio_buffer.speech_started", item_id="u1")
    session.say("Are you there?")
    assert InjectionRefused() not in stage.events.received
    await asyncio.sleep(0)
    assert stage.events.received[-1] == InjectionRefused()


async def test_turn_without_text_is_given_up(stage: Stage) -> None:
    await stage.applied()
    stage.socket.receives(type="input_audio_buffer.committed", item_id="u1")
    assert stage.events.received[-1] == TurnEnded("u1")
    await asyncio.sleep(TIMEOUTS.text + 0.1)
    assert stage.events.received[-1] == UserSaid(NOT_TRANSCRIBED, "u1")


async def test_backchannel_during_an_answer_is_not_answered(stage: Stage) -> None:
    stage.settings = replace(stage.settings, agent=replace(stage.settings.agent, interrupt="words"), greeting="")
    await stage.applied()
    delta = base64.b64encode(AUDIO * 50).decode()
    stage.socket.receives(type="response.output_audio.delta", response_id="r1", item_id="a1", delta=delta)
    stage.socket.receives(type="response.done", response={"id": "r1", "status": "completed"})
    kind = "conversation.item.input_audio_transcription.completed"
    for turn, text in (("u1", "Okay."), ("u2", "Stop, please.")):
        assert "response.create" not in stage.sent
        stage.socket.receives(type="input_audio_buffer.committed", item_id=turn)
        stage.socket.receives(type=kind, item_id=turn, transcript=text)
    assert stage.sent[-1] == "response.create"


async def test_failed_answer_is_requested_again(stage: Stage) -> None:
    await stage.applied()
    stage.socket.receives(type="response.done", response={"id": "r1", "status": "failed"})
    assert stage.sent.count("response.create") == 1  # the greeting
    await asyncio.sleep(TIMEOUTS.retry + 0.1)
    assert stage.sent.count("response.create") == 2


async def test_bad_frames_are_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.applied()
    for _ in range(2):
        stage.socket.owner.on_text(b"{not json")
    stage.socket.owner.on_binary(AUDIO)
    assert caplog.messages == ["engine broke its protocol"]


async def test_unused_brain_is_logged_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    stage.settings = replace(stage.settings, llm=LlmEndpoint("https://voice.example.com", "b", cast(Any, None)))
    await stage.connect()
    await stage.connect()
    assert caplog.messages == ["engine does not use the agent's brain"]


# Renewal


async def finish_greeting(stage: Stage) -> None:
    stage.socket.receives(type="response.created", response={"id": "r1", "metadata": {"purpose": "say"}})
    stage.socket.receives(type="response.done", response={"id": "r1", "status": "completed"})
    stage.settings = replace(stage.settings, greeting="", history=(HistoryMessage("assistant", "Hello."),))


async def test_old_connection_is_replaced_between_answers(stage: Stage) -> None:
    session = await stage.applied()
    await finish_greeting(stage)
    [old] = stage.server.sockets
    stage.server.on_open = lambda socket: asyncio.get_running_loop().call_later(0.3, lambda: socket.receives(**APPLIED))
    await asyncio.sleep(TIMEOUTS.renew + 0.1)
    session.send_audio(AUDIO)
    assert old.sent[-1]["type"] == "input_audio_buffer.append"
    await asyncio.sleep(0.5)
    assert old.is_closed
    assert stage.sent == ["session.update", "conversation.item.create"]
    before = list(stage.events.received)
    session.send_audio(AUDIO)
    assert stage.sent[-1] == "input_audio_buffer.append"
    assert stage.events.received == before
    assert [event for event in before if event == SettingsApplied()] == [SettingsApplied()]
    session.close()


async def test_connection_in_use_is_replaced_later(stage: Stage) -> None:
    session = await stage.applied()
    await finish_greeting(stage)
    stage.server.on_open = lambda socket: asyncio.get_running_loop().call_later(0.3, lambda: socket.receives(**APPLIED))
    [old] = stage.server.sockets
    old.receives(type="input_audio_buffer.speech_started", item_id="u1")
    await asyncio.sleep(TIMEOUTS.renew + 10)
    assert stage.server.sockets == [old]
    old.receives(type="input_audio_buffer.committed", item_id="u1")
    kind = "conversation.item.input_audio_transcription.completed"
    old.receives(type=kind, item_id="u1", transcript="Hello.")
    old.receives(type="response.created", response={"id": "r2", "metadata": None})
    old.receives(type="response.done", response={"id": "r2", "status": "completed"})
    await asyncio.sleep(TIMEOUTS.renew_again + 1)
    assert old.is_closed and len(stage.server.sockets) == 2
    session.close()


# gateway doctor


async def test_probe_waits_for_the_session(stage: Stage) -> None:
    assert await stage.engine.probe() == "realtime.example.com answers and accepts the key"


async def test_probe_finds_an_account_without_credit(stage: Stage) -> None:
    stage.server.on_open = lambda socket: socket.receives(type="error", error={"code": "insufficient_quota"})
    with pytest.raises(EngineRefused, match="ends the session: insufficient_quota; check the account"):
        await stage.engine.probe()


async def test_probe_gives_up(stage: Stage) -> None:
    stage.server.on_open = lambda socket: None
    with pytest.raises(EngineUnavailable, match="no message after the handshake; check the network"):
        await stage.engine.probe()


async def test_engine_is_ready_and_named() -> None:
    engine = RealtimeEngine(cast(Any, None), "wss://x.example", Secret("k"), XAI, TIMEOUTS)
    assert (engine.name, engine.has_llm, engine.is_ready, engine.health()) == ("xai", True, True, {"engine": "xai"})
    await engine.run()
