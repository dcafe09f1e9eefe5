"""
The local engine's side of the engine dialect, without I/O: what a gateway sends it, and what it answers.

It speaks the same dialect as Deepgram's Voice Agent (`deepgram.py` is the other end), so that calls, recordings and
replays are the same whichever engine is on the line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.engines.brief import AgentFunction, Spoken
from gateway.engines.events import FunctionCall

GREETED: Final = b'{"type":"Welcome","request_id":"local"}'
SETTINGS_APPLIED: Final = b'{"type":"SettingsApplied"}'
PROMPT_UPDATED: Final = b'{"type":"PromptUpdated"}'
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
    history: tuple[Spoken, ...]
    bearer: str


@dataclass(frozen=True, slots=True)
class PromptAdded:
    text: str


@dataclass(frozen=True, slots=True)
class SayWanted:
    """The agent is to say this, after what it is saying."""

    text: str


@dataclass(frozen=True, slots=True)
class TurnForced:
    """The caller says nothing more."""


@dataclass(frozen=True, slots=True)
class FunctionAnswered:
    call_id: str
    content: str


ClientMessage = Configured | PromptAdded | SayWanted | TurnForced | FunctionAnswered


def read(frame: bytes) -> ClientMessage | None:
    """What the gateway wants; None for what a local engine need not know, like a sign of life."""
    message: Mapping[str, Any] = orjson.loads(frame)
    match message["type"]:
        case "Settings":
            return _configured(message["agent"])
        case "UpdatePrompt":
            return PromptAdded(message["prompt"])
        case "InjectAgentMessage":
            return SayWanted(message["message"])
        case "ForceEndTurn":
            return TurnForced()
        case "FunctionCallResponse":
            return FunctionAnswered(message["id"], message["content"])
        case _:
            return None


def _configured(agent: Mapping[str, Any]) -> Configured:
    """An engine's own language model may stand beside the endpoint; there is none here."""
    thinks = agent["think"] if isinstance(agent["think"], list) else [agent["think"]]
    think = next((think for think in thinks if "endpoint" in think), thinks[0])
    authorization = think.get("endpoint", {}).get("headers", {}).get("authorization", "")
    return Configured(
        prompt=think["prompt"],
        greeting=agent.get("greeting", ""),
        functions=tuple(
            AgentFunction(given["name"], given["description"], given["parameters"])
            for given in think.get("functions", [])
        ),
        history=tuple(
            Spoken(turn["role"], turn["content"])
            for turn in agent.get("context", {}).get("messages", [])
            if "role" in turn  # what functions were used for has been said
        ),
        bearer=authorization.removeprefix("Bearer "),
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
