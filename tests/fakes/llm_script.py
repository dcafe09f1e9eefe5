"""Scripted answers of the fake LLM, and the requests it recorded."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Profile = Literal["openai", "xai", "openclaw-old", "openclaw-new"]
Shape = Literal["plain", "fenced", "prose", "cut", "wrong types", "refusal"]


@dataclass(frozen=True)
class ToolCall:
    """One tool call of the model. `arguments` is JSON text."""

    name: str
    arguments: str = "{}"
    id: str = "call_12345678"


@dataclass(frozen=True)
class Answer:
    """The model's answer. `finish` is an OpenAI finish reason; an error follows after `breaks_after` pieces."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    finish: str = ""
    breaks_after: int | None = None

    @property
    def reason(self) -> str:
        return self.finish or ("tool_calls" if self.tools else "stop")


@dataclass(frozen=True)
class Pace:
    """The timing of an answer: delays, where it stalls, and how its bytes are split."""

    before_headers: float = 0.0
    before_first_token: float = 0.0
    between_tokens: float = 0.0
    hangs: Literal["", "before headers", "before first token", "after first token"] = ""
    closes_after: int | None = None
    slice_bytes: int = 0
    characters: int = 3


@dataclass
class Request:
    """One recorded request and its outcome."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    method: str = "POST"
    status: int = 0
    completed: bool = False
    disconnected_at: float | None = None


class Refusal(Exception):
    """The service rejects the request."""

    def __init__(self, status: int, kind: str, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after = status, kind, message, retry_after


class Record(NamedTuple):
    """One server-sent event, and whether it contains a part of the answer."""

    text: str
    is_token: bool


@dataclass(frozen=True)
class Exchange:
    """One validated request with its answer. `cached` is the number of cached tokens."""

    request: Request
    answer: Answer
    pace: Pace
    profile: str = ""
    cached: int = 0

    @property
    def pieces(self) -> list[str]:
        """The text in pieces of a few characters, mostly split inside words."""
        size = self.pace.characters
        return [self.answer.text[start : start + size] for start in range(0, len(self.answer.text), size)]

    @property
    def model(self) -> str:
        return str(self.request.body.get("model", "openclaw"))
