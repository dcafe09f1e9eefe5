"""
Deepgram Voice Agent messages, without I/O: text in, events out; commands in, text out.

Audio is binary in both directions and needs no codec. The transcript is built from ConversationText alone, because
History repeats the same words. Unknown types are ignored: Deepgram adds new ones without notice.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from gateway.engines import interface as engine
from gateway.engines.interface import AgentFunction, AgentSettings, EngineEvent, FunctionCall, Patience
from gateway.errors import RemoteProtocolError

# Caused by what we sent: the same settings would fail again. Deepgram's other errors are worth a new connection.
_FINAL_ERRORS: Final = frozenset(
    "NON_SETTINGS_MESSAGE_BEFORE_SETTINGS SETTINGS_ALREADY_APPLIED UNPARSABLE_CLIENT_MESSAGE INVALID_SETTINGS "
    "USER_AUDIO_FORMAT AGENT_ID_NOT_SUPPORTED INVALID_AGENT_ID".split()
)
# A refused injection is documented as InjectionRefused, and seen on live connections as one of these warnings.
_REFUSED_INJECTIONS: Final = frozenset(
    {"INJECT_AGENT_MESSAGE_DURING_USER_SPEECH", "INJECT_AGENT_MESSAGE_DURING_AGENT_SPEECH"}
)
_IGNORED: Final = frozenset(
    "History AgentThinking AgentStartedSpeaking FunctionCallResponse SpeakUpdated ThinkUpdated ListenUpdated "
    "ThinkLiveUpdated FrustrationDetected __customFromThinkProvider".split()
)
_WITHOUT_FIELDS: Final[dict[str, EngineEvent]] = {
    "AgentAudioDone": engine.AgentAudioDone(),
    "SettingsApplied": engine.SettingsApplied(),
    "PromptUpdated": engine.PromptUpdated(),
    "InjectionRefused": engine.InjectionRefused(),
}
_TYPES_WITHOUT_FIELDS: Final = {event: name for name, event in _WITHOUT_FIELDS.items()}

# The confidence that ends a turn, and the silence in milliseconds that ends it without. Flux takes 0.7 and 5000.
FLUX_PATIENCE: Final[dict[Patience, tuple[float, int]]] = {
    "short": (0.6, 3000),
    "normal": (0.7, 5000),
    "long": (0.85, 8000),
    "dictation": (0.9, 5000),
}

_OWN_PROVIDER: Final = {"type": "open_ai", "model": "voice-gateway"}
"""Deepgram requires a model beside an own endpoint and passes its name through to it."""


class DeepgramCodec:
    """The messages of one connection. Collects unknown types, so that the session can log each once."""

    name: Final = "deepgram"

    def __init__(self) -> None:
        self.unknown_types: set[str] = set()
        self._settings: AgentSettings | None = None
        self._open_calls: dict[str, str] = {}
        """Names of the functions that Deepgram waits for, by call id."""

    # From Deepgram

    def receive(self, frame: bytes | str) -> list[EngineEvent]:
        """The events in one text frame. Raises RemoteProtocolError if it is not a message."""
        try:
            message = orjson.loads(frame)
        except orjson.JSONDecodeError:
            raise RemoteProtocolError(self.name, "sent text that is not JSON") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise RemoteProtocolError(self.name, "sent a message without a type")
        match message["type"]:
            case kind if kind in _WITHOUT_FIELDS:
                return [_WITHOUT_FIELDS[kind]]
            case "UserStartedSpeaking":
                return [engine.UserStartedSpeaking(message.get("answer_goes_on") is True)]  # only in recordings
            case "EndOfTurn":  # in no documentation, but sent by live servers since September 2026
                return [engine.TurnEnded(_turn(message))]
            case "ConversationText":
                content = message.get("content")
                text = content.replace("\0", "").strip() if isinstance(content, str) else ""  # PostgreSQL rejects NUL
                if message.get("role") == "user":
                    turn = _turn(message)  # without it, a turn that had no words is over by now
                    return [engine.UserSaid(text, turn) if text or turn else engine.TurnEnded()]
                return [engine.AgentSaid(text)] if text else []
            case "WordsTimed":  # only in recordings
                return [engine.WordsTimed(_word_ends(message))]
            case "LatencyReport":  # one figure per message, the one of recognition several times a second
                figures = [message.get(name) for name in ("stt_latency", "ttt_text_latency", "tts_latency")]
                return [engine.LatencyReported(*(float(x) if isinstance(x, int | float) else None for x in figures))]
            case "Welcome":
                return [engine.EngineGreeted(request_id=str(message.get("request_id", "")))]
            case "FunctionCallRequest":
                fields = ("id", "name", "arguments", "thought_signature")
                calls = tuple(
                    FunctionCall(*(str(call.get(field) or "") for field in fields))
                    for call in _functions(message)
                    if call.get("client_side") is not False  # Deepgram runs the others itself and only reports them
                )
                self._open_calls |= {call.id: call.name for call in calls}
                return [engine.FunctionsRequested(calls)] if calls else []
            case "FunctionCallCancelled":
                call_ids = tuple(str(call.get("id", "")) for call in _functions(message))
                for call_id in call_ids:
                    self._open_calls.pop(call_id, None)
                return [engine.FunctionsCancelled(call_ids)]
            case "Error":
                code = str(message.get("code", ""))
                retryable = message.get("retryable", code not in _FINAL_ERRORS)  # the field is only in recordings
                return [engine.EngineFailed(code, retryable=retryable is not False)]
            case "Warning":
                code = str(message.get("code", ""))
                return [engine.InjectionRefused() if code in _REFUSED_INJECTIONS else engine.EngineWarned(code)]
            case unknown:
                if unknown not in _IGNORED:
                    self.unknown_types.add(unknown)
                return []

    def encode(self, event: EngineEvent) -> bytes:
        """
        The message with which Deepgram would report this event.

        Recordings hold Deepgram messages, whichever engine took the call (recording format 1).
        """
        if isinstance(event, engine.FunctionsRequested):
            self._open_calls |= {call.id: call.name for call in event.calls}
        return orjson.dumps(_message(event))

    # To Deepgram

    def settings(self, settings: AgentSettings) -> bytes:
        """The first message of a connection. Sending the greeting again after a reconnect would greet twice."""
        self._settings = settings
        agent: dict[str, Any] = {
            "listen": {"provider": _listen(settings, settings.agent.patience)},
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
            common["functions"] = list(map(_function, settings.functions))
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

    def expect_dictation(self, expected: bool) -> bytes | None:
        """Repeats the whole block, as UpdateListen clears what it leaves out. None for Nova, which can't be set."""
        if self._settings is None or self._settings.agent.listen.get("version") != "v2":
            return None
        provider = _listen(self._settings, "dictation" if expected else self._settings.agent.patience, explicit=True)
        return orjson.dumps({"type": "UpdateListen", "listen": {"provider": provider}})

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


def _history(item: engine.HistoryMessage | engine.HistoryToolCall) -> dict[str, Any]:
    if isinstance(item, engine.HistoryMessage):
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


def _turn(message: Mapping[str, Any]) -> str:
    """The name of a turn, which only recordings of other engines' calls contain."""
    turn = message.get("turn")
    return turn if isinstance(turn, str) else ""


def _listen(settings: AgentSettings, patience: Patience, *, explicit: bool = False) -> dict[str, Any]:
    """The agent's recogniser, with names from memory after its own keyterms. Nova 2 takes none."""
    provider = {**settings.agent.listen}
    if provider.get("version") == "v2" and (explicit or patience != "normal"):
        threshold, timeout = FLUX_PATIENCE[patience]
        threshold = max(threshold, provider.get("eager_eot_threshold", 0.0))  # which must not be higher
        # What the agent's own `listen` sets takes precedence, but does not cut a dictation short.
        own = provider.get("eot_threshold", threshold)
        provider["eot_threshold"] = max(own, threshold) if patience == "dictation" else own
        provider.setdefault("eot_timeout_ms", timeout)
    if settings.keyterms and str(provider.get("model", "")).startswith(("flux-", "nova-3")):
        provider["keyterms"] = list(dict.fromkeys([*provider.get("keyterms", ()), *settings.keyterms]))
    return provider


def _word_ends(message: Mapping[str, Any]) -> tuple[engine.WordEnd, ...]:
    match message.get("ends"):
        case [*ends] if all(isinstance(end, list) and [type(x) for x in end] == [int, int] for end in ends):
            return tuple(engine.WordEnd(*end) for end in ends)
        case _:
            return ()


def _functions(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    functions = message.get("functions")
    return [item for item in functions if isinstance(item, dict)] if isinstance(functions, list) else []


def first_think(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model in a Settings message, the first one if it has fallbacks; empty if it has none."""
    agent = settings.get("agent")
    think = agent.get("think") if isinstance(agent, dict) else None
    first = think[0] if isinstance(think, list) and think else think
    return first if isinstance(first, dict) else {}


def _message(event: EngineEvent) -> dict[str, Any]:
    match event:
        case engine.EngineGreeted(request_id):
            return {"type": "Welcome", "request_id": request_id}
        case engine.UserStartedSpeaking(goes_on):
            return {"type": "UserStartedSpeaking", **({"answer_goes_on": True} if goes_on else {})}
        case engine.TurnEnded(turn):
            return {"type": "EndOfTurn", **({"turn": turn} if turn else {})}
        case engine.UserSaid(text, turn):
            return {"type": "ConversationText", "role": "user", "content": text, **({"turn": turn} if turn else {})}
        case engine.AgentSaid(text):
            return {"type": "ConversationText", "role": "assistant", "content": text}
        case engine.WordsTimed(ends):  # which Deepgram does not report; engines with other voices do
            return {"type": "WordsTimed", "ends": [(end.characters, end.audio_bytes) for end in ends]}
        case engine.FunctionsRequested(calls):
            functions = [
                {"id": call.id, "name": call.name, "arguments": call.arguments, "client_side": True} for call in calls
            ]
            return {"type": "FunctionCallRequest", "functions": functions}
        case engine.FunctionsCancelled(call_ids):
            return {"type": "FunctionCallCancelled", "functions": [{"id": call_id} for call_id in call_ids]}
        case engine.LatencyReported(stt, llm, tts):
            figures = {"stt_latency": stt, "ttt_text_latency": llm, "tts_latency": tts}
            return {"type": "LatencyReport", **{name: value for name, value in figures.items() if value is not None}}
        case engine.EngineWarned(code):
            return {"type": "Warning", "code": code, "description": ""}
        case engine.EngineFailed(code, retryable):
            return {"type": "Error", "code": code, "description": "", "retryable": retryable}
        case _:
            return {"type": _TYPES_WITHOUT_FIELDS[event]}
