"""
Deepgram's Voice Agent dialect, without I/O: text in, events out; intent in, text out.

Audio is binary both ways and needs no codec. The transcript comes from ConversationText alone; History repeats the
same words. A type we don't know is ignored: Deepgram adds them without notice.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.engines.agent_settings import AgentFunction, AgentSettings, HistoryMessage, HistoryToolCall
from gateway.engines.events import (
    AgentAudioDone,
    AgentSaid,
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
from gateway.errors import RemoteProtocolError

KEEP_ALIVE: Final = b'{"type":"KeepAlive"}'
KEEP_ALIVE_SECONDS: Final = 8.0
"""Deepgram closes a connection that is silent for 10 s; its documentation advises 8."""

# Errors that the same settings would meet again (section 9 of the protocol); every other one is worth a new try.
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
_REFUSED_INJECTIONS: Final = frozenset(
    {"INJECT_AGENT_MESSAGE_DURING_USER_SPEECH", "INJECT_AGENT_MESSAGE_DURING_AGENT_SPEECH"}
)
# Known, and of no consequence here.
_QUIET: Final = frozenset(
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
"""How an own endpoint is spoken to. The model is only a word that is passed on to it."""


class DeepgramCodec:
    """One connection. Counts the types it did not know, so that its owner can log them once."""

    name: Final = "deepgram"

    def __init__(self) -> None:
        self.unknown_types: set[str] = set()

    # What Deepgram sends

    def receive(self, frame: bytes | str) -> list[EngineEvent]:
        """The events in one text frame; RemoteProtocolError if it is not a message."""
        message = self._parse(frame)
        match message["type"]:
            case "ConversationText":
                return self._conversation_text(message)
            case "UserStartedSpeaking":
                return [UserStartedSpeaking()]
            case "AgentAudioDone":
                return [AgentAudioDone()]
            case "LatencyReport":
                return [LatencyReported({k: float(v) for k, v in message.items() if isinstance(v, int | float)})]
            case "EndOfTurn":
                return [TurnEnded()]
            case "Welcome":
                return [EngineGreeted(request_id=str(message.get("request_id", "")))]
            case "SettingsApplied":
                return [SettingsApplied()]
            case "FunctionCallRequest":
                return self._functions_requested(message)
            case "FunctionCallCancelled":
                return [FunctionsCancelled(tuple(str(call.get("id", "")) for call in _objects(message)))]
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
                if unknown not in _QUIET:
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
        text = content.replace("\0", "").strip() if isinstance(content, str) else ""  # no database takes that one
        if message.get("role") == "user":
            return [UserSaid(text) if text else TurnEnded()]  # a turn without words is over all the same
        return [AgentSaid(text)] if text else []

    def _functions_requested(self, message: Mapping[str, Any]) -> list[EngineEvent]:
        ours = tuple(
            FunctionCall(
                str(call.get("id", "")),
                str(call.get("name", "")),
                str(call.get("arguments") or ""),
                str(call.get("thought_signature") or ""),
            )
            for call in _objects(message)
            if call.get("client_side") is not False  # the others are run by Deepgram, and only told
        )
        return [FunctionsRequested(ours)] if ours else []

    # What we send

    def settings(self, agent_settings: AgentSettings) -> bytes:
        """The first message. A conversation that goes on has a history and no greeting."""
        block: dict[str, Any] = {
            "listen": {"provider": agent_settings.listen},
            "think": self._think(agent_settings),
            "speak": {"provider": agent_settings.speak},
        }
        if agent_settings.history:
            block["context"] = {"messages": [_history(item) for item in agent_settings.history]}
        if agent_settings.greeting:
            block["greeting"] = agent_settings.greeting
        return orjson.dumps(
            {
                "type": "Settings",
                "tags": ["voice-gateway", f"agent:{agent_settings.agent}"],
                "flags": {"history": False},  # it would say everything twice
                "audio": {
                    "input": {"encoding": "mulaw", "sample_rate": 8000},
                    "output": {"encoding": "mulaw", "sample_rate": 8000, "container": "none"},
                },
                "agent": block,
            }
        )

    def _think(self, agent_settings: AgentSettings) -> dict[str, Any] | list[dict[str, Any]]:
        """Who answers. A list is tried in order, for each request anew."""
        common: dict[str, Any] = {"prompt": agent_settings.prompt}
        if agent_settings.functions:
            common["functions"] = [_function(function) for function in agent_settings.functions]
        thinks: list[dict[str, Any]] = []
        if agent_settings.endpoint is not None:
            headers = {"authorization": f"Bearer {agent_settings.endpoint.bearer}"}
            endpoint = {"url": agent_settings.endpoint.url, "headers": headers}
            thinks.append({"provider": _OWN_PROVIDER, "endpoint": endpoint, "context_length": "max", **common})
        if agent_settings.think is not None:
            thinks.append({"provider": agent_settings.think, **common})
        return thinks[0] if len(thinks) == 1 else thinks

    def force_end_turn(self) -> bytes:
        """Take the caller's turn for complete now: nothing more will come."""
        return b'{"type":"ForceEndTurn"}'

    def update_prompt(self, addition: str) -> bytes:
        """Add to the prompt: Deepgram appends, it does not replace."""
        return orjson.dumps({"type": "UpdatePrompt", "prompt": addition})

    def say(self, text: str) -> bytes:
        """Have the agent say this verbatim, after what it is saying."""
        return orjson.dumps({"type": "InjectAgentMessage", "message": text, "behavior": "queue"})

    def say_instead(self, text: str) -> bytes:
        """Have the agent say this verbatim, now, and not what it is saying or was about to say."""
        return orjson.dumps({"type": "InjectAgentMessage", "message": text, "behavior": "interrupt"})

    def update_think(self, agent_settings: AgentSettings) -> bytes:
        """Replace the prompt, and with it everything that decides on answers."""
        return orjson.dumps({"type": "UpdateThink", "think": self._think(agent_settings)})

    def function_result(self, call: FunctionCall, content: str) -> bytes:
        """Answer one function call; without an answer the agent stays silent."""
        return orjson.dumps({"type": "FunctionCallResponse", "id": call.id, "name": call.name, "content": content})


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
        # An effect must not happen on a guess that the caller had finished.
        "defer_until_eot": not function.speculative,
    }


def _objects(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    functions = message.get("functions")
    return [item for item in functions if isinstance(item, dict)] if isinstance(functions, list) else []
