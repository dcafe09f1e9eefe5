"""
Requests to language models and the events of their answers, the same for every provider, and server-sent events.

An answer consists of TextDelta and ToolCallDelta, possibly Usage, and Finished as the last event. An answer that ends
without Finished raises LlmUnavailable or LlmRefused.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from gateway.errors import LlmError, LlmRefused, LlmUnavailable

CONNECT_TIMEOUT: Final = 2.0
TOKEN_TIMEOUT: Final = 5.0  # between two tokens; how long to wait for the first is up to the caller
LONGEST_SILENCE: Final = 60.0  # the longest that any caller waits for the first token
KEEP_ALIVE: Final = 60.0  # of an idle connection: people think for longer than the usual five seconds
LINGER: Final = 0.2  # from the last event to the end of the response
MAX_RECORD_BYTES: Final = 1 << 20  # records have a few hundred bytes; a longer one is an error of the server
UNBUFFERED: Final = {"Accept-Encoding": "identity"}  # servers buffer what they compress

# Request timeout, conflict, rate limit. From 500 on it is the provider's fault; Anthropic's 529 is an overload.
_RETRYABLE: Final = (408, 409, 429)

Message = Mapping[str, Any]
"""One message in OpenAI's format: role, content as text or None, tool_calls, tool_call_id."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to a model. `memory` is for this turn only and must not invalidate a cached prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    memory: str = ""
    parallel_tool_calls: bool = True
    """Whether one answer may call several of `tools`."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A fragment of the tool call with that index; `id` and `name` are in its first fragment only."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one answer. `cached_tokens` is the part of the prompt that the provider had cached."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    reason: FinishReason


ChatEvent = TextDelta | ToolCallDelta | Usage | Finished


class ModelName(NamedTuple):
    """A language model, as live events name it. `model` is empty if it is not known."""

    provider: str
    model: str


@dataclass(frozen=True, slots=True)
class ModelAttempt:
    """One request to a language model that is over."""

    model: ModelName
    outcome: Literal["answered", "failed", "cancelled"]
    """Cancelled: another model was faster, or the answer was not needed any more."""
    error: str
    """Why it failed: an HTTP status, `timeout`, or the type of error."""
    seconds: float
    """Until the answer was complete, or the attempt ended."""
    first_token: float | None
    """Seconds until the first token, if one came."""
    usage: Usage | None = None
    """As far as the provider reports it."""


class Upstream(Protocol):
    """A language model that answers for an agent."""

    name: str
    model: str

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        """
        Send the request and yield the answer as it arrives.

        If it is read to the end, the connection is kept for the next answer; if it is closed or cancelled earlier, the
        connection is closed and the model stops. `caller_key` is an opaque identifier of agent and caller, for a
        provider that stores conversations; "" for none.
        """
        ...

    async def warm(self) -> None:
        """Open a connection in advance. Failures are ignored."""
        ...

    async def close(self) -> None: ...


class LanguageModel(Protocol):
    """The agent's own language model, for the conversation of one call."""

    @property
    def name(self) -> ModelName:
        """The model that is asked first."""

    @property
    def opens(self) -> bool:
        """Whether it rewrites the greeting: asked with the greeting as the last message, it returns its own."""

    def answer(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Stream an answer. Close the generator to cancel it."""
        ...


@dataclass(frozen=True, slots=True)
class LlmEndpoint:
    """
    The agent's own language model, for one call.

    An engine across the network posts OpenAI chat completions to `url` with `bearer`; one in this process uses `model`.
    """

    url: str
    bearer: str = field(repr=False)
    model: LanguageModel = field(repr=False)


async def whole_answer(
    name: str, events: AsyncGenerator[ChatEvent, None], token_timeout: float
) -> AsyncGenerator[ChatEvent, None]:
    """
    Pass events on, and raise LlmUnavailable if there is a long gap or no Finished at the end.

    A timer per event would take a tenth of the gateway's CPU: one timer is moved now and then, so a gap may be noticed
    a quarter early. The reader must not wait for anything else between two events.
    """
    clock = asyncio.get_running_loop().time
    async with aclosing(events):
        try:
            async with asyncio.timeout(None) as patience:
                async for event in events:
                    yield event
                    if isinstance(event, Finished):
                        break
                    now, until = clock(), patience.when()
                    if until is None or until - now < 0.75 * token_timeout:
                        patience.reschedule(now + token_timeout)
                else:
                    raise LlmUnavailable(f"{name} ended its answer early")
        except TimeoutError:
            raise LlmUnavailable(f"{name} stopped in the middle of its answer") from None
        # Read the response to its end, so that the connection can be used again.
        with suppress(LlmError, TimeoutError):
            async with asyncio.timeout(LINGER):
                async for _ in events:
                    pass


def error_for_status(provider: str, status: int, retry_after: str | None, to_do: str = "") -> LlmError:
    """The error for a response that is not 2xx; `retry_after` is the header as sent."""
    message = f"{provider} answered {status}{to_do and f'; {to_do}'}"
    if status not in _RETRYABLE and status < 500:
        return LlmRefused(message, status=status)
    try:
        seconds = float(retry_after or "")
    except ValueError:  # its other form, a date, depends on two clocks and is ignored
        seconds = -1.0
    is_given = math.isfinite(seconds) and seconds >= 0
    return LlmUnavailable(message, status=status, retry_after=seconds if is_given else None)


# Server-sent events


class SseRecord(NamedTuple):
    """One event: its name ("" for none) and its data, UTF-8 as received."""

    event: str
    data: bytes


class SseParser:
    """
    Parses one response: `feed` returns the records that the new bytes complete.

    Lines end in LF or CRLF (the standard also allows CR alone, which no server sends). Comments and unknown fields are
    skipped. A record without its closing blank line is dropped, as the standard says.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._event = ""
        self._data: list[bytes] = []
        self._line: list[bytes] = []  # pieces of an unfinished line
        self._size = 0  # of the record so far

    def feed(self, data: bytes) -> list[SseRecord]:
        """Raises LlmUnavailable for a record that is too long."""
        *ends, rest = data.split(b"\n")
        records = []
        for end in ends:
            self._hold(end)
            line = b"".join(self._line).removesuffix(b"\r")
            self._line.clear()
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name == b"event":
                self._event = value.removeprefix(b" ").decode(errors="replace")
            elif not line:
                record = SseRecord(self._event, b"\n".join(self._data))
                self._event, self._size = "", 0
                self._data.clear()
                if record.data:
                    records.append(record)
        self._hold(rest)
        return records

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MAX_RECORD_BYTES:
            raise LlmUnavailable(f"{self._peer} sent a record of more than {MAX_RECORD_BYTES} bytes")
        self._line.append(piece)
