"""The proxy on a real server, between simulated language models and the engine's strict reader."""

import asyncio
import contextlib
import socket
from contextlib import aclosing
from urllib.parse import urlsplit

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette

from gateway.llm.agent_llm import AgentLlm
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.openai import OpenAiUpstream
from gateway.llm.responder import NO_RECALL, Responder, TurnRecall
from gateway.llm.responder_factory import EndpointTokens
from gateway.settings import Secret
from gateway.web.auth import MAX_GUESSES, GuessThrottle
from gateway.web.chat_completions import MAX_BODY_BYTES, routes
from tests.fakes.deepgram_exchange import Exchange, shortened
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, ToolCall
from tests.stage import until

PROMPT = {"role": "system", "content": "You are a barber."}
TOOL = {"type": "function", "function": {"name": "order_status", "parameters": {"type": "object", "properties": {}}}}
BODY = {
    "model": "any",
    "messages": [PROMPT, {"role": "user", "content": "Is my order ready now?"}],
    "stream": True,
    "reasoning_effort": "none",
}
DIALECTS = ("openai", "xai", "anthropic")


class Proxy:
    """The server, one call with its bearer, and the engine's client."""

    def __init__(self, url, endpoint_tokens, llm, client):
        self.url = f"{url}/v1/chat/completions"
        self.endpoint_tokens = endpoint_tokens
        self.llm = llm
        self.client = client
        self._upstreams = []

    def open_call(self, dialect="openai", memory=NO_RECALL):
        key = Secret("test-key")
        upstream = (
            AnthropicUpstream(self.llm.url, "", key)
            if dialect == "anthropic"
            else OpenAiUpstream(dialect, f"{self.llm.url}/v1", "grok-4.3", key, options={})
        )
        self._upstreams.append(upstream)
        brain = AgentLlm((upstream,), 60.0, "One moment.", "Sorry, say it again?", "en")
        return self.endpoint_tokens.open(Responder("maya", "", brain, memory=memory))

    def exchange(self, bearer, body=BODY):
        return Exchange(self.url, {"authorization": f"Bearer {bearer}"}, body)

    async def ask(self, bearer, body=BODY):
        """One request, read as the engine reads; it has no fault to find."""
        exchange = self.exchange(bearer, body)
        async with aclosing(exchange.stream(self.client)) as pieces:
            assert "".join([piece async for piece in pieces]) == exchange.text
        assert exchange.problems == []
        return exchange

    async def post(self, bearer, body=BODY, **options):
        headers = {"Authorization": f"Bearer {bearer}"}
        return await self.client.post(self.url, json=body, headers=headers, **options)

    async def close(self):
        for upstream in self._upstreams:
            await upstream.close()


@pytest.fixture
async def proxy():
    async def nowhere(digest: str) -> None:
        return None

    endpoint_tokens = EndpointTokens(nowhere)
    app = Starlette(routes=routes(endpoint_tokens, GuessThrottle()))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_config=None, access_log=False, lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await until(lambda: server.started or serving.done())
    async with FakeLlm() as llm, httpx.AsyncClient(timeout=None) as client:
        proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}", endpoint_tokens, llm, client)
        yield proxy
        await proxy.close()
    server.should_exit = True
    await serving
    listener.close()


# Answers


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_engine_reads_the_answer(proxy, dialect):
    proxy.llm.profile = "openai" if dialect == "anthropic" else dialect
    proxy.llm.pace = Pace(slice_bytes=7)
    proxy.llm.answers("Sí, **señora**: it is\u2028ready.")
    exchange = await proxy.ask(proxy.open_call(dialect))
    assert (exchange.text, exchange.finish_reason) == ("Sí, señora: it is ready.", "stop")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_engine_reads_tool_calls(proxy, dialect):
    proxy.llm.profile = "openai" if dialect == "anthropic" else dialect
    calls = ToolCall("order_status", '{"order": "A12"}', "call_1"), ToolCall("order_status", "{}", "call_2")
    proxy.llm.answers(Answer("Let me look.", tools=calls))
    exchange = await proxy.ask(proxy.open_call(dialect), {**BODY, "tools": [TOOL]})
    assert (exchange.text, exchange.finish_reason) == ("Let me look.", "tool_calls")
    assert exchange.tool_calls == [
        {"id": "call_1", "name": "order_status", "arguments": '{"order": "A12"}'},
        {"id": "call_2", "name": "order_status", "arguments": "{}"},
    ]


async def test_words_leave_as_they_come(proxy):
    proxy.llm.pace = Pace(hangs="after first token", characters=5)
    async with aclosing(proxy.exchange(proxy.open_call()).stream(proxy.client)) as pieces:
        assert await anext(pieces) == "It is"


async def test_stream_must_not_be_buffered(proxy):
    headers = (await proxy.post(proxy.open_call())).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")
    assert "content-length" not in headers


@pytest.mark.parametrize("more", [{"stream": False}, {"stream": None}])
async def test_answer_may_come_whole(proxy, more):
    proxy.llm.answers("**Yes.**")
    response = await proxy.post(proxy.open_call(), {**BODY, **more})
    answer = response.json()
    assert response.headers["content-type"] == "application/json"
    assert (answer["object"], answer["model"]) == ("chat.completion", "maya")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Yes.", "refusal": None}
    assert answer["usage"]["total_tokens"] > answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize("status", [401, 429, 500])
async def test_failure_is_no_error_for_the_engine(proxy, status):
    proxy.llm.fails(status)
    exchange = await proxy.ask(proxy.open_call())
    assert (exchange.text, exchange.finish_reason) == ("Sorry, say it again?", "stop")


async def test_broken_answer_is_ended(proxy):
    proxy.llm.answers(Answer("It is ready.", breaks_after=2))
    exchange = await proxy.ask(proxy.open_call())
    assert (exchange.text, exchange.finish_reason) == ("It is . Sorry, say it again?", "stop")


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_memory_stands_behind_the_cached_prompt(proxy, dialect):
    async def search(said):
        return [f"Was told of {said}"]

    bearer = proxy.open_call(dialect, memory=TurnRecall(search, seconds=10.0))
    await proxy.ask(bearer)
    sent = proxy.llm.requests[0].body
    parts = sent["system"] if dialect == "anthropic" else sent["messages"]
    assert "Is my order ready now?" not in str(parts[0])
    assert "Was told of Is my order ready now?" in str(parts[1])
    assert "cache_control" not in parts[1]


# Duplicates, guesses, drops


async def test_duplicates_get_full_answers(proxy):
    bearer = proxy.open_call()
    exchanges = await asyncio.gather(*(proxy.ask(bearer) for _ in range(3)), proxy.ask(proxy.open_call()))
    assert [exchange.text for exchange in exchanges] == ["It is ready."] * 4
    assert len(proxy.llm.requests) == 2  # one for each call


async def test_guess_is_dropped_for_the_whole_question(proxy):
    proxy.llm.pace = Pace(hangs="after first token")
    bearer = proxy.open_call()
    async with aclosing(proxy.exchange(bearer, shortened(BODY)).stream(proxy.client)) as pieces:
        await anext(pieces)
        proxy.llm.pace = Pace()
        proxy.llm.answers("On Friday.", when="ready now?")
        assert (await proxy.ask(bearer)).text == "On Friday."
    await proxy.llm.idle()
    guess, whole = proxy.llm.requests
    assert guess.disconnected_at is not None
    assert whole.disconnected_at is None


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("hangs", ["before headers", "after first token"])
async def test_dropped_request_ends_the_upstream(proxy, stream, hangs):
    proxy.llm.pace = Pace(hangs=hangs)
    asking = asyncio.create_task(proxy.post(proxy.open_call(), {**BODY, "stream": stream}))
    await proxy.llm.received(1)
    asking.cancel()
    await proxy.llm.idle()
    assert proxy.llm.requests[0].disconnected_at is not None


# The door


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer unknown", "Basic {}", "{}", "Bearer {}x"])
async def test_unknown_bearer_is_refused(proxy, header):
    bearer = proxy.open_call()
    headers = {} if header is None else {"Authorization": header.format(bearer)}
    response = await proxy.client.post(proxy.url, json=BODY, headers=headers)
    error = {"message": "missing or unknown bearer token", "type": "invalid_request_error", "param": None, "code": None}
    assert (response.status_code, response.json()) == (401, {"error": error})
    assert proxy.llm.requests == []


async def test_guesses_are_limited_and_the_right_bearer_passes(proxy):
    bearer = proxy.open_call()
    statuses = [(await proxy.post(f"guess-{number}")).status_code for number in range(MAX_GUESSES + 2)]
    assert statuses == [401] * MAX_GUESSES + [429] * 2
    assert (await proxy.ask(bearer)).text == "It is ready."


async def test_body_of_a_stranger_is_not_read(proxy):
    address = urlsplit(proxy.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    assert await reader.readline() == b"HTTP/1.1 401 Unauthorized\r\n"
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_bearer_dies_with_its_call(proxy):
    bearer, other = proxy.open_call(), proxy.open_call()
    proxy.llm.pace = Pace(hangs="after first token")
    exchange = proxy.exchange(bearer)
    async with aclosing(exchange.stream(proxy.client)) as pieces:
        await anext(pieces)
        proxy.endpoint_tokens.close(bearer)
        assert [piece async for piece in pieces] == []
    assert (exchange.finish_reason, exchange.done) == ("stop", True)
    assert (await proxy.post(bearer)).status_code == 401
    proxy.llm.pace = Pace()
    assert (await proxy.ask(other)).text == "It is ready."


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"{", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b'{"messages": []}', "messages must be a list with at least one message"),
    ],
)
async def test_malformed_request_is_told_why(proxy, content, problem):
    headers = {"Authorization": f"Bearer {proxy.open_call()}"}
    response = await proxy.client.post(proxy.url, content=content, headers=headers)
    assert (response.status_code, response.json()["error"]["message"]) == (400, problem)


async def test_body_has_a_limit(proxy):
    bearer, padding = proxy.open_call(), "x" * (MAX_BODY_BYTES - 1000)
    assert (await proxy.post(bearer, {**BODY, "user": padding})).status_code == 200
    response = await proxy.post(bearer, {**BODY, "user": padding + "x" * 1000})
    assert (response.status_code, response.json()["error"]["message"]) == (413, "the body is larger than 2 MB")


async def test_only_posts_are_answered(proxy):
    assert (await proxy.client.get(proxy.url)).status_code == 405


@pytest.mark.parametrize("said", ["...", "?", "", "🙂", " "])
async def test_words_without_a_letter_get_an_answer(proxy, said):
    body = BODY | {"messages": [PROMPT, {"role": "user", "content": said}]}
    async with asyncio.timeout(30):
        assert (await proxy.ask(proxy.open_call(), body)).text == "It is ready."
