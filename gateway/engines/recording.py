"""
Records engine sessions.

Recordings hold Deepgram messages, whichever engine took the call (recording format 1). A Deepgram session records its
own frames; sessions of other engines use `SessionRecording`, so that their calls replay as well.
"""

import time
from typing import Any, Final

import orjson

from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineEvents,
    EngineFailed,
    EngineGreeted,
    EngineRecorder,
    EngineWarned,
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
from gateway.metrics import ADDED_DELAY

MEASURED_CHUNKS: Final = 50
"""One chunk of agent audio in this many is timed."""


class AgentAudioOutput:
    """Passes agent audio from a session to its call, and records it."""

    def __init__(self, events: EngineEvents, engine: str) -> None:
        self._record = events.recorder.audio_from_engine
        self._pass_on = events.on_agent_audio
        self._engine = engine
        self._chunks = 0

    def send(self, audio: bytes) -> None:
        self._chunks += 1
        began = 0.0 if self._chunks % MEASURED_CHUNKS else time.perf_counter()
        self._record(audio)
        self._pass_on(audio)
        if began:
            ADDED_DELAY.labels("to carrier", self._engine).observe(time.perf_counter() - began)

    def close(self) -> None:
        """Drop all further audio."""
        self._record = self._pass_on = _drop


def _drop(audio: bytes) -> None: ...


class SessionRecording:
    """Writes events and commands of one session to the recorder."""

    def __init__(self, recorder: EngineRecorder) -> None:
        self._recorder = recorder
        self._codec = DeepgramCodec()

    def event(self, event: EngineEvent) -> None:
        frame = orjson.dumps(_message(event))
        self._codec.receive(frame)  # the codec keeps track of open function calls
        self._recorder.from_engine(frame)

    def settings(self, settings: AgentSettings) -> None:
        self._recorder.to_engine(self._codec.settings(settings))

    def say(self, text: str, *, interrupt: bool) -> None:
        self._recorder.to_engine(self._codec.say(text, interrupt=interrupt))

    def update_instructions(self, text: str) -> None:
        self._recorder.to_engine(self._codec.update_instructions(text))

    def replace_settings(self, settings: AgentSettings) -> None:
        self._recorder.to_engine(self._codec.replace_settings(settings))

    def end_user_turn(self) -> None:
        self._recorder.to_engine(self._codec.end_user_turn())

    def answer_tool(self, call_id: str, result: str) -> None:
        frame = self._codec.answer_tool(call_id, result)
        if frame is not None:
            self._recorder.to_engine(frame)


def _message(event: EngineEvent) -> dict[str, Any]:
    """The Deepgram message for an event."""
    match event:
        case EngineGreeted(request_id):
            return {"type": "Welcome", "request_id": request_id}
        case UserSaid(text):
            return {"type": "ConversationText", "role": "user", "content": text}
        case AgentSaid(text):
            return {"type": "ConversationText", "role": "assistant", "content": text}
        case TurnEnded():
            return {"type": "EndOfTurn"}
        case FunctionsRequested(calls):
            functions = [
                {"id": call.id, "name": call.name, "arguments": call.arguments, "client_side": True} for call in calls
            ]
            return {"type": "FunctionCallRequest", "functions": functions}
        case FunctionsCancelled(call_ids):
            return {"type": "FunctionCallCancelled", "functions": [{"id": call_id} for call_id in call_ids]}
        case LatencyReported(stt, llm, tts):
            figures = {"stt_latency": stt, "ttt_text_latency": llm, "tts_latency": tts}
            return {"type": "LatencyReport", **{name: value for name, value in figures.items() if value is not None}}
        case EngineWarned(code):
            return {"type": "Warning", "code": code, "description": ""}
        case EngineFailed(code):
            return {"type": "Error", "code": code, "description": ""}
        case SettingsApplied() | UserStartedSpeaking() | AgentAudioDone() | PromptUpdated() | InjectionRefused():
            return {"type": type(event).__name__}
