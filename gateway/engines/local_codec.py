"""
The local engine's side of the engine dialect, without I/O: what a gateway sends it, and what it answers.

It speaks the same dialect as Deepgram's Voice Agent (`deepgram.py` is the other end), so that calls, recordings and
replays are the same whichever engine is on the line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.engines.agent_settings import AgentFunction, HistoryMessage
from gateway.engines.events import FunctionCall

GREETED: Final = b'{"type":"Welcome","request_id":"local"}'
SETTINGS_APPLIED: Final = b'{"type":"SettingsApplied"}'
PROMPT_UPDATED: Final = b'{"type":"PromptUpdated"}'
THINK_UPDATED: Final = b'{"type":"ThinkUpdated"}'
INJECTION_REFUSED: Final = b'{"type":"InjectionRefused"}'
USER_STARTED_SPEAKING: Final = b'{"type":"UserStartedSpeaking"}'
TURN_ENDED: Final = b'{"type":"EndOfTurn"}'
AGENT_AUDIO_DONE: Final = b'{"type":"AgentAudioDone"}'


@dataclass(frozen=True, slots=True)
class Configured:
    """Who the agent is. `bearer` is the key to whoever thinks for it."""

    prompt: str
    greeting: str
    functions: tuple[AgentFunction, ...]
    history: tuple[HistoryMessage, ...]
    bearer: str


@dataclass(frozen=True, slots=True)
class PromptAdded:
    text: str


@dataclass(frozen=True, slots=True)
class ThinkReplaced:
    """The agent's prompt and functions are these now. What the old prompt said is not known any more."""

    prompt: str
    functions: tuple[AgentFunction, ...]


@dataclass(frozen=True, slots=True)
class SayWanted:
    """The agent is to say this: after what it is saying, or instead of it."""

    text: str
    instead: bool = False


@dataclass(frozen=True, slots=True)
class TurnForced:
    """The caller says nothing more."""


@dataclass(frozen=True, slots=True)
class FunctionAnswered:
    call_id: str
    content: str


ClientMessage = Configured | PromptAdded | ThinkReplaced | SayWanted | TurnForced | FunctionAnswered


def read(frame: bytes) -> ClientMessage | None:
    """What the gateway wants; None for what a local engine need not know, like a sign of life."""
    message: Mapping[str, Any] = orjson.loads(frame)
    match message["type"]:
        case "Settings":
            return _configured(message["agent"])
        case "UpdatePrompt":
            return PromptAdded(message["prompt"])
        case "UpdateThink":
            think = _think(message["think"])
            return ThinkReplaced(think["prompt"], _functions(think))
        case "InjectAgentMessage":
            return SayWanted(message["message"], instead=message.get("behavior") == "interrupt")
        case "ForceEndTurn":
            return TurnForced()
        case "FunctionCallResponse":
            return FunctionAnswered(message["id"], message["content"])
        case _:
            return None


def _configured(agent: Mapping[str, Any]) -> Configured:
    think = _think(agent["think"])
    authorization = think.get("endpoint", {}).get("headers", {}).get("authorization", "")
    return Configured(
        prompt=think["prompt"],
        greeting=agent.get("greeting", ""),
        functions=_functions(think),
        history=tuple(
            HistoryMessage(turn["role"], turn["content"])
            for turn in agent.get("context", {}).get("messages", [])
            if "role" in turn  # what functions were used for has been said
        ),
        bearer=authorization.removeprefix("Bearer "),
    )


def _think(given: Mapping[str, Any] | list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """An engine's own language model may stand beside the endpoint; there is none here."""
    thinks = given if isinstance(given, list) else [given]
    return next((think for think in thinks if "endpoint" in think), thinks[0])


def _functions(think: Mapping[str, Any]) -> tuple[AgentFunction, ...]:
    return tuple(
        AgentFunction(given["name"], given["description"], given["parameters"]) for given in think.get("functions", [])
    )


def user_said(text: str) -> bytes:
    return orjson.dumps({"type": "ConversationText", "role": "user", "content": text})


def agent_said(text: str) -> bytes:
    return orjson.dumps({"type": "ConversationText", "role": "assistant", "content": text})


def functions_requested(calls: Iterable[FunctionCall]) -> bytes:
    functions = [{"id": call.id, "name": call.name, "arguments": call.arguments, "client_side": True} for call in calls]
    return orjson.dumps({"type": "FunctionCallRequest", "functions": functions})


def failed(code: str) -> bytes:
    return orjson.dumps({"type": "Error", "code": code, "description": ""})
