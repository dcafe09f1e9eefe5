"""A third voice engine, to show what one has to do: it repeats what the caller says."""

import asyncio

from gateway.agents import Agent
from gateway.audio import SILENCE_FRAME
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    AgentSettings,
    EngineEvents,
    EngineSession,
    LoadSettings,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
    VoiceEngine,
)
from gateway.llm.chat import ModelName
from gateway.settings import Settings
from gateway.websocket.interface import Connector

BEEP = bytes(range(1, 161)) * 10


class EchoEngine:
    name = "echo"
    has_llm = True
    is_ready = True

    def own_model(self, agent: Agent) -> ModelName | None:
        return None

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        return EchoSession(await load_settings(), events)

    async def probe(self) -> str:
        return "echoes"

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None: ...


def make_echo_engine(settings: Settings, connect: Connector) -> VoiceEngine:
    return EchoEngine()


class EchoSession:
    """A turn of the caller ends with the first silence."""

    buffered_bytes = 0

    def __init__(self, settings: AgentSettings, events: EngineEvents) -> None:
        self._events = events
        self._turn = b""
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._start, settings.greeting)
        self._closed = False

    def _start(self, greeting: str) -> None:
        self._events.on_engine_event(SettingsApplied())
        if greeting:
            self._speak(greeting, BEEP)

    def send_audio(self, audio: bytes) -> None:
        if audio == SILENCE_FRAME:
            self.send_silence(audio)
            return
        if not self._turn:
            self._events.on_engine_event(UserStartedSpeaking())
        self._turn += audio

    def send_silence(self, audio: bytes) -> None:
        if self._turn:
            self.end_user_turn()

    def end_user_turn(self) -> None:
        turn, self._turn = self._turn, b""
        self._events.on_engine_event(TurnEnded())
        self._events.on_engine_event(UserSaid(f"{len(turn)} bytes"))
        self._loop.call_soon(self._speak, f"I heard {len(turn)} bytes.", turn)

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self._loop.call_soon(self._speak, text, BEEP)

    def _speak(self, text: str, audio: bytes) -> None:
        if not self._closed:
            self._events.on_engine_event(AgentSaid(text))
            self._events.on_agent_audio(audio)
            self._events.on_engine_event(AgentAudioDone())

    def update_instructions(self, text: str) -> None: ...
    def expect_dictation(self, expected: bool) -> None: ...
    def replace_settings(self, settings: AgentSettings) -> None: ...
    def truncate(self, unheard_ms: int) -> None: ...
    def answer_tool(self, call_id: str, result: str) -> None: ...

    def close(self) -> None:
        self._closed = True
