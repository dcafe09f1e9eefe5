"""Sessions of other engines are recorded as Deepgram messages: what is recorded reads back as the same event."""

import json

import pytest

from gateway.agents import Agent
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineFailed,
    EngineGreeted,
    EngineWarned,
    FunctionCall,
    FunctionsCancelled,
    FunctionsRequested,
    InjectionRefused,
    LatencyReported,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.engines.recording import SessionRecording


class Recorder:
    def __init__(self) -> None:
        self.received: list[bytes] = []
        self.sent: list[dict[str, object]] = []

    def from_engine(self, frame: bytes) -> None:
        self.received.append(frame)

    def to_engine(self, frame: bytes) -> None:
        self.sent.append(json.loads(frame))

    def audio_from_engine(self, audio: bytes) -> None: ...
    def audio_to_engine(self, audio: bytes) -> None: ...


@pytest.mark.parametrize(
    "event",
    [
        EngineGreeted("local"),
        SettingsApplied(),
        UserStartedSpeaking(),
        TurnEnded(),
        UserSaid("Hello."),
        AgentSaid("Hi."),
        AgentAudioDone(),
        FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)),
        FunctionsCancelled(("f1",)),
        PromptUpdated(),
        InjectionRefused(),
        LatencyReported(0.1, None, 0.2),
        EngineWarned("SLOW_THINK_REQUEST"),
        EngineFailed("voice failed: URLError", retryable=True),
    ],
)
def test_event_reads_back(event: EngineEvent) -> None:
    recorder = Recorder()
    SessionRecording(recorder).event(event)
    [frame] = recorder.received
    assert DeepgramCodec().receive(frame) == [event]


def test_commands_are_recorded() -> None:
    recorder = Recorder()
    recording = SessionRecording(recorder)
    settings = AgentSettings(Agent("maya", ""), "You are Maya.", "Hello.")
    recording.settings(settings)
    recording.event(FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)))
    recording.say("One moment.", interrupt=True)
    recording.update_instructions("It is late.")
    recording.replace_settings(settings)
    recording.end_user_turn()
    recording.answer_tool("f1", "ok")
    recording.answer_tool("f1", "twice")
    types = ["Settings", "InjectAgentMessage", "UpdatePrompt", "UpdateThink", "ForceEndTurn", "FunctionCallResponse"]
    assert [message["type"] for message in recorder.sent] == types
    assert recorder.sent[-1]["name"] == "end_call"
