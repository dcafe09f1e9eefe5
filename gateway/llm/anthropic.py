"""
Answers by Claude, through Anthropic's Messages API.

The SDK sends the request; the stream is read by our own parser, which takes a fifth of the time per event and checks
more. The request is ordered for prompt caching: tools, prompt, then what changes from turn to turn. The SDK takes
seconds of CPU to import, so that happens on first use and off the event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from gateway.errors import LlmError, LlmUnavailable, connection_problem
from gateway.llm import chat
from gateway.llm.chat import ChatEvent, ChatRequest, Finished, FinishReason, Message, TextDelta, ToolCallDelta, Usage
from gateway.llm.completions_codec import read_json
from gateway.settings import Secret

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

DEFAULT_MODEL: Final = "claude-haiku-5-5"
MAX_TOKENS: Final = 400  # about two minutes of speech
LISTENING: Final = "(The caller is listening.)"
"""A user message for the places where Anthropic requires one: before a greeting, after an answer."""

_CACHED: Final = {"cache_control": {"type": "ephemeral"}}
_REASONS: Final[Mapping[str, FinishReason]] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}


class AnthropicClient:
    """The SDK's client, made on first use."""

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
            timeout=Timeout(self._timeout, connect=chat.CONNECT_TIMEOUT),
            max_retries=0,
            open_telemetry=False,  # its traces can be configured to hold content
            http_client=DefaultAsyncHttpxClient(limits=Limits(keepalive_expiry=chat.KEEP_ALIVE)),
        )


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate the SDK's errors; without their cause, which may quote a header or the transcript."""
    import anthropic
    import httpx2

    try:
        yield
    except anthropic.APIStatusError as error:
        raise chat.error_for_status("anthropic", error.status_code, error.response.headers.get("retry-after")) from None
    except (anthropic.APITimeoutError, httpx2.TimeoutException):
        raise LlmUnavailable("anthropic did not answer in time") from None
    except (ValueError, RecursionError):  # the SDK passes on what its JSON reader raises
        raise LlmUnavailable("anthropic answered with something that is not JSON") from None
    except (anthropic.AnthropicError, httpx2.HTTPError) as error:
        raise LlmUnavailable(f"anthropic can't be reached: {connection_problem(error)}") from None


class AnthropicUpstream:
    """A Claude model."""

    name = "anthropic"

    def __init__(
        self, base_url: str, model: str, api_key: Secret, *, token_timeout: float = chat.TOKEN_TIMEOUT
    ) -> None:
        self.model = model or DEFAULT_MODEL
        self._token_timeout = token_timeout
        self._client = AnthropicClient(api_key, base_url, timeout=chat.LONGEST_SILENCE)

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        return chat.whole_answer(self.name, self._events(request), self._token_timeout)

    async def warm(self) -> None:
        client = await self._client.open()
        with suppress(LlmError), translated_errors():
            await client.models.list(limit=1)

    async def close(self) -> None:
        await self._client.close()

    async def _events(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        client = await self._client.open()
        answer, records = _AnthropicStream(), chat.SseParser(self.name)
        with translated_errors():
            params = _message_params(request, self.model)
            async with await client.messages.create(**params, stream=True, extra_headers=chat.UNBUFFERED) as stream:
                async for data in stream.response.aiter_bytes():
                    for record in records.feed(data):
                        for event in answer.receive(record):
                            yield event


# Out


def _message_params(request: ChatRequest, model: str) -> dict[str, Any]:
    """The request in Anthropic's format. Without temperature, which current models do not accept."""
    params: dict[str, Any] = {
        "model": model,
        "max_tokens": request.max_tokens or MAX_TOKENS,
        "messages": _turns(request.messages),
        "thinking": {"type": "disabled"},  # Haiku thinks by default, while the caller waits
    }
    prompt = "\n\n".join(
        text for message in request.messages if message["role"] == "system" and (text := message["content"])
    )
    # The prompt, cached up to its end, then the memory of this turn.
    if system := [*({**block, **_CACHED} for block in _text_blocks(prompt)), *_text_blocks(request.memory)]:
        params["system"] = system
    if request.tools:
        *others, last = map(_tool, request.tools)
        params["tools"] = [*others, {**last, **_CACHED}]
        match request.tool_choice:
            case {"function": {"name": name}}:
                params["tool_choice"] = {"type": "tool", "name": name}
            case str(choice):
                params["tool_choice"] = {"type": {"required": "any", "none": "none"}.get(choice, "auto")}
    return params


def _text_blocks(text: str | None) -> list[dict[str, Any]]:
    """Text as a block; Anthropic refuses empty ones."""
    return [{"type": "text", "text": text}] if text and text.strip() else []


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = tool["function"]
    description = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"type": "object", "properties": {}}
    return {"name": function["name"], **description, "input_schema": schema}


def _turns(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """
    The conversation as alternating turns; the first and the last are the user's.

    Anthropic requires every tool call to be followed by its result. A cancelled call has none and gets an error.
    """
    turns: list[dict[str, Any]] = []

    def add(role: str, blocks: list[dict[str, Any]]) -> None:
        if blocks and turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})

    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    for message in messages:
        if message["role"] in ("user", "assistant"):
            calls = message.get("tool_calls", ())
            add(message["role"], [*_text_blocks(message["content"]), *map(_tool_use, calls)])
            add("user", [_tool_result(call["id"], results) for call in calls])
    if not turns or turns[0]["role"] == "assistant":
        turns.insert(0, {"role": "user", "content": _text_blocks(LISTENING)})
    if turns[-1]["role"] == "assistant":
        add("user", _text_blocks(LISTENING))
    return turns


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    """With its arguments as an object, which Anthropic requires; anything else is wrapped in one."""
    function = call["function"]
    try:
        given = read_json(function["arguments"] or "{}")
    except ValueError:
        given = function["arguments"]
    given = given if isinstance(given, dict) else {"arguments": given}
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def _tool_result(call_id: str, results: Mapping[str, str]) -> dict[str, Any]:
    found = {"content": results[call_id]} if call_id in results else {"content": "no result", "is_error": True}
    return {"type": "tool_result", "tool_use_id": call_id, **found}


# In


class _AnthropicStream:
    """The state of one streamed answer: records in, events out. Thinking is ignored."""

    def __init__(self) -> None:
        self._calls = 0
        self._call_is_bare = False
        self._usage = Usage(0, 0, 0)

    def receive(self, record: chat.SseRecord) -> Iterator[ChatEvent]:
        try:
            event: Any = read_json(record.data)
        except ValueError:
            raise LlmUnavailable("anthropic sent something that is not JSON") from None
        if record.event == "error":
            event = {"type": "error"}
        match event:
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": str(text)}} if text:
                yield TextDelta(text)
            case {"type": "content_block_delta", "delta": {"partial_json": str(arguments)}} if arguments:
                self._call_is_bare = False
                yield ToolCallDelta(self._calls - 1, "", "", arguments)
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "id": call_id, "name": name}}:
                self._calls, self._call_is_bare = self._calls + 1, True
                yield ToolCallDelta(self._calls - 1, str(call_id), str(name), "")
            case {"type": "content_block_stop"} if self._call_is_bare:
                self._call_is_bare = False
                yield ToolCallDelta(self._calls - 1, "", "", "{}")
            case {"type": "message_start", "message": {"usage": dict(usage)}}:
                self._note(usage)
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}, **more}:
                self._note(more.get("usage"))
                yield self._usage
                yield Finished(_REASONS.get(reason, "stop"))
            case {"type": "error"}:
                raise LlmUnavailable("anthropic reported an error in its answer")

    def _note(self, usage: Any) -> None:
        """Update the counts, which are cumulative and spread over several events."""
        given = usage if isinstance(usage, dict) else {}
        counts = {name: value for name, value in given.items() if isinstance(value, int)}
        if "input_tokens" in counts:
            cached = counts.get("cache_read_input_tokens", 0)
            prompt = counts["input_tokens"] + cached + counts.get("cache_creation_input_tokens", 0)
            self._usage = replace(self._usage, prompt_tokens=prompt, cached_tokens=cached)
        completion = counts.get("output_tokens", self._usage.completion_tokens)
        self._usage = replace(self._usage, completion_tokens=completion)
