"""Language models that write call summaries: Claude, and every model with a chat completions API."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol
from urllib.parse import urlsplit

import httpx

from gateway.errors import LlmRefused, LlmUnavailable, connection_problem
from gateway.finalization.summary.call_summary import CallSummary, EmptySummary, SummaryRequest, parse_answer
from gateway.llm import anthropic
from gateway.llm.accounts import ModelAddress
from gateway.llm.chat import error_for_status
from gateway.llm.completions_codec import read_json
from gateway.settings import Secret

if TYPE_CHECKING:
    from anthropic.types import Message

_ANTHROPIC_TOKENS: Final = 2048
# After max_tokens the JSON is usually truncated, unless only white space was cut off.
_STOPS_WITH_TEXT: Final = ("end_turn", "stop_sequence", "max_tokens")
_XAI_MODEL: Final = "grok-4.3"
_OPENAI_MODEL: Final = "gpt-5.4-mini"
_MAX_TOKENS: Final = 4096  # includes reasoning tokens
_MAX_BYTES: Final = 1_000_000
_TIMEOUT: Final = 15.0
_OWN_SERVER_TIMEOUT: Final = 120.0
"""A model on one's own machine may write ten tokens a second."""
_ONLY_JSON: Final = "Answer with one JSON object, and nothing before or after it."
_ONCE_MORE: Final = f"{_ONLY_JSON} Its keys are exactly: {{keys}}."
_FORMAT_REFUSED: Final = (400, 422)
_THOUGHTS: Final = re.compile(r"\A.*</think(?:ing)?>|<think(?:ing)?>.*\Z", re.DOTALL)
"""Some templates put the opening tag into the prompt, so that the answer has only the closing one."""
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


class _SchemaIgnored(LlmRefused):
    """The server accepted the schema, and its answer does not follow it."""


_Format = Literal["json_schema", "json_object", "text"]
_EVERY_FORMAT: Final[tuple[_Format, ...]] = ("json_schema", "json_object", "text")


class CompletionsSummaries:
    """
    Summaries by a model with a chat completions API: Grok, GPT, an OpenClaw agent, or a server such as Ollama.

    `formats`: the response formats to try, in order. A server that rejects one, or accepts the schema and ignores it,
    is asked in the next; what succeeded comes first from then on. Without a schema in the request, an answer that is
    not the JSON object is asked for once more.
    """

    def __init__(
        self, address: ModelAddress, *, formats: Sequence[_Format], headers: Mapping[str, str], timeout: float
    ) -> None:
        self.name = address.name
        self.model = address.model
        self._options = address.options
        self._formats = tuple(formats)
        self._url = f"{address.url.rstrip('/')}/chat/completions"
        bearer = {"Authorization": f"Bearer {address.api_key.reveal()}"} if address.api_key else {}
        self._headers = {**bearer, **headers}
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT))

    async def prepare(self) -> None:
        """Nothing to load."""

    async def summarise(self, request: SummaryRequest) -> CallSummary:
        formats = self._formats  # other summaries may change it during the request
        while True:
            try:
                summary = await self._summarise(request, formats[0])
            except LlmRefused as error:
                is_refused = error.status in _FORMAT_REFUSED or isinstance(error, _SchemaIgnored)
                if not is_refused or len(formats) == 1:
                    raise
                formats = formats[1:]
            else:
                self._formats = formats
                return summary

    async def close(self) -> None:
        await self._client.aclose()

    async def _summarise(self, request: SummaryRequest, format_: _Format) -> CallSummary:
        has_schema = format_ == "json_schema"
        schema = "" if has_schema else f"\n\n{_ONLY_JSON} Its JSON schema:\n{json.dumps(request.schema)}"
        messages = [
            {"role": "system", "content": request.instructions + schema},
            {"role": "user", "content": request.transcript},
        ]
        text = await self._ask(messages, request, format_)
        by = f"{self.name}/{self.model.removeprefix('openclaw/')}"
        try:
            return parse_answer(text, by, request.fields)
        except EmptySummary:
            if has_schema:
                raise
        except LlmRefused as error:
            if has_schema:
                raise _SchemaIgnored(str(error)) from None
            if not text.strip():
                raise
        once_more = _ONCE_MORE.format(keys=", ".join(request.schema["properties"]))
        again = [{"role": "assistant", "content": text}, {"role": "user", "content": once_more}]
        return parse_answer(await self._ask([*messages, *again], request, format_), by, request.fields)

    async def _ask(self, messages: Sequence[Mapping[str, str]], request: SummaryRequest, format_: _Format) -> str:
        formats: dict[_Format, dict[str, Any]] = {
            "json_schema": {"json_schema": {"name": "call_summary", "schema": request.schema, "strict": True}},
            "json_object": {},
        }
        body: dict[str, Any] = {"model": self.model, "messages": messages, **self._options}
        if format_ in formats:
            body["response_format"] = {"type": format_, **formats[format_]}
        return _completion_text(await self._post(body), self.name)

    async def _post(self, body: Mapping[str, Any]) -> Any:
        # `from None` throughout: httpx's errors hold the request, which contains the key.
        answer = bytearray()
        try:
            async with self._client.stream("POST", self._url, json=body, headers=self._headers) as response:
                if not response.is_success:
                    raise error_for_status(self.name, response.status_code, response.headers.get("retry-after"))
                async for part in response.aiter_bytes():
                    answer += part
                    if len(answer) > _MAX_BYTES:
                        raise LlmRefused(f"{self.name} answered with more than {_MAX_BYTES} bytes")
        except httpx.TimeoutException:
            raise LlmUnavailable(f"{self.name} did not answer in time") from None
        except httpx.HTTPError as error:
            raise LlmUnavailable(f"{self.name} can't be reached: {connection_problem(error)}") from None
        try:
            return read_json(bytes(answer))
        except ValueError:
            raise LlmUnavailable(f"{self.name} answered with something that is not JSON") from None


def _completion_text(answer: Any, name: str) -> str:
    """The text of a completion, without a model's thoughts. Any key may be missing or of another type."""
    match answer:
        case {"choices": [{"finish_reason": "content_filter"}, *_]}:
            raise LlmRefused(f"{name} stopped with content_filter")
        case {"choices": [{"message": {"refusal": str(refusal)}}, *_]} if refusal:
            raise LlmRefused(f"{name} refused")
        case {"choices": [{"message": {"content": str(content)}}, *_]}:
            text = content
        case {"choices": [{"message": {"content": [*parts]}}, *_]}:
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            text = "".join(text for text in texts if isinstance(text, str))
        case _:
            raise LlmRefused(f"{name} answered without text")
    return _THOUGHTS.sub("", text)


def summary_provider(address: ModelAddress) -> SummaryProvider:
    """The provider for a model. It has none for the script, which has no model."""
    options, formats, timeout = address.options, _EVERY_FORMAT[:1], _TIMEOUT
    match address.provider:
        case "anthropic":
            return AnthropicSummaries(address.api_key or Secret(""), address.url, address.model)
        case "xai":
            model, options = address.model or _XAI_MODEL, {"reasoning_effort": "low"}
        case "openai":
            model = address.model or _OPENAI_MODEL
            if not (urlsplit(address.url).hostname or "").endswith("api.openai.com"):  # a region has a prefix
                formats, timeout = _EVERY_FORMAT, _OWN_SERVER_TIMEOUT
        case "openclaw":
            return _openclaw(address)
        case _:
            tokens = {"max_tokens": _MAX_TOKENS, **options}
            return CompletionsSummaries(
                replace(address, options=tokens), formats=_EVERY_FORMAT, headers={}, timeout=_OWN_SERVER_TIMEOUT
            )
    address = replace(address, model=model, options={"max_completion_tokens": _MAX_TOKENS, **options})
    return CompletionsSummaries(address, formats=formats, headers={}, timeout=timeout)


def _openclaw(address: ModelAddress) -> SummaryProvider:
    """One of OpenClaw's agents, without a session: the transcript does not become part of a conversation there."""
    agent = (address.model or "main").lower()
    headers = {"x-openclaw-agent-id": agent, "x-openclaw-message-channel": "phone"}
    url = f"{address.url.rstrip('/').removesuffix('/v1')}/v1"
    address = replace(address, url=url, model=f"openclaw/{agent}")
    return CompletionsSummaries(address, formats=("json_object", "text"), headers=headers, timeout=_OWN_SERVER_TIMEOUT)
