"""
Language models on loopback: one HTTP server, dialect by path, behaviour by profile.

`/v1/messages` is Anthropic; `/v1/chat/completions` is whatever the profile says. It checks what the real ones check,
says what the test scripted, misbehaves on request, and remembers every question. Connections are kept for the next
request, and a client that goes away before its answer is complete is noticed at once.
"""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.llm_cache import PromptCache
from tests.fakes.llm_checks import XAI_MODELS, check_anthropic, check_openclaw, schema_of
from tests.fakes.llm_dialects import (
    anthropic_message,
    anthropic_records,
    chat_completion,
    chat_records,
    last_user_text,
    model_list,
    structured,
)
from tests.fakes.llm_script import Answer, Exchange, Pace, Profile, Record, Refusal, Request, Shape


@dataclass
class FakeLlm:
    """`async with FakeLlm() as llm`: then `llm.url` is a base URL without /v1."""

    profile: Profile = "openai"
    api_key: str = "test-key"
    pace: Pace = field(default_factory=Pace)
    shape: Shape = "plain"
    agents: frozenset[str] = frozenset({"main"})

    def __post_init__(self) -> None:
        self.requests: list[Request] = []
        self.sessions: dict[str, list[dict[str, Any]]] = {}
        self.parallel = 0
        self.most_parallel = 0
        self.connections = 0
        self.url = ""
        self._cache = PromptCache()
        self._rules: list[tuple[str, Answer]] = []
        self._faults: deque[Refusal | str] = deque()
        self._clients: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    # Called by the test

    def answers(self, answer: Answer | str, when: str = "") -> None:
        """Answer with this if the last user message contains `when`; the newest matching rule wins."""
        self._rules.insert(0, (when, Answer(answer) if isinstance(answer, str) else answer))

    def fails(self, status: int, *, times: int = 1, retry_after: str = "") -> None:
        """Answer the next requests with this status."""
        kind = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}.get(status, "api_error")
        self._faults.extend(Refusal(status, kind, "scripted failure", retry_after) for _ in range(times))

    def babbles(self, body: str) -> None:
        """Answer the next request with this text and status 200."""
        self._faults.append(body)

    async def received(self, count: int) -> None:
        """Wait until this many requests have arrived."""
        while len(self.requests) < count:
            await self._change()

    async def idle(self) -> None:
        """Wait until every request was answered."""
        while self.parallel:
            await self._change()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # The server

    async def __aenter__(self) -> "FakeLlm":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for client in list(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        self.connections += 1
        begun: bytes | None = b""
        try:
            while begun is not None:
                request = await _read_request(reader, begun)
                begun = await self._exchange(request, reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected or the test ended; asyncio's stream server in 3.11 fails on cancellation
        finally:
            self._clients.discard(task)
            writer.close()

    async def _exchange(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        """Answer one request. Returns the bytes read of the next one, or None if the connection is closed."""
        if request.method != "POST":
            await self._list_models(request, writer)
            return b""
        self.requests.append(request)
        self.parallel += 1
        self.most_parallel = max(self.most_parallel, self.parallel)
        self._changed.set()
        try:
            return await self._answer_or_notice(request, reader, writer)
        finally:
            self.parallel -= 1
            self._changed.set()

    async def _answer_or_notice(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bytes | None:
        answering = asyncio.create_task(self._answer(request, writer))
        leaving = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or isinstance(answering.exception(), ConnectionError):
                request.disconnected_at = asyncio.get_running_loop().time()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.wait({answering, leaving})
        if not answering.cancelled():
            await answering  # raises errors of the fake itself
        if leaving.cancelled():
            return b"" if request.completed else None
        return await leaving or None

    async def _list_models(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Model lists; not recorded in `requests`."""
        anthropic = "anthropic-version" in request.headers
        if request.path != "/v1/models" or self.profile == "openclaw-old":
            refusal = Refusal(404, "not_found_error", "not found")
            await _send(writer, request, refusal.status, _error(refusal, anthropic))
        elif _given_key(request.headers, anthropic) != self.api_key:
            refusal = Refusal(401, "authentication_error", "invalid key")
            await _send(writer, request, refusal.status, _error(refusal, anthropic))
        else:
            agents = self.agents if self.profile.startswith("openclaw") else ()
            await _send(writer, request, 200, json.dumps(model_list(anthropic, agents)))

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        if self.pace.hangs == "before headers":
            await asyncio.Event().wait()
        await asyncio.sleep(self.pace.before_headers)
        anthropic = request.path == "/v1/messages"
        try:
            exchange = self._checked(request, anthropic)
        except Refusal as refusal:
            await _send(writer, request, refusal.status, _error(refusal, anthropic), refusal.retry_after)
            return
        if isinstance(exchange, str):
            await _send(writer, request, 200, exchange)
        elif request.body.get("stream"):
            records = anthropic_records(exchange) if anthropic else chat_records(exchange)
            await self._stream(writer, exchange, records)
        elif exchange.answer.breaks_after is not None:
            await _send(writer, request, 500, _error(Refusal(500, "api_error", "internal error"), anthropic))
        else:
            whole = anthropic_message(exchange) if anthropic else chat_completion(exchange)
            cut = self.pace.closes_after is not None
            await _send(writer, request, 200, json.dumps(whole, ensure_ascii=False), cut=cut)
        if isinstance(exchange, Exchange) and request.completed:
            self._remember(request, [{"role": "assistant", "content": exchange.answer.text}])

    def _checked(self, request: Request, anthropic: bool) -> Exchange | str:
        if not anthropic and request.path != "/v1/chat/completions":
            raise Refusal(404, "not_found_error", "not found")
        if _given_key(request.headers, anthropic) != self.api_key:
            raise Refusal(401, "authentication_error", "invalid key")
        fault = self._faults.popleft() if self._faults else None
        if isinstance(fault, Refusal):
            raise fault
        if anthropic:
            check_anthropic(request)
        else:
            self._check_chat(request)
        if fault is not None:
            return fault
        cached = self._cache.tokens(request.body, marked_only=anthropic)
        return Exchange(request, self._say(request.body), self.pace, "" if anthropic else self.profile, cached)

    def _check_chat(self, request: Request) -> None:
        if not request.body.get("messages"):
            raise Refusal(400, "invalid_request_error", "messages is empty")
        if self.profile == "xai" and request.body.get("model") not in XAI_MODELS:
            raise Refusal(404, "not_found_error", "the model does not exist")
        if self.profile.startswith("openclaw"):
            check_openclaw(request, self.agents, strict=self.profile == "openclaw-new")
            self._remember(request, request.body["messages"])

    def _remember(self, request: Request, messages: list[dict[str, Any]]) -> None:
        """OpenClaw stores the history of a session key: history sent again would be there twice."""
        key = request.headers.get("x-openclaw-session-key") or request.body.get("user")
        if key:
            said = [message for message in messages if message.get("role") not in ("system", "developer")]
            self.sessions.setdefault(key, []).extend(said)

    def _say(self, body: dict[str, Any]) -> Answer:
        asked = last_user_text(body["messages"])
        scripted = next((answer for when, answer in self._rules if when in asked), None)
        if scripted is not None:
            return scripted
        schema = schema_of(body)
        return Answer("It is ready.") if schema is None else structured(schema, self.shape)

    async def _stream(self, writer: asyncio.StreamWriter, exchange: Exchange, records: Iterable[Record]) -> None:
        request, pace = exchange.request, exchange.pace
        request.status = 200
        writer.write(_head(200, "text/event-stream", "transfer-encoding: chunked"))
        await writer.drain()
        async for record in _paced(records, pace):
            for piece in _sliced(record.encode(), pace.slice_bytes):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await writer.drain()
        if pace.closes_after is None:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            request.completed = True


# Minimal HTTP


async def _read_request(reader: asyncio.StreamReader, begun: bytes) -> Request:
    head = (begun + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *rest = head.rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    method, target, _ = first.split(" ")
    path = target.partition("?")[0]
    return Request(path, headers, json.loads(body or b"{}"), asyncio.get_running_loop().time(), method)


def _head(status: int, content_type: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}", *more]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _send(
    writer: asyncio.StreamWriter, request: Request, status: int, text: str, retry_after: str = "", *, cut: bool = False
) -> None:
    body = text.encode()
    more = [f"content-length: {len(body)}", *([f"retry-after: {retry_after}"] if retry_after else [])]
    writer.write(_head(status, "text/html" if text.startswith("<") else "application/json", *more))
    if request.method != "HEAD":
        writer.write(body[: len(body) // 2] if cut else body)
    await writer.drain()
    request.status, request.completed = status, not cut


def _sliced(data: bytes, size: int) -> Iterator[bytes]:
    """Split anywhere: inside words, UTF-8 sequences and SSE lines."""
    for start in range(0, len(data), size or len(data) or 1):
        yield data[start : start + (size or len(data))]


async def _paced(records: Iterable[Record], pace: Pace) -> AsyncIterator[str]:
    tokens = 0
    for number, record in enumerate(records):
        if number == pace.closes_after:
            return
        if record.is_token:
            if pace.hangs == ("after first token" if tokens else "before first token"):
                await asyncio.Event().wait()
            await asyncio.sleep(pace.between_tokens if tokens else pace.before_first_token)
            tokens += 1
        yield record.text


def _error(refusal: Refusal, anthropic: bool) -> str:
    error: dict[str, Any] = {"type": refusal.kind, "message": refusal.message}
    if anthropic:
        return json.dumps({"type": "error", "error": error, "request_id": "req_1"})
    return json.dumps({"error": {**error, "param": None, "code": None}})


def _given_key(headers: dict[str, str], anthropic: bool) -> str:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return headers.get("x-api-key", bearer) if anthropic else bearer
