"""What holds for every upstream. The simulators refuse what the real services refuse."""

import asyncio
import json
import re

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.llm.chat import ChatRequest, Finished, TextDelta, Usage, whole_answer
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, ToolCall
from tests.llm.upstreams import (
    CALL,
    GREETING,
    PROMPT,
    QUESTION,
    REQUEST,
    SECRET,
    TOOL,
    TOOLS_REQUEST,
    WITH_TOOLS,
    ask,
    build,
    calls_of,
    text_of,
)

# Answers


async def test_answer_comes_whole(llm, upstream):
    llm.pace = Pace(slice_bytes=5)
    llm.answers("Sí, señora: it  is ready. ✂️")
    events = await ask(upstream)
    assert text_of(events) == "Sí, señora: it  is ready. ✂️"
    assert events[-1] == Finished("stop")


async def test_token_is_passed_on_as_it_comes(llm, upstream):
    llm.pace = Pace(hangs="after first token", characters=5)
    answer = upstream.answer(REQUEST, "")
    assert await anext(answer) == TextDelta("It is")
    await answer.aclose()


@pytest.mark.parametrize("kind", WITH_TOOLS, indirect=True)
async def test_tool_calls_come_whole(llm, upstream):
    outbound_calls = ToolCall("order_status", '{"order": "A12", "city": "Malaga"}', "call_1")
    llm.answers(Answer("Let me look.", tools=(outbound_calls, ToolCall("hours", "{}", "call_2"))))
    events = await ask(upstream, TOOLS_REQUEST)
    assert text_of(events) == "Let me look."
    assert calls_of(events) == [
        ("call_1", "order_status", '{"order": "A12", "city": "Malaga"}'),
        ("call_2", "hours", "{}"),
    ]
    assert events[-1] == Finished("tool_calls")


@pytest.mark.parametrize("kind", WITH_TOOLS, indirect=True)
@pytest.mark.parametrize("reason", ["stop", "length", "content_filter"])
async def test_finish_reason_is_passed_on(llm, upstream, reason):
    llm.answers(Answer("It", finish=reason))
    assert (await ask(upstream))[-1] == Finished(reason)


@pytest.mark.parametrize("kind", WITH_TOOLS, indirect=True)
async def test_memory_leaves_prompt_cached(llm, upstream):
    """With each turn's own memory, what was sent before is still found in the provider's cache."""
    for memory in ("Likes it short.", "Likes it long."):
        events = await ask(upstream, ChatRequest((PROMPT, QUESTION), tools=(TOOL,), memory=memory))
    (usage,) = (event for event in events if isinstance(event, Usage))
    assert usage.cached_tokens == 20  # the tool and the prompt
    assert "Likes it long." in json.dumps(llm.requests[-1].body)


@pytest.mark.parametrize("choice", ["auto", "none", "required", {"type": "function", "function": {"name": "hours"}}])
async def test_request_fits_sdk_type(kind, llm, upstream, choice):
    messages = (
        PROMPT,
        GREETING,
        QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ready"},
    )
    await ask(upstream, ChatRequest(messages, (TOOL,), choice, 300, 0.6, memory="Likes it short."))
    params = MessageCreateParamsStreaming if kind == "anthropic" else CompletionCreateParamsStreaming
    TypeAdapter(params).validate_python(llm.requests[0].body)


# Leaving


@pytest.mark.parametrize("hangs", ["before headers", "before first token", "after first token"])
async def test_cancelled_answer_leaves_server(llm, upstream, hangs):
    llm.pace = Pace(hangs=hangs)
    asking = asyncio.create_task(ask(upstream))
    await llm.received(1)
    asking.cancel()
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


@pytest.mark.parametrize("way", ["close", "drop"])
async def test_closed_answer_leaves_server(llm, upstream, way):
    llm.pace = Pace(hangs="after first token")
    answer = upstream.answer(REQUEST, "")
    await anext(answer)
    if way == "close":
        await answer.aclose()
    del answer
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


async def test_answers_share_warm_connection(llm, upstream):
    await upstream.warm()
    for _ in range(2):
        await ask(upstream)
    assert (len(llm.requests), llm.connections) == (2, 1)


async def test_warming_up_fails_in_silence(kind):
    async with FakeLlm() as gone:
        pass
    upstream = build(kind, gone.url)
    await upstream.warm()
    await upstream.close()


async def test_parallel_answers_are_apart(llm, upstream):
    llm.answers("At nine.", when="open")
    other = ChatRequest((PROMPT, {"role": "user", "content": "When do you open?"}))
    answers = await asyncio.gather(ask(upstream), ask(upstream, other), ask(upstream))
    assert [text_of(answer) for answer in answers] == ["It is ready.", "At nine.", "It is ready."]


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
async def test_answers_do_not_queue(llm, upstream):
    """HTTP clients open a hundred connections at most, unless told otherwise."""
    llm.pace = Pace(hangs="before first token")
    asking = [asyncio.create_task(ask(upstream)) for _ in range(101)]
    await llm.received(101)
    for task in asking:
        task.cancel()
    await llm.idle()


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
async def test_proxies_of_the_environment_are_not_used(llm, upstream, monkeypatch):
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert text_of(await ask(upstream)) == "It is ready."


# Failures


async def test_redirect_is_not_followed():
    """The key is for this server alone."""
    async with FakeLlm() as other:

        async def serve(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            location = f"{other.url}/v1/chat/completions".encode()
            writer.write(b"HTTP/1.1 307 Moved\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % location)
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            upstream = build("openai", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            with pytest.raises(LlmRefused, match="^openai answered 307$"):
                await ask(upstream)
            await upstream.close()
    assert other.requests == []


def named(upstream, llm):
    """The upstream in an error. OpenClaw runs on a machine of the user's, so its address is there too."""
    return f"openclaw at {llm.url}/v1/chat/completions" if upstream.name == "openclaw" else upstream.name


def hint(upstream, text):
    """What an error of OpenClaw adds."""
    return f"; {text}" if upstream.name == "openclaw" else ""


UNREACHABLE = "start it, or correct OPENCLAW_GATEWAY_URL"


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_passing_failure_is_unavailable(llm, upstream, status):
    llm.fails(status, retry_after="1.5")
    with pytest.raises(LlmUnavailable) as raised:
        await ask(upstream)
    problem = f"{named(upstream, llm)} answered {status}{hint(upstream, 'openclaw logs shows why')}"
    assert (str(raised.value), raised.value.retry_after) == (problem, 1.5)
    assert raised.value.status == status
    assert len(llm.requests) == 1


async def test_wrong_key_is_refused_unquoted(kind, llm):
    upstream = build(kind, llm.url, SECRET)
    with pytest.raises(LlmRefused) as raised:
        await ask(upstream)
    await upstream.close()
    to_do = hint(upstream, "correct OPENCLAW_GATEWAY_TOKEN")
    assert str(raised.value) == f"{named(upstream, llm)} answered 401{to_do}"
    assert raised.value.__cause__ is None


async def test_closed_port_is_unavailable(kind):
    async with FakeLlm() as gone:
        pass
    upstream = build(kind, gone.url, SECRET)
    problem = f"^{named(upstream, gone)} can't be reached: connection refused{hint(upstream, UNREACHABLE)}$"
    with pytest.raises(LlmUnavailable, match=problem) as raised:
        await ask(upstream)
    await upstream.close()
    assert raised.value.__suppress_context__


@pytest.mark.parametrize("breaks_after", [0, 2])
async def test_error_inside_stream_is_unavailable(kind, llm, upstream, breaks_after):
    """Whatever shape it has: a record, an event, or words; none of them is spoken."""
    llm.answers(Answer("It is ready.", breaks_after=breaks_after))
    events = []
    problem = f"^{upstream.name} (reported an error in its answer|sent an error as text)$"
    with pytest.raises(LlmUnavailable, match=problem):
        async for event in upstream.answer(REQUEST, ""):
            events.append(event)
    assert text_of(events) == "It is ready."[: breaks_after * 3]


_CUT = "(ClientPayloadError|RemoteProtocolError)"  # aiohttp's word, and that of Anthropic's SDK


@pytest.mark.parametrize("closes_after", [0, 1, 4])
async def test_cut_stream_is_unavailable(llm, upstream, closes_after):
    llm.pace = Pace(closes_after=closes_after)
    problem = f"^{named(upstream, llm)} can't be reached: {_CUT}{hint(upstream, UNREACHABLE)}$"
    with pytest.raises(LlmUnavailable, match=problem):
        await ask(upstream)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [("", "application/json"), ("<html>busy</html>", "text/html"), ("{}", "application/json")],
)
async def test_answer_without_a_record_is_unavailable(llm, upstream, body, content_type):
    """It may come from another server, at a wrong address."""
    llm.babbles(body)
    found = f"answered 200 with {content_type}, not with a chat completion"
    problem = f"{named(upstream, llm)} {found}{hint(upstream, 'correct OPENCLAW_GATEWAY_URL')}"
    if upstream.name == "anthropic":  # its SDK does not say
        problem = "anthropic ended its answer early"
    with pytest.raises(LlmUnavailable, match=f"^{re.escape(problem)}$"):
        await ask(upstream)


@pytest.mark.parametrize("body", ["data: {}\n\n", 'event: ping\ndata: {"a": [1]}\n\n'])
async def test_answer_without_end_mark_is_unavailable(llm, upstream, body):
    llm.babbles(body)
    with pytest.raises(LlmUnavailable, match=f"^{upstream.name} ended its answer early$"):
        await ask(upstream)


@pytest.mark.parametrize("data", ["{", "\ufffd", "[" * 100_000])
async def test_nonsense_is_unavailable(llm, upstream, data):
    llm.babbles(f"event: message_start\ndata: {data}\n\n")
    with pytest.raises(LlmUnavailable, match=f"^{upstream.name} sent something that is not JSON$"):
        await ask(upstream)


async def test_silence_between_tokens_is_unavailable(kind, llm):
    upstream = build(kind, llm.url, token_timeout=0.05)
    llm.pace = Pace(hangs="after first token")
    with pytest.raises(LlmUnavailable, match=f"^{upstream.name} stopped in the middle of its answer$"):
        await ask(upstream)
    await llm.idle()
    await upstream.close()
    assert llm.requests[0].disconnected_at is not None


async def test_first_token_is_waited_for(kind, llm):
    upstream = build(kind, llm.url, token_timeout=1.0)
    llm.pace = Pace(before_first_token=1.5)
    assert text_of(await ask(upstream)) == "It is ready."
    await upstream.close()


@pytest.mark.parametrize("after", ["silence", "failure"])
async def test_nothing_after_the_end_matters(after):
    async def events():
        yield Finished("stop")
        if after == "silence":
            await asyncio.Event().wait()
        raise LlmUnavailable("too late")

    assert [event async for event in whole_answer("xai", events(), 5.0)] == [Finished("stop")]
