"""
Deepgram Voice Agent messages, without I/O: text in, events out; commands in, text out.

Audio is binary in both directions and needs no codec. The transcript is built from ConversationText alone, because
History repeats the same words. Unknown types are ignored: Deepgram adds new ones without notice.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.engines.interface import (
    AgentAudioDone,
    AgentFunction,
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineFailed,
    EngineGreeted,
    EngineWarned,
    FunctionCall,
    FunctionsCancelled,
    FunctionsRequested,
    HistoryMessage,
    HistoryToolCall,
    InjectionRefused,
    LatencyReported,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.errors import RemoteProtocolError

# Caused by what we sent: the same settings would fail again. Deepgram's other errors are worth a new connection.
_FINAL_ERRORS: Final = frozenset(
    {
        "NON_SETTINGS_MESSAGE_BEFORE_SETTINGS",
        "SETTINGS_ALREADY_APPLIED",
        "UNPARSABLE_CLIENT_MESSAGE",
        "INVALID_SETTINGS",
        "USER_AUDIO_FORMAT",
        "AGENT_ID_NOT_SUPPORTED",
        "INVALID_AGENT_ID",
    }
)
# A refused injection is documented as InjectionRefused, and seen on live connections as one of these warnings.
_REFUSED_INJECTIONS: Final = frozenset(
    {"INJECT_AGENT_MESSAGE_DURING_USER_SPEECH", "INJECT_AGENT_MESSAGE_DURING_AGENT_SPEECH"}
)
_IGNORED: Final = frozenset(
    {
        "History",
        "AgentThinking",
        "AgentStartedSpeaking",
        "FunctionCallResponse",
        "SpeakUpdated",
        "ThinkUpdated",
        "ListenUpdated",
        "ThinkLiveUpdated",
        "FrustrationDetected",
        "__customFromThinkProvider",
    }
)

_OWN_PROVIDER: Final = {"type": "open_ai", "model": "voice-gateway"}
"""Deepgram requires a model beside an own endpoint and passes its name through to it."""


class DeepgramCodec:
    """The messages of one connection. Collects unknown types, so that the session can log each once."""

    name: Final = "deepgram"

    def __init__(self) -> None:
        self.unknown_types: set[str] = set()
        self._open_calls: dict[str, str] = {}
        """Names of the functions that Deepgram waits for, by call id."""

    # From Deepgram

    def receive(self, frame: bytes | str) -> list[EngineEvent]:
        """The events in one text frame. Raises RemoteProtocolError if it is not a message."""
        message = self._parse(frame)
        match message["type"]:
            case "ConversationText":
                return self._conversation_text(message)
            case "UserStartedSpeaking":
                return [UserStartedSpeaking()]
            case "AgentAudioDone":
                return [AgentAudioDone()]
            case "LatencyReport":
                return [_latency(message)]
            case "EndOfTurn":  # in no documentation, but sent by live servers since September 2026
                return [TurnEnded()]
            case "Welcome":
                return [EngineGreeted(request_id=str(message.get("request_id", "")))]
            case "SettingsApplied":
                return [SettingsApplied()]
            case "FunctionCallRequest":
                return self._functions_requested(message)
            case "FunctionCallCancelled":
                call_ids = tuple(str(call.get("id", "")) for call in _functions(message))
                for call_id in call_ids:
                    self._open_calls.pop(call_id, None)
                return [FunctionsCancelled(call_ids)]
            case "PromptUpdated":
                return [PromptUpdated()]
            case "InjectionRefused":
                return [InjectionRefused()]
            case "Error":
                code = str(message.get("code", ""))
                return [EngineFailed(code, retryable=code not in _FINAL_ERRORS)]
            case "Warning":
                code = str(message.get("code", ""))
                return [InjectionRefused() if code in _REFUSED_INJECTIONS else EngineWarned(code)]
            case unknown:
                if unknown not in _IGNORED:
                    self.unknown_types.add(unknown)
                return []

    def _parse(self, frame: bytes | str) -> Mapping[str, Any]:
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            raise RemoteProtocolError(self.name, "sent text that is not JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise RemoteProtocolError(self.name, "sent a message without a type")
        return message

    def _conversation_text(self, message: Mapping[str, Any]) -> list[EngineEvent]:
        content = message.get("content")
        text = content.replace("\0", "").strip() if isinstance(content, str) else ""  # PostgreSQL rejects NUL
        if message.get("role") == "user":
            return [UserSaid(text) if text else TurnEnded()]  # a turn without words is over as well
        return [AgentSaid(text)] if text else []

    def _functions_requested(self, message: Mapping[str, Any]) -> list[EngineEvent]:
        calls = tuple(
            FunctionCall(
                str(call.get("id", "")),
                str(call.get("name", "")),
                str(call.get("arguments") or ""),
                str(call.get("thought_signature") or ""),
            )
            for call in _functions(message)
            if call.get("client_side") is not False  # Deepgram runs the others itself and only reports them
        )
        self._open_calls |= {call.id: call.name for call in calls}
        return [FunctionsRequested(calls)] if calls else []

    # To Deepgram

    def settings(self, settings: AgentSettings) -> bytes:
        """The first message of a connection. Sending the greeting again after a reconnect would greet twice."""
        agent: dict[str, Any] = {
            "listen": {"provider": settings.agent.listen},
            "think": self._think(settings),
            "speak": {"provider": settings.agent.speak},
        }
        if settings.history:
            agent["context"] = {"messages": [_history(item) for item in settings.history]}
        if settings.greeting:
            agent["greeting"] = settings.greeting
        return orjson.dumps(
            {
                "type": "Settings",
                "tags": ["voice-gateway", f"agent:{settings.agent.name}"],
                "flags": {"history": False},  # History would repeat every ConversationText
                "audio": {
                    "input": {"encoding": "mulaw", "sample_rate": 8000},
                    # Container "wav" would put a RIFF header, an audible click, before the first audio.
                    "output": {"encoding": "mulaw", "sample_rate": 8000, "container": "none"},
                },
                "agent": agent,
            }
        )

    def _think(self, settings: AgentSettings) -> dict[str, Any] | list[dict[str, Any]]:
        """The language models. Deepgram tries a list in order for each request."""
        common: dict[str, Any] = {"prompt": settings.prompt}
        if settings.functions:
            common["functions"] = [_function(function) for function in settings.functions]
        thinks: list[dict[str, Any]] = []
        if settings.llm is not None:
            headers = {"authorization": f"Bearer {settings.llm.bearer}"}
            endpoint = {"url": settings.llm.url, "headers": headers}
            thinks.append({"provider": _OWN_PROVIDER, "endpoint": endpoint, "context_length": "max", **common})
        if settings.llm is None or settings.agent.engine_thinks:
            thinks.append({"provider": settings.agent.think, **common})
        return thinks[0] if len(thinks) == 1 else thinks

    def end_user_turn(self) -> bytes:
        return b'{"type":"ForceEndTurn"}'

    def update_instructions(self, text: str) -> bytes:
        """UpdatePrompt appends to the prompt; one page of the documentation says that it replaces it."""
        return orjson.dumps({"type": "UpdatePrompt", "prompt": text})

    def replace_settings(self, settings: AgentSettings) -> bytes:
        """UpdateThink replaces the whole think block, so it repeats prompt, endpoint and functions."""
        return orjson.dumps({"type": "UpdateThink", "think": self._think(settings)})

    def say(self, text: str, *, interrupt: bool = False) -> bytes:
        behavior = "interrupt" if interrupt else "queue"
        return orjson.dumps({"type": "InjectAgentMessage", "message": text, "behavior": behavior})

    def answer_tool(self, call_id: str, result: str) -> bytes | None:
        """None where Deepgram does not wait for this call. Without an answer the agent stays silent."""
        name = self._open_calls.pop(call_id, None)
        if name is None:
            return None
        return orjson.dumps({"type": "FunctionCallResponse", "id": call_id, "name": name, "content": result})


def _history(item: HistoryMessage | HistoryToolCall) -> dict[str, Any]:
    if isinstance(item, HistoryMessage):
        return {"type": "History", "role": item.role, "content": item.text}
    call = item.call
    used = {"id": call.id, "name": call.name, "client_side": True, "arguments": call.arguments, "response": item.answer}
    signature = {"thought_signature": call.thought_signature} if call.thought_signature else {}
    return {"type": "History", "function_calls": [used | signature]}


def _function(function: AgentFunction) -> dict[str, Any]:
    return {
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        # Flux calls functions before the end of the turn is certain; side effects have to wait for it.
        "defer_until_eot": not function.speculative,
    }


def _latency(message: Mapping[str, Any]) -> LatencyReported:
    """Deepgram sends one figure per message, the one of recognition several times a second."""
    stt, llm, tts = (
        float(value) if isinstance(value := message.get(name), int | float) else None
        for name in ("stt_latency", "ttt_text_latency", "tts_latency")
    )
    return LatencyReported(stt, llm, tts)


def _functions(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    functions = message.get("functions")
    return [item for item in functions if isinstance(item, dict)] if isinstance(functions, list) else []
