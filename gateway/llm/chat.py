"""
The words in which an agent's answer is asked for and given, the same for every upstream; no I/O.

An answer is TextDelta and ToolCallDelta as they come, perhaps Usage, and Finished as its last event. One that does not
get so far raises LlmUnavailable or LlmRefused.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from gateway.errors import LlmError, LlmUnavailable

CONNECT_TIMEOUT: Final = 2.0
TOKEN_TIMEOUT: Final = 5.0  # between two tokens; the first is the asker's to wait for
LONGEST_SILENCE: Final = 60.0  # what the asker may wait for the first at most
KEEP_ALIVE: Final = 60.0  # an unused connection; callers think longer than an HTTP client's usual five seconds
LINGER: Final = 0.2  # from the last event to the end of the response
UNBUFFERED: Final = {"Accept-Encoding": "identity"}  # a server gathers what it compresses

Message = Mapping[str, Any]
"""One message in OpenAI's words: role, content as text or None, tool_calls, tool_call_id."""

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What an upstream is asked. `memory` is for this turn only, and must not disturb a cached prompt."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    memory: str = ""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of what the agent says."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of the call of that index: `id` and `name` come with its first fragment only."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What the answer took. `cached_tokens` are those of the prompt that the provider had kept."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The answer is complete."""

    reason: FinishReason


ChatEvent = TextDelta | ToolCallDelta | Usage | Finished


class Upstream(Protocol):
    """A language model that answers callers."""

    name: str
    model: str

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        """
        Ask, and yield the answer as it comes.

        Read to the end, the connection is kept for the next answer; closed or cancelled before, it is cut at once and
        the model stops. `caller_key` is an opaque name of agent and caller, for an upstream that keeps conversations;
        "" for none.
        """
        ...

    async def warm(self) -> None:
        """Open a connection, so that the next answer need not wait for one. Failures are silent."""
        ...

    async def close(self) -> None: ...


async def whole_answer(
    name: str, events: AsyncGenerator[ChatEvent, None], token_timeout: float
) -> AsyncGenerator[ChatEvent, None]:
    """
    Pass an upstream's events on, and hold it to what an answer is: no long gap, and Finished at the end.

    A timer for each event would take a tenth of the gateway's time: one is moved along now and then, and a gap may be
    noticed a quarter early. The reader must not wait for anything else between two events.
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
                    raise LlmUnavailable(f"{name} broke off its answer")
        except TimeoutError:
            raise LlmUnavailable(f"{name} fell silent in its answer") from None
        # A response that was read to its end leaves its connection for the next one.
        with suppress(LlmError, TimeoutError):
            async with asyncio.timeout(LINGER):
                async for _ in events:
                    pass
