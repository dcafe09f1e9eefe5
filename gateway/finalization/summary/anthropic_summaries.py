"""Call summaries by Claude (Anthropic's Messages API)."""

from typing import TYPE_CHECKING, Final

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import SCHEMA, CallSummary, parse_answer
from gateway.llm.anthropic import DEFAULT_MODEL, AnthropicClient, translated_errors
from gateway.settings import Secret

if TYPE_CHECKING:
    from anthropic.types import Message

MAX_TOKENS: Final = 2048
# After max_tokens the JSON is usually truncated, unless only white space was cut off.
_STOPS_WITH_TEXT: Final = ("end_turn", "stop_sequence", "max_tokens")


class AnthropicSummaries:
    """A SummaryProvider."""

    name = "anthropic"

    def __init__(self, api_key: Secret, base_url: str, model: str = "", *, timeout: float = 15.0) -> None:
        self.model = model or DEFAULT_MODEL
        self._client = AnthropicClient(api_key, base_url, timeout=timeout)

    async def prepare(self) -> None:
        """Import the SDK now, so that the first summary does not wait for it."""
        await self._client.open()

    async def summarise(self, instructions: str, transcript: str) -> CallSummary:
        """One attempt, no retry. Raises LlmUnavailable or LlmRefused."""
        client = await self._client.open()
        with translated_errors():
            message = await client.messages.create(
                model=self.model,
                max_tokens=MAX_TOKENS,
                system=instructions,
                messages=[{"role": "user", "content": transcript}],
                # Haiku thinks by default: slower, and its thinking counts towards max_tokens.
                thinking={"type": "disabled"},
                output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
            )
        return parse_answer(_text_of(message), f"{self.name}/{self.model}")

    async def close(self) -> None:
        await self._client.close()


def _text_of(message: "Message") -> str:
    """The text blocks of an answer, checked, since the SDK does not validate what a server sends."""
    stop_reason = getattr(message, "stop_reason", None)
    content = getattr(message, "content", None)
    if not isinstance(content, list):
        raise LlmUnavailable("anthropic answered with something other than a message")
    if stop_reason not in _STOPS_WITH_TEXT:
        raise LlmRefused(f"anthropic stopped with {stop_reason}")
    texts = [getattr(block, "text", None) for block in content if getattr(block, "type", None) == "text"]
    return "".join(text for text in texts if isinstance(text, str))
