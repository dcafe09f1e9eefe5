"""What a voice engine is told about one call, whichever engine it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.engines.events import FunctionCall


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One turn of the conversation so far, handed to a new connection."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class HistoryToolCall:
    """A function that the agent called in the conversation so far, and what it was answered."""

    call: FunctionCall
    answer: str


@dataclass(frozen=True, slots=True)
class AgentFunction:
    """
    A function the agent may call; we run it.

    `speculative`: it has no effect, so it may be run on a guess that the caller has finished.
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    speculative: bool = False


@dataclass(frozen=True, slots=True)
class ThinkEndpoint:
    """Where the engine asks for the agent's answers, and what it shows there to be let in."""

    url: str
    bearer: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Who the agent is, what it knows, how it listens, thinks and speaks. A call that goes on has no greeting."""

    agent: str
    prompt: str
    greeting: str
    listen: Mapping[str, Any]
    think: Mapping[str, Any] | None
    """The engine's own language model; beside an endpoint it answers when that one can't."""
    speak: Mapping[str, Any]
    functions: Sequence[AgentFunction] = ()
    history: Sequence[HistoryMessage | HistoryToolCall] = ()
    endpoint: ThinkEndpoint | None = None
