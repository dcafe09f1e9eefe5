"""Call summaries by Grok (xAI's chat completions). Its SDK uses gRPC; plain HTTP is easier to limit in time."""

from collections.abc import Mapping
from typing import Any, Final

import httpx

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.finalization.summary.call_summary import SCHEMA, CallSummary, parse_answer
from gateway.llm.chat import error_for_status
from gateway.settings import Secret

DEFAULT_MODEL: Final = "grok-4.3"
MAX_TOKENS: Final = 4096  # includes reasoning tokens
_CONNECT_TIMEOUT: Final = 3.0


class XaiSummaries:
    """A SummaryProvider."""

    name = "xai"

    def __init__(self, api_key: Secret, api_url: str, model: str = "", *, timeout: float = 15.0) -> None:
        self.model = model or DEFAULT_MODEL
        self._api_key = api_key
        self._url = f"{api_url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT))

    async def prepare(self) -> None:
        """Nothing to load."""

    async def summarise(self, instructions: str, transcript: str) -> CallSummary:
        """One attempt, no retry. Raises LlmUnavailable or LlmRefused."""
        answer = await self._post(
            {
                "model": self.model,
                "messages": [
                    {"role": "system", "content": instructions},
                    {"role": "user", "content": transcript},
                ],
                "max_completion_tokens": MAX_TOKENS,
                "reasoning_effort": "low",
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "call_summary", "schema": SCHEMA, "strict": True},
                },
            }
        )
        return parse_answer(_text_of(answer), f"{self.name}/{self.model}")

    async def close(self) -> None:
        await self._client.aclose()

    async def _post(self, body: Mapping[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {self._api_key.reveal()}"}
        # `from None` throughout: httpx's errors hold the request, which contains the key.
        try:
            response = await self._client.post(self._url, json=body, headers=headers)
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


def _text_of(answer: Any) -> str:
    """The text of a completion. Any key may be missing or of another type."""
    match answer:
        case {"choices": [{"finish_reason": "content_filter"}, *_]}:
            raise LlmRefused("xai stopped with content_filter")
        case {"choices": [{"message": {"refusal": str(refusal)}}, *_]} if refusal:
            raise LlmRefused("xai refused")
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            return content
        case {"choices": [{"message": {"content": [*parts]}}, *_]}:
            return "".join(part["text"] for part in parts if _is_text(part))
        case _:
            raise LlmRefused("xai answered without text")


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
