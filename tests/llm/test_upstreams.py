"""One suite for every upstream, then what is each one's own. The simulators refuse what the real services refuse."""

import asyncio
import json

import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from gateway.errors import LlmRefused, LlmUnavailable
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta, Usage, whole_answer
from gateway.llm.openai import OpenAiUpstream, xai_upstream
from gateway.llm.openclaw import OpenClawUpstream
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, ToolCall

KINDS = ("openai", "xai", "openclaw-old", "openclaw-new", "anthropic")
WITH_TOOLS = tuple(kind for kind in KINDS if kind != "openclaw-old")

PROMPT = {"role": "system", "content": "You are a barber."}
GREETING = {"role": "assistant", "content": "Hello, how can I help?"}
QUESTION = {"role": "user", "content": "Is it ready?"}
TOOL = {
    "type": "function",
    "function": {
        "name": "order_status",
        "description": "Look an order up.",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}},
    },
}
BARE_TOOL = {"type": "function", "function": {"name": "hours"}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "order_status", "arguments": '{"order": "A12"}'}}
REQUEST = ChatRequest((PROMPT, GREETING, QUESTION))
TOOLS_REQUEST = ChatRequest((PROMPT, QUESTION), tools=(BARE_TOOL, TOOL))
SECRET = "sk-very-secret"


def build(kind, url, key="test-key", **options):
    match kind:
        case "openai":
            return OpenAiUpstream(kind, f"{url}/v1/", "gpt-5.4-mini", Secret(key), options={}, **options)
        case "xai":
            return OpenAiUpstream(kind, f"{url}/v1", "grok-4.3", Secret(key), options={}, **options)
        case "anthropic":
            return AnthropicUpstream(url, "", Secret(key), **options)
        case _:
            return OpenClawUpstream(url, "Main", Secret(key), **options)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
async def llm(kind):
    async with FakeLlm(profile="openai" if kind == "anthropic" else kind) as llm:
        yield llm


@pytest.fixture
async def upstream(kind, llm):
    upstream = build(kind, llm.url)
    yield upstream
    await upstream.close()


async def ask(upstream, request=REQUEST, caller_key=""):
    return [event async for event in upstream.answer(request, caller_key)]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events):
    """The tool calls, put together as their reader has to."""
    calls = {}
    for event in events:
        if isinstance(event, ToolCallDelta) and event.index not in calls:
            assert event.id and event.name
            calls[event.index] = [event.id, event.name, event.arguments]
        elif isinstance(event, ToolCallDelta):
            assert (event.id, event.name) == ("", "")
            calls[event.index][2] += event.arguments
    return [tuple(calls[index]) for index in range(len(calls))]


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
async def test_reason_is_told(llm, upstream, reason):
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


@pytest.mark.parametrize("status", [429, 500, 529])
async def test_passing_failure_is_unavailable(llm, upstream, status):
    llm.fails(status, retry_after="1.5")
    with pytest.raises(LlmUnavailable) as raised:
        await ask(upstream)
    assert (str(raised.value), raised.value.retry_after) == (f"{upstream.name} answered {status}", 1.5)
    assert len(llm.requests) == 1


async def test_wrong_key_is_refused_unquoted(kind, llm):
    upstream = build(kind, llm.url, SECRET)
    with pytest.raises(LlmRefused) as raised:
        await ask(upstream)
    await upstream.close()
    assert str(raised.value) == f"{upstream.name} answered 401"
    assert raised.value.__cause__ is None


async def test_closed_port_is_unavailable(kind):
    async with FakeLlm() as gone:
        pass
    upstream = build(kind, gone.url, SECRET)
    with pytest.raises(LlmUnavailable, match=f"^{upstream.name} can't be reached: [A-Za-z]+$") as raised:
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
    with pytest.raises(LlmUnavailable, match=f"^{upstream.name} can't be reached: {_CUT}$"):
        await ask(upstream)


@pytest.mark.parametrize("body", ["", "<html>busy</html>", "{}", "data: {}\n\n", 'event: ping\ndata: {"a": [1]}\n\n'])
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


# Chat completions


def stream_of(*chunks, done=True):
    records = [*(json.dumps(chunk) for chunk in chunks), *(["[DONE]"] if done else [])]
    return "".join(f"data: {record}\n\n" for record in records)


def choice(finish_reason=None, **delta):
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}]}


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
    """A server closes connections that nobody uses, perhaps in the moment in which somebody does."""
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


# OpenClaw


@pytest.mark.parametrize("kind", ["openclaw-old", "openclaw-new"], indirect=True)
async def test_session_hears_each_word_once(llm, upstream):
    """Over two turns of a call, OpenClaw's own history is the conversation, not twice of it."""
    first = (PROMPT, GREETING, QUESTION)
    more = ({"role": "assistant", "content": "It is ready."}, {"role": "user", "content": "And the price?"})
    await ask(upstream, ChatRequest(first), "caller-1")
    llm.answers("Ten.")
    await ask(upstream, ChatRequest((*first, *more), memory="Likes it short."), "caller-1")
    said = [QUESTION, *more, {"role": "assistant", "content": "Ten."}]
    assert llm.sessions == {"agent:main:voice:caller-1": said}
    memory = {"role": "system", "content": "Likes it short."}
    assert llm.requests[1].body["messages"] == [PROMPT, memory, more[1]]


@pytest.mark.parametrize("kind", ["openclaw-new"], indirect=True)
async def test_tool_result_goes_to_session(llm, upstream):
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "ready"}
    await ask(upstream, ChatRequest((PROMPT, QUESTION, asked, result)), "caller-1")
    assert llm.requests[0].body["messages"] == [PROMPT, result]


@pytest.mark.parametrize("kind", ["openclaw-new"], indirect=True)
async def test_nameless_caller_has_no_session(llm, upstream):
    await ask(upstream, REQUEST)
    assert llm.requests[0].body["messages"] == [PROMPT, GREETING, QUESTION]
    assert "x-openclaw-session-key" not in llm.requests[0].headers


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_openclaw_is_told_who_calls(path):
    async with FakeLlm(profile="openclaw-new") as llm:
        upstream = OpenClawUpstream(llm.url + path, "", Secret("test-key"), llm_model="xai/grok-4.3")
        await ask(upstream, caller_key="caller-1")
        await upstream.close()
    given = {name: value for name, value in llm.requests[0].headers.items() if name.startswith("x-openclaw-")}
    assert given == {
        "x-openclaw-agent-id": "main",
        "x-openclaw-message-channel": "phone",
        "x-openclaw-model": "xai/grok-4.3",
        "x-openclaw-session-key": "agent:main:voice:caller-1",
    }
    assert llm.requests[0].body["model"] == upstream.model == "openclaw/main"


@pytest.mark.parametrize("kind", ["openclaw-old", "openclaw-new"], indirect=True)
async def test_openclaw_with_nothing_to_say_is_unavailable(llm, upstream):
    llm.answers("")
    with pytest.raises(LlmUnavailable, match="^openclaw sent an error as text$"):
        await ask(upstream)


@pytest.mark.parametrize("kind", ["openclaw-old"], indirect=True)
async def test_openclaw_may_end_unmarked(llm, upstream):
    llm.babbles(stream_of(choice(content="Yes."), done=False))
    assert await ask(upstream) == [TextDelta("Yes."), Finished("stop")]


# Anthropic


async def claude_body(request):
    async with FakeLlm() as llm:
        upstream = build("anthropic", llm.url)
        await ask(upstream, request)
        await upstream.close()
    return llm.requests[0].body


def text(words):
    return {"type": "text", "text": words}


LISTENING = {"role": "user", "content": [text("(The caller is listening.)")]}
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "order_status", "input": {"order": "A12"}}
READY = {"role": "tool", "tool_call_id": "call_1", "content": "ready"}
RESULT = {"type": "tool_result", "tool_use_id": "call_1", "content": "ready"}


async def test_claude_request_is_exact():
    again = {"role": "system", "content": "Be brief."}
    body = await claude_body(
        ChatRequest((PROMPT, QUESTION, again), (BARE_TOOL, TOOL), "required", None, 0.6, memory="Likes it short.")
    )
    cached = {"cache_control": {"type": "ephemeral"}}
    function = TOOL["function"]
    assert body == {
        "model": "claude-haiku-5-5",
        "max_tokens": 400,
        "system": [{**text("You are a barber.\n\nBe brief."), **cached}, text("Likes it short.")],
        "messages": [{"role": "user", "content": [text("Is it ready?")]}],
        "tools": [
            {"name": "hours", "input_schema": {"type": "object", "properties": {}}},
            {
                "name": "order_status",
                "description": function["description"],
                "input_schema": function["parameters"],
                **cached,
            },
        ],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
        "stream": True,
    }


async def test_claude_needs_no_prompt():
    body = await claude_body(ChatRequest((QUESTION,), max_tokens=100))
    assert "system" not in body and "tools" not in body
    assert body["max_tokens"] == 100


@pytest.mark.parametrize(
    ("messages", "turns"),
    [
        ((PROMPT,), [LISTENING]),
        ((GREETING,), [LISTENING, {"role": "assistant", "content": [text(GREETING["content"])]}, LISTENING]),
        (
            (GREETING, QUESTION, {"role": "user", "content": " "}, {"role": "user", "content": "Hello?"}),
            [
                LISTENING,
                {"role": "assistant", "content": [text(GREETING["content"])]},
                {"role": "user", "content": [text("Is it ready?"), text("Hello?")]},
            ],
        ),
        (
            (QUESTION, {**ASKED, "content": "One moment."}, READY, {"role": "user", "content": "Well?"}),
            [
                {"role": "user", "content": [text("Is it ready?")]},
                {"role": "assistant", "content": [text("One moment."), TOOL_USE]},
                {"role": "user", "content": [RESULT, text("Well?")]},
            ],
        ),
        (
            (QUESTION, ASKED, {"role": "user", "content": "Well?"}, GREETING, READY),
            [
                {"role": "user", "content": [text("Is it ready?")]},
                {"role": "assistant", "content": [TOOL_USE]},
                {"role": "user", "content": [RESULT, text("Well?")]},
                {"role": "assistant", "content": [text(GREETING["content"])]},
                LISTENING,
            ],
        ),
        (
            (QUESTION, ASKED),
            [
                {"role": "user", "content": [text("Is it ready?")]},
                {"role": "assistant", "content": [TOOL_USE]},
                {"role": "user", "content": [{**RESULT, "content": "no result", "is_error": True}]},
            ],
        ),
        ((READY, QUESTION), [{"role": "user", "content": [text("Is it ready?")]}]),
    ],
    ids=["prompt alone", "greeting", "neighbours", "tool result", "late result", "no result", "lost call"],
)
async def test_conversation_is_turned_for_claude(messages, turns):
    assert (await claude_body(ChatRequest(messages, tools=(TOOL,))))["messages"] == turns


@pytest.mark.parametrize(
    ("arguments", "given"), [("", {}), ("{}", {}), ("[1]", {"arguments": [1]}), ('{"order', {"arguments": '{"order'})]
)
async def test_tool_arguments_become_an_object(arguments, given):
    called = {**ASKED, "tool_calls": [{**CALL, "function": {"name": "order_status", "arguments": arguments}}]}
    body = await claude_body(ChatRequest((QUESTION, called, READY), tools=(TOOL,)))
    assert body["messages"][1]["content"][0]["input"] == given


@pytest.mark.parametrize(
    ("choice", "turned"),
    [
        ("auto", {"type": "auto"}),
        ("none", {"type": "none"}),
        ({"type": "function", "function": {"name": "hours"}}, {"type": "tool", "name": "hours"}),
    ],
)
async def test_tool_choice_is_turned_for_claude(choice, turned):
    assert (await claude_body(ChatRequest((QUESTION,), (BARE_TOOL,), choice)))["tool_choice"] == turned


@pytest.mark.parametrize("kind", ["anthropic"], indirect=True)
async def test_claude_counts_whole_prompt(llm, upstream):
    first, second = [(await ask(upstream, REQUEST))[-2] for _ in range(2)]
    assert (first, second) == (Usage(310, 4, 0), Usage(320, 4, 10))


@pytest.mark.parametrize("kind", ["anthropic"], indirect=True)
@pytest.mark.parametrize("record", ['event: error\ndata: {"busy": true}', 'data: {"type": "error"}'])
async def test_claude_error_may_lack_either_name(llm, upstream, record):
    llm.babbles(f"{record}\n\n")
    with pytest.raises(LlmUnavailable, match="^anthropic reported an error in its answer$"):
        await ask(upstream)


@pytest.mark.parametrize("kind", ["anthropic"], indirect=True)
async def test_claude_may_hold_thoughts_and_unknown_events(llm, upstream):
    events = [
        {"type": "message_start", "message": {"usage": {"input_tokens": "7"}}},
        {"type": "content_block_start", "content_block": {"type": "thinking", "thinking": "Hm."}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "invented", "delta": 7},
        {"type": "message_delta", "delta": {"stop_reason": None}},
        {"type": "message_delta", "delta": {"stop_reason": "model_context_window_exceeded"}, "usage": None},
    ]
    llm.babbles("".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events))
    assert await ask(upstream) == [TextDelta("Yes."), Usage(0, 0, 0), Finished("length")]
