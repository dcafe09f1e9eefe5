"""Every upstream against its simulator, and requests to put to them."""

import json

from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import ChatRequest, TextDelta, ToolCallDelta
from gateway.llm.openai import OpenAiUpstream
from gateway.llm.openclaw import OpenClawUpstream
from gateway.settings import Secret

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


def stream_of(*chunks, done=True):
    records = [*(json.dumps(chunk) for chunk in chunks), *(["[DONE]"] if done else [])]
    return "".join(f"data: {record}\n\n" for record in records)


def choice(finish_reason=None, **delta):
    return {"choices": [{"delta": delta, "finish_reason": finish_reason}]}
