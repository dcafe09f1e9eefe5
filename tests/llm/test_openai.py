"""Chat completions, as real and odd servers speak them."""

import asyncio

import pytest

from gateway.errors import LlmUnavailable
from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta, Usage
from gateway.llm.openai import OpenAiUpstream, xai_upstream
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.llm.upstreams import (
    CALL,
    GREETING,
    PROMPT,
    QUESTION,
    TOOL,
    ask,
    build,
    calls_of,
    choice,
    stream_of,
    text_of,
)


def call(arguments, **more):
    return choice(tool_calls=[{"function": {"name": "hours", "arguments": arguments}, **more}])


def fragment(arguments, **more):
    return choice(tool_calls=[{"function": {"arguments": arguments}, **more}])


@pytest.fixture
async def compatible():
    """A server that says just what a test puts into its mouth, and its upstream."""
    async with FakeLlm() as llm:
        upstream = build("openai", llm.url)
        yield llm, upstream
        await upstream.close()


@pytest.mark.parametrize(
    ("chunks", "events"),
    [
        ([{"choices": [{"delta": {"content": "Yes."}}]}], [TextDelta("Yes."), Finished("stop")]),
        ([{"choices": []}, {"choices": None}, choice(content=None), {}], [Finished("stop")]),
        ([choice(reasoning_content="Let me see."), choice(content="Yes.")], [TextDelta("Yes."), Finished("stop")]),
        ([choice("stop", content="Yes")], [TextDelta("Yes"), Finished("stop")]),
        (
            [choice("stop", content="Y"), choice("stop", content="es")],
            [TextDelta("Y"), TextDelta("es"), Finished("stop")],
        ),
        ([choice("function_call")], [Finished("tool_calls")]),
        ([choice("eos")], [Finished("stop")]),
        ([{"choices": [7]}, {"choices": [{"delta": 7, "finish_reason": 7}]}], [Finished("stop")]),
        ([choice(content=7, tool_calls=7), choice(tool_calls=[7])], [Finished("stop")]),
        ([{"error": None, **choice(content="Yes.")}], [TextDelta("Yes."), Finished("stop")]),
        (
            [
                {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": 5, "total_tokens": 165}},
                {"choices": [], "usage": None},
            ],
            [Usage(40, 125, 0), Finished("stop")],
        ),
        ([{"usage": {"prompt_tokens": 40}}, {"usage": 7}], [Finished("stop")]),
        (
            [choice(content="\ud83d"), choice(content="\udc4d")],
            [TextDelta("\ud83d"), TextDelta("\udc4d"), Finished("stop")],
        ),
    ],
    ids=[
        "no reason",
        "no choice",
        "thoughts",
        "reason with text",
        "reason in every chunk",
        "old reason",
        "unknown reason",
        "nonsense choices",
        "nonsense deltas",
        "error null",
        "usage with thoughts",
        "nonsense usage",
        "emoji cut in half",
    ],
)
async def test_odd_server_is_understood(compatible, chunks, events):
    llm, upstream = compatible
    llm.babbles(stream_of(*chunks))
    assert await ask(upstream) == events


@pytest.mark.parametrize(
    ("chunks", "calls"),
    [
        ([call("{}", id="a"), call("{}", id="b")], [("a", "hours", "{}"), ("b", "hours", "{}")]),
        ([call("{", id="a"), call("}", id="a"), call("{}", id="b")], [("a", "hours", "{}"), ("b", "hours", "{}")]),
        ([call("", id="a"), call("{"), call("}", id="")], [("a", "hours", "{}")]),
        (
            [call("{", id="a", index=3), call("}", index=3), call("{}", id="b", index=5)],
            [("a", "hours", "{}"), ("b", "hours", "{}")],
        ),
        ([call(None, id="a", index=0)], [("a", "hours", "")]),
        ([call("{}", id="a", index=0), call("{}", id="b", index=0)], [("a", "hours", "{}"), ("b", "hours", "{}")]),
        ([call("{", id="a", index=0), fragment("}", id="b", index=0)], [("a", "hours", "{}")]),
        ([call({"day": "é"}, id="a", index=0)], [("a", "hours", '{"day":"é"}')]),
    ],
    ids=[
        "no index",
        "no index, id repeated",
        "only first has id",
        "index not from zero",
        "no arguments",
        "one index for all",
        "another id for every fragment",
        "arguments as an object",
    ],
)
async def test_odd_tool_calls_are_understood(compatible, chunks, calls):
    llm, upstream = compatible
    llm.babbles(stream_of(*chunks, choice("stop")))
    events = await ask(upstream)
    assert calls_of(events) == calls
    assert events[-1] == Finished("tool_calls")


async def test_tool_call_without_id_gets_one(compatible):
    llm, upstream = compatible
    llm.babbles(stream_of(call("{"), call("}")))
    ((call_id, *rest),) = calls_of(await ask(upstream))
    assert call_id.startswith("call_") and rest == ["hours", "{}"]


async def test_reason_is_an_end_mark(compatible):
    llm, upstream = compatible
    llm.babbles(stream_of(choice(content="Yes."), choice("length"), done=False))
    assert await ask(upstream) == [TextDelta("Yes."), Finished("length")]


async def served_by(serve, ask_there):
    """What an upstream gets from a server that is nothing but this function."""
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = build("openai", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return await ask_there(upstream)
        finally:
            await upstream.close()


_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"


@pytest.mark.parametrize("then", ["silence", "cut", "error"])
async def test_reason_is_enough(then):
    """The answer is whole, and its tool calls can be run, whatever becomes of the response."""
    records = stream_of(call("{}", id="a", index=0), choice("tool_calls"), done=False)
    if then == "error":
        records += 'data: {"error": "busy"}\n\n'
    over = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(_STREAM % (len(records), records.encode()))
        await writer.drain()
        if then == "silence":
            await over.wait()
        writer.close()

    events = await served_by(serve, ask)
    over.set()
    assert events == [ToolCallDelta(0, "a", "hours", "{}"), Finished("tool_calls")]


async def test_kept_connection_may_be_gone():
    """A server may close an idle connection in the moment in which a request uses it."""
    records = stream_of(choice("stop", content="Yes."))
    served = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split()[0])
        await reader.readexactly(length)
        writer.write(_STREAM % (len(records), records.encode()) + b"0\r\n\r\n")
        served.append(writer)
        if len(served) == 1:
            await reader.read(1)  # of the next question
        writer.close()

    async def ask_twice(upstream):
        return [text_of(await ask(upstream)) for _ in range(2)]

    assert await served_by(serve, ask_twice) == ["Yes.", "Yes."]
    assert len(served) == 2


@pytest.mark.parametrize("record", ['data: {"error": "busy"}', 'event: error\ndata: {"message": "busy"}', "data: 7"])
async def test_odd_error_is_unavailable(compatible, record):
    llm, upstream = compatible
    llm.babbles(f"{record}\n\n{stream_of()}")
    with pytest.raises(LlmUnavailable, match="^openai reported an error in its answer$"):
        await ask(upstream)


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
async def test_chat_request_is_exact(llm, upstream):
    messages = (PROMPT, GREETING, QUESTION, {"role": "assistant", "content": None, "tool_calls": [CALL]})
    result = {"role": "tool", "tool_call_id": "call_1", "content": "ready"}
    await ask(upstream, ChatRequest((*messages, result), (TOOL,), "auto", 300, 0.6, memory="Likes it short."))
    assert llm.requests[0].body == {
        "model": "gpt-5.4-mini",
        "messages": [
            PROMPT,
            GREETING,
            {"role": "system", "content": "Likes it short."},
            QUESTION,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            result,
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
        "tool_choice": "auto",
        "max_completion_tokens": 300,
        "temperature": 0.6,
    }


@pytest.mark.parametrize("kind", ["openai"], indirect=True)
async def test_memory_without_question_comes_last(llm, upstream):
    llm.babbles(stream_of())
    await ask(upstream, ChatRequest((PROMPT, GREETING), tool_choice="auto", memory="Likes it short."))
    assert llm.requests[0].body["messages"] == [PROMPT, GREETING, {"role": "system", "content": "Likes it short."}]
    assert "tool_choice" not in llm.requests[0].body


async def test_server_may_want_no_key():
    async with FakeLlm(api_key="") as llm:
        upstream = OpenAiUpstream("local", f"{llm.url}/v1", "llama", None, options={"seed": 7})
        assert text_of(await ask(upstream)) == "It is ready."
        await upstream.close()
    assert "authorization" not in llm.requests[0].headers
    assert llm.requests[0].body["seed"] == 7


@pytest.mark.parametrize(("model", "effort"), [("", "none"), ("grok-4.3", "none"), ("grok-4.5", None)])
async def test_fast_grok_does_not_think(model, effort):
    async with FakeLlm(profile="xai") as llm:
        upstream = xai_upstream(f"{llm.url}/v1", model, Secret("test-key"), options={})
        events = await ask(upstream)
        await upstream.close()
    assert (upstream.name, upstream.model) == ("xai", model or "grok-4.3")
    assert llm.requests[0].body.get("reasoning_effort") == effort
    assert text_of(events) == "It is ready."
