"""Language models that write call summaries: Claude (Anthropic's Messages API) and Grok (xAI's chat completions)."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

import httpx

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import CallSummary, SummaryRequest, parse_answer
from gateway.llm import anthropic
from gateway.llm.chat import error_for_status
from gateway.settings import Secret

if TYPE_CHECKING:
    from anthropic.types import Message

_ANTHROPIC_TOKENS: Final = 2048
# After max_tokens the JSON is usually truncated, unless only white space was cut off.
_STOPS_WITH_TEXT: Final = ("end_turn", "stop_sequence", "max_tokens")
_XAI_MODEL: Final = "grok-4.3"
_XAI_TOKENS: Final = 4096  # includes reasoning tokens
_CONNECT_TIMEOUT: Final = 3.0


class SummaryProvider(Protocol):
    """A language model that writes summaries."""

    name: str

    async def prepare(self) -> None: ...

    async def summarise(self, request: SummaryRequest) -> CallSummary:
        """One attempt, no retry. Raises LlmUnavailable or LlmRefused."""
        ...

    async def close(self) -> None: ...


class AnthropicSummaries:
    """Summaries by Claude."""

    name = "anthropic"

    def __init__(self, api_key: Secret, base_url: str, model: str = "", *, timeout: float = 15.0) -> None:
        self.model = model or anthropic.DEFAULT_MODEL
        self._client = anthropic.AnthropicClient(api_key, base_url, timeout=timeout)

    async def prepare(self) -> None:
        """Import the SDK now, so that the first summary does not wait for it."""
        await self._client.open()

    async def summarise(self, request: SummaryRequest) -> CallSummary:
        client = await self._client.open()
        with anthropic.translated_errors():
            message = await client.messages.create(
                model=self.model,
                max_tokens=_ANTHROPIC_TOKENS,
                system=request.instructions,
                messages=[{"role": "user", "content": request.transcript}],
                # Haiku thinks by default: slower, and its thinking counts towards max_tokens.
                thinking={"type": "disabled"},
                output_config={"format": {"type": "json_schema", "schema": request.schema}},
            )
        return parse_answer(_message_text(message), f"{self.name}/{self.model}", request.fields)

    async def close(self) -> None:
        await self._client.close()


def _message_text(message: "Message") -> str:
    """The text blocks of an answer, checked, since the SDK does not validate what a server sends."""
    stop_reason = getattr(message, "stop_reason", None)
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        raise LlmUnavailable("anthropic answered with something other than a message")
    if stop_reason not in _STOPS_WITH_TEXT:
        raise LlmRefused(f"anthropic stopped with {stop_reason}")
    texts = [getattr(block, "text", None) for block in content if getattr(block, "type", None) == "text"]
    return "".join(text for text in texts if isinstance(text, str))


class XaiSummaries:
    """Summaries by Grok. Its SDK uses gRPC; plain HTTP is easier to limit in time."""

    name = "xai"

    def __init__(self, api_key: Secret, api_url: str, model: str = "", *, timeout: float = 15.0) -> None:
        self.model = model or _XAI_MODEL
        self._api_key = api_key
        self._url = f"{api_url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT))

    async def prepare(self) -> None:
        """Nothing to load."""

    async def summarise(self, request: SummaryRequest) -> CallSummary:
        answer = await self._post(
            {
                "model": self.model,
                "messages": [
                    {"role": "system", "content": request.instructions},
                    {"role": "user", "content": request.transcript},
                ],
                "max_completion_tokens": _XAI_TOKENS,
                "reasoning_effort": "low",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "call_summary", "schema": request.schema, "strict": True},
                },
            }
        )
        return parse_answer(_completion_text(answer), f"{self.name}/{self.model}", request.fields)

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, body: Mapping[str, Any]) -> Any:
        # `from None` throughout: httpx's errors hold the request, which contains the key.
        try:
            response = await self._client.post(
                self._url, json=body, headers={"Authorization": f"Bearer {self._api_key.reveal()}"}
            )
        except httpx.TimeoutException:
            raise LlmUnavailable("xai did not answer in time") from None
        except httpx.HTTPError as error:
            raise LlmUnavailable(f"xai can't be reached: {type(error).__name__}") from None
        if not response.is_success:
            raise error_for_status("xai", response.status_code, response.headers.get("retry-after"))
        try:
            return response.json()
        except ValueError:
            raise LlmUnavailable("xai answered with something that is not JSON") from None


def _completion_text(answer: Any) -> str:
    """The text of a completion. Any key may be missing or of another type."""
    match answer:
        case {"choices": [{"finish_reason": "content_filter"}, *_]}:
            raise LlmRefused("xai stopped with content_filter")
        case {"choices": [{"message": {"refusal": str(refusal)}}, *_]} if refusal:
            raise LlmRefused("xai refused")
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            return content
        case {"choices": [{"message": {"content": [*parts]}}, *_]}:
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            return "".join(text for text in texts if isinstance(text, str))
        case _:
            raise LlmRefused("xai answered without text")
