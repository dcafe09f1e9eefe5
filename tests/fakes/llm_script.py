"""What a test can script of the LLM simulator, and what it gets back."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Profile = Literal["openai", "xai", "openclaw-old", "openclaw-new"]
Shape = Literal["plain", "fenced", "prose", "cut", "wrong types", "refusal"]


@dataclass(frozen=True)
class ToolCall:
    """One tool the model wants used. `arguments` is JSON text."""

    name: str
    arguments: str = "{}"
    id: str = "call_12345678"


@dataclass(frozen=True)
class Answer:
    """What the model says. `finish` is in OpenAI's words; `breaks_after` so many pieces comes an error instead."""

    text: str = ""
    tools: tuple[ToolCall, ...] = ()
    finish: str = ""
    breaks_after: int | None = None

    @property
    def reason(self) -> str:
        return self.finish or ("tool_calls" if self.tools else "stop")


@dataclass(frozen=True)
class Pace:
    """How an answer comes: seconds to wait, where it stops for good, and how its bytes are cut."""

    before_headers: float = 0.0
    before_first_token: float = 0.0
    between_tokens: float = 0.0
    hangs: Literal["", "before headers", "before first token", "after first token"] = ""
    closes_after: int | None = None
    slice_bytes: int = 0
    characters: int = 3


@dataclass
class Request:
    """One request in full, and what became of it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float
    method: str = "POST"
    status: int = 0
    completed: bool = False
    disconnected_at: float | None = None


class Refusal(Exception):
    """The simulated service says no."""

    def __init__(self, status: int, kind: str, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after = status, kind, message, retry_after


class Record(NamedTuple):
    """One server-sent event, and whether it carries some of the answer."""

    text: str
    is_token: bool


@dataclass(frozen=True)
class Exchange:
    """One question, checked, with its answer: what a dialect needs to speak. `cached` tokens of it were known."""

    request: Request
    answer: Answer
    pace: Pace
    profile: str = ""
    cached: int = 0

    @property
    def pieces(self) -> list[str]:
        """The text in pieces of a few characters, so mostly cut inside words."""
        size = self.pace.characters
        return [self.answer.text[start : start + size] for start in range(0, len(self.answer.text), size)]

    @property
    def model(self) -> str:
        return str(self.request.body.get("model", "openclaw"))
