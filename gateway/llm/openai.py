"""
Answers by chat completions: xAI, OpenAI, and the many servers with the same API.

Such servers omit fields and add their own: text, tool calls and usage are read, everything else is ignored. That
includes reasoning (`reasoning_content`), which must not be spoken.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from gateway.errors import LlmError, LlmUnavailable, connection_problem
from gateway.llm import chat
from gateway.llm.chat import ChatEvent, ChatRequest, Finished, FinishReason, Message, TextDelta, ToolCallDelta, Usage
from gateway.llm.completions_codec import arguments_of, read_json, write_json
from gateway.settings import Secret

OPENAI_MODEL: Final = "gpt-5.4-mini"
XAI_MODEL: Final = "grok-4.3"
END_SECONDS: Final = 1.0
"""From the finish reason to the end of the response. The answer is complete, so the rest is not worth waiting for."""

_REASONS: Final[Mapping[str, FinishReason]] = {
    "length": "length",
    "content_filter": "content_filter",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
}


class CompletionsClient:
    """
    A client of one server's chat completions, with persistent connections.

    This is the only use of aiohttp; other HTTP requests use httpx. With 100 concurrent answers, reading one takes 3 ms
    of CPU in aiohttp, 9 ms in httpx2 and 60 ms in httpx, on the event loop that carries the audio
    (`scripts/llm_bench`).
    """

    def __init__(self, name: str, base_url: str, api_key: Secret | None, *, address_setting: str = "") -> None:
        """`address_setting`: where the user wrote the address of a server of their own. Its errors have both."""
        self.name = name
        self._base_url = base_url.rstrip("/")
        self._if_unreachable = address_setting and f"; start it, or correct {address_setting}"
        self._if_another = address_setting and f"; correct {address_setting}"
        self._shown_name = f"{name} at {_shown_url(self._url)}" if address_setting else name
        key = {"Authorization": f"Bearer {api_key.reveal()}"} if api_key else {}
        self._headers = {**chat.UNBUFFERED, **key}
        self._session: aiohttp.ClientSession | None = None  # made on first use: it needs a running loop

    async def stream(
        self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncGenerator[ChatEvent, None]:
        """The events of one answer. It is incomplete if Finished is not among them."""
        answer, records = _OpenAiStream(self.name), chat.SseParser(self.name)
        clock = asyncio.get_running_loop().time
        try:
            with self._foreign_errors():
                async with self._post(body, headers or {}) as response, asyncio.timeout(None) as end:
                    async for data in response.content.iter_any():
                        for record in records.feed(data):
                            for event in answer.receive(record):
                                yield event
                        if answer.is_complete:
                            end.reschedule(clock() + END_SECONDS)
                    if not answer.has_begun and response.content_type != "text/event-stream":
                        found = f"answered {response.status} with {response.content_type}, not with a chat completion"
                        raise LlmUnavailable(f"{self._shown_name} {found}{self._if_another}")
        except LlmUnavailable:
            if not answer.is_complete:
                raise
        for event in answer.end():
            yield event

    async def warm(self) -> None:
        # Any response leaves an open connection. With the key: some servers rate-limit requests without one.
        with suppress(LlmError), self._foreign_errors():
            async with self._http.head(f"{self._base_url}/models", headers=self._headers):
                pass

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    @asynccontextmanager
    async def _post(
        self, body: Mapping[str, Any], headers: Mapping[str, str], **options: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request that was accepted. Leaving it before its end closes its connection."""
        headers = {**self._headers, "Content-Type": "application/json", **headers}
        request = partial(
            self._http.post, self._url, data=write_json(body), headers=headers, allow_redirects=False, **options
        )
        try:
            response = await request()
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
            # The server was just closing an idle connection, so it has not seen the request.
            response = await request()
        async with response:
            if not 200 <= response.status < 300:
                raise self._error(response.status, response.headers.get("retry-after"))
            yield response

    def _error(self, status: int, retry_after: str | None) -> LlmError:
        """The error for a response that is not 2xx."""
        return chat.error_for_status(self._shown_name, status, retry_after)

    @property
    def _url(self) -> str:
        return f"{self._base_url}/chat/completions"

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=chat.KEEP_ALIVE),
                timeout=aiohttp.ClientTimeout(connect=chat.CONNECT_TIMEOUT, sock_read=chat.LONGEST_SILENCE),
                cookie_jar=aiohttp.DummyCookieJar(),  # callers must not share cookies
            )
        return self._session

    @contextmanager
    def _foreign_errors(self) -> Iterator[None]:
        """Translate aiohttp's errors; without their cause, which may hold the request and the key."""
        try:
            yield
        except TimeoutError:
            raise LlmUnavailable(f"{self._shown_name} did not answer in time{self._if_unreachable}") from None
        except aiohttp.ClientError as error:
            problem = f"{self._shown_name} can't be reached: {connection_problem(error)}"
            raise LlmUnavailable(f"{problem}{self._if_unreachable}") from None


def _shown_url(url: str) -> str:
    """Without what may be secret: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class OpenAiUpstream(CompletionsClient):
    """A model with a chat completions API. `options`, such as `reasoning_effort`, are added to every request."""

    def __init__(
        self,
        name: str,
        base_url: str,
        model: str,
        api_key: Secret | None,
        *,
        options: Mapping[str, Any],
        address_setting: str = "",
        token_timeout: float = chat.TOKEN_TIMEOUT,
    ) -> None:
        super().__init__(name, base_url, api_key, address_setting=address_setting)
        self.model = model
        self._options = options
        self._token_timeout = token_timeout

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        body = completion_body(request, with_memory(request.messages, request.memory))
        events = self.stream({**body, **self._options, "model": self.model})
        return chat.whole_answer(self.name, events, self._token_timeout)


def xai_upstream(base_url: str, model: str, api_key: Secret, *, options: Mapping[str, Any]) -> OpenAiUpstream:
    """One of xAI's models; "" is the fast one. It is fast because reasoning is switched off."""
    model = model or XAI_MODEL
    effort = {"reasoning_effort": "none"} if model == XAI_MODEL else {}  # the others refuse it
    return OpenAiUpstream("xai", base_url, model, api_key, options={**effort, **options})


def with_memory(messages: tuple[Message, ...], memory: str) -> list[Message]:
    """Insert memory before the caller's last message: everything above it is unchanged and stays cached."""
    if not memory:
        return list(messages)
    spoken = [number for number, message in enumerate(messages) if message["role"] == "user"]
    at = spoken[-1] if spoken else len(messages)
    return [*messages[:at], {"role": "system", "content": memory}, *messages[at:]]


def completion_body(request: ChatRequest, messages: list[Message]) -> dict[str, Any]:
    """The body of a streaming chat completion, without the model."""
    asked = {
        "tools": request.tools or None,
        "tool_choice": request.tool_choice if request.tools else None,
        "max_completion_tokens": request.max_tokens,
        "temperature": request.temperature,
    }
    body = {"messages": messages, "stream": True, "stream_options": {"include_usage": True}}
    return body | {name: value for name, value in asked.items() if value is not None}


class _OpenAiStream:
    """The state of one streamed answer: records in, events out."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.has_begun = False
        """Whether a record has arrived."""
        self._reason = ""
        self._usage: Usage | None = None
        self._calls: dict[int | str, tuple[int, str]] = {}  # by their index or id: our index, their id
        self._latest_call: int | str = ""
        self._begun_calls = 0

    @property
    def is_complete(self) -> bool:
        """Whether the finish reason has arrived; usage and the end mark may still follow."""
        return bool(self._reason)

    def receive(self, record: chat.SseRecord) -> Iterator[ChatEvent]:
        self.has_begun = True
        if record.data == b"[DONE]":
            yield from self._finish()
            return
        try:
            chunk = read_json(record.data)
        except ValueError:
            raise LlmUnavailable(f"{self._name} sent something that is not JSON") from None
        if not isinstance(chunk, dict) or chunk.get("error") or record.event == "error":
            raise LlmUnavailable(f"{self._name} reported an error in its answer")
        match chunk.get("choices"):
            case [{"delta": {**delta}}, *_]:
                text, calls = delta.get("content"), delta.get("tool_calls")
                if text and isinstance(text, str):
                    yield TextDelta(text)
                if isinstance(calls, list):
                    yield from (self._receive_call(call) for call in calls if isinstance(call, dict))
        match chunk.get("choices"):
            case [{"finish_reason": str(reason)}, *_] if reason:
                self._reason = reason
        match chunk.get("usage"):
            case {"prompt_tokens": int(prompt), "total_tokens": int(total), **more}:
                details = more.get("prompt_tokens_details")
                cached = details.get("cached_tokens") if isinstance(details, dict) else 0
                # All but the prompt counts as answer: xAI leaves reasoning out of completion_tokens.
                self._usage = Usage(prompt, total - prompt, cached if isinstance(cached, int) else 0)

    def end(self) -> Iterator[ChatEvent]:
        """The response has ended. Some servers send no end mark; the finish reason is enough."""
        if self._reason:
            yield from self._finish()

    def _receive_call(self, call: dict[str, Any]) -> ToolCallDelta:
        """A tool call or a fragment of one. Some servers number them, some repeat the id, some do neither."""
        index, call_id, function = call.get("index"), str(call.get("id") or ""), call.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments = str(function.get("name") or ""), arguments_of(function.get("arguments"))
        self._latest_call = index if isinstance(index, int) else call_id or self._latest_call
        ours, known_id = self._calls.get(self._latest_call, (-1, ""))
        # Some servers give all calls the same index.
        if ours >= 0 and not (name and call_id not in ("", known_id)):
            return ToolCallDelta(ours, "", "", arguments)
        ours, self._begun_calls = self._begun_calls, self._begun_calls + 1
        self._calls[self._latest_call] = ours, call_id
        return ToolCallDelta(ours, call_id or f"call_{uuid.uuid4().hex}", name, arguments)

    def _finish(self) -> Iterator[ChatEvent]:
        if self._usage:
            yield self._usage
        reason = _REASONS.get(self._reason, "stop")
        yield Finished("tool_calls" if self._calls and reason == "stop" else reason)
