"""
Anthropic's SDK, and summaries by Claude through it.

The SDK takes seconds of CPU to import, so that happens at first use and off the event loop. Foreign errors become
LlmUnavailable or LlmRefused here, once; their texts may quote headers and are dropped.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import SCHEMA, CallSummary, parse_answer
from gateway.llm.chat import CONNECT_TIMEOUT, KEEP_ALIVE
from gateway.llm.failures import failure_of
from gateway.settings import Secret

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

DEFAULT_MODEL: Final = "claude-haiku-5-5"
MAX_TOKENS: Final = 2048
# With max_tokens the JSON is cut as a rule, but not if only white space was.
_STOPS_WITH_TEXT: Final = ("end_turn", "stop_sequence", "max_tokens")


class AnthropicClient:
    """The SDK's client, made when it is first needed."""

    def __init__(self, api_key: Secret, base_url: str, *, timeout: float) -> None:
        self._api_key = api_key
        # The SDK adds /v1 itself; people write it all the same.
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._timeout = timeout
        self._client: AsyncAnthropic | None = None
        self._opening = asyncio.Lock()

    async def open(self) -> "AsyncAnthropic":
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._connect)
            return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _connect(self) -> "AsyncAnthropic":
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, Timeout
        from httpx2 import Limits

        return AsyncAnthropic(
            api_key=self._api_key.reveal(),
            base_url=self._base_url,
            timeout=Timeout(self._timeout, connect=CONNECT_TIMEOUT),
            max_retries=0,
            open_telemetry=False,  # its traces can be told to hold content
            http_client=DefaultAsyncHttpxClient(limits=Limits(keepalive_expiry=KEEP_ALIVE)),
        )


class AnthropicSummaries:
    """Asks Anthropic's Messages interface for a summary."""

    name = "anthropic"

    def __init__(self, api_key: Secret, base_url: str, model: str = "", *, timeout: float = 15.0) -> None:
        self.model = model or DEFAULT_MODEL
        self._client = AnthropicClient(api_key, base_url, timeout=timeout)

    async def prepare(self) -> None:
        """Load the SDK now, so that the first summary need not wait for it."""
        await self._client.open()

    async def summarise(self, instructions: str, transcript: str) -> CallSummary:
        """One attempt, no retry. Raises LlmUnavailable or LlmRefused."""
        client = await self._client.open()
        with foreign_errors():
            message = await client.messages.create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                system=instructions,
                messages=[{"role": "user", "content": transcript}],
                # Haiku thinks unless told not to: slower, and its thoughts count into max_tokens.
                thinking={"type": "disabled"},
                output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
            )
        return parse_answer(_text_of(message), f"{self.name}/{self.model}")

    async def close(self) -> None:
        await self._client.close()


def _text_of(message: "Message") -> str:
    """The text blocks of an answer. Nothing is taken for granted: the SDK does not check what a server sends."""
    stop_reason = getattr(message, "stop_reason", None)
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        raise LlmUnavailable("anthropic answered with something that is no message")
    if stop_reason not in _STOPS_WITH_TEXT:
        raise LlmRefused(f"anthropic stopped with {stop_reason}")
    texts = [getattr(block, "text", None) for block in content if getattr(block, "type", None) == "text"]
    return "".join(text for text in texts if isinstance(text, str))


@contextmanager
def foreign_errors() -> Iterator[None]:
    """The SDK's errors as ours; without their cause, which may quote a header or the transcript."""
    import anthropic
    import httpx2

    try:
        yield
    except anthropic.APIStatusError as error:
        raise failure_of("anthropic", error.status_code, error.response.headers.get("retry-after")) from None
    except (anthropic.APITimeoutError, httpx2.TimeoutException):
        raise LlmUnavailable("anthropic did not answer in time") from None
    except ValueError:  # the SDK hands on what its JSON reader raises
        raise LlmUnavailable("anthropic answered with something that is not JSON") from None
    except (anthropic.AnthropicError, httpx2.HTTPError) as error:
        raise LlmUnavailable(f"anthropic can't be reached: {type(error).__name__}") from None
