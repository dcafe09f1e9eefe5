"""Our requests in the format of the Messages API, and its events."""

import json

import pytest

from gateway.errors import LlmUnavailable
from gateway.llm.chat import ChatRequest, Finished, TextDelta, Usage
from tests.fakes.llm import FakeLlm
from tests.llm.upstreams import (
    BARE_TOOL,
    CALL,
    GREETING,
    PROMPT,
    QUESTION,
    REQUEST,
    TOOL,
    ask,
    build,
)


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
