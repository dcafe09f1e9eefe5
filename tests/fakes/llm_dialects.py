"""One answer in the wire formats of Anthropic, OpenAI, xAI and OpenClaw."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tests.fakes.llm_script import Answer, Exchange, Record, Shape, ToolCall

REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


def last_user_text(messages: list[dict[str, Any]]) -> str:
    """The text to answer: the last user message or a later tool result."""
    content = next((message["content"] for message in reversed(messages) if message["role"] in ("user", "tool")), "")
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text") or part.get("content") or "") for part in content)


def structured(schema: dict[str, Any], shape: Shape) -> Answer:
    text = json.dumps(_instance(schema, shape == "wrong types"), ensure_ascii=False)
    match shape:
        case "fenced":
            return Answer(f"```json\n{text}\n```")
        case "prose":
            return Answer(f"Here are the notes you {{asked}} for:\n\n{text}\n\nShall I go on?")
        case "cut":
            return Answer(text[: len(text) // 2], finish="length")
        case "refusal":
            return Answer("", finish="content_filter")
        case _:
            return Answer(text)


def _instance(schema: dict[str, Any], wrong: bool, name: str = "value") -> Any:
    """An instance of the schema; with `wrong`, text for lists and numbers for text."""
    match schema.get("type"):
        case "object":
            return {key: _instance(part, wrong, key) for key, part in schema.get("properties", {}).items()}
        case "array":
            return f"one of {name}" if wrong else [_instance(schema.get("items", {}), wrong, f"one of {name}")]
        case "string" if "enum" in schema and not wrong:
            return schema["enum"][0]
        case "boolean":
            return True
        case "integer" | "number":
            return 7
        case _:
            return 7 if wrong else name


def model_list(anthropic: bool, agents: Iterable[str]) -> dict[str, Any]:
    """`agents`: those of OpenClaw, which are its models."""
    if anthropic:
        model = {
            "type": "model",
            "id": "claude-haiku-5-5",
            "display_name": "Haiku",
            "created_at": "2026-10-07T00:00:00Z",
        }
        return {"data": [model], "has_more": False, "first_id": model["id"], "last_id": model["id"]}
    names = ["openclaw", "openclaw/default", *(f"openclaw/{agent}" for agent in agents)] if agents else ["some-model"]
    common = {"object": "model", "created": 1_790_000_000, "owned_by": "provider"}
    return {"object": "list", "data": [{"id": name, **common} for name in names]}


# Anthropic.


def _thinks(exchange: Exchange) -> bool:
    """Haiku 5.5 thinks unless the request disables it."""
    return exchange.model == "claude-haiku-5-5" and exchange.request.body.get("thinking") != {"type": "disabled"}


def _anthropic_blocks(exchange: Exchange) -> list[dict[str, Any]]:
    thoughts = [{"type": "thinking", "thinking": "Let me see.", "signature": "c2ln"}] if _thinks(exchange) else []
    text = [{"type": "text", "text": exchange.answer.text}] if exchange.answer.text else []
    tools = [
        {"type": "tool_use", "id": tool.id, "name": tool.name, "input": json.loads(tool.arguments or "{}")}
        for tool in exchange.answer.tools
    ]
    return [*thoughts, *text, *tools]


def anthropic_message(exchange: Exchange) -> dict[str, Any]:
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": exchange.model,
        "content": _anthropic_blocks(exchange),
        "stop_reason": REASONS[exchange.answer.reason],
        "stop_sequence": None,
        "usage": {
            "input_tokens": 310,
            "output_tokens": max(1, len(exchange.pieces)),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": exchange.cached,
        },
    }


def anthropic_records(exchange: Exchange) -> Iterator[Record]:
    def record(kind: str, **values: Any) -> Record:
        text = f"event: {kind}\ndata: {json.dumps({'type': kind, **values}, ensure_ascii=False)}\n\n"
        return Record(text, values.get("delta", {}).get("type") in ("text_delta", "input_json_delta"))

    message = anthropic_message(exchange)
    usage = {**message["usage"], "output_tokens": 1}
    yield record("message_start", message={**message, "content": [], "stop_reason": None, "usage": usage})
    yield record("ping")
    said = 0
    for index, block in enumerate(message["content"]):
        empty, deltas = _anthropic_deltas(block, exchange)
        yield record("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            if said == exchange.answer.breaks_after:
                yield record("error", error={"type": "overloaded_error", "message": "Overloaded"})
                return
            said += delta["type"] == "text_delta"
            yield record("content_block_delta", index=index, delta=delta)
        yield record("content_block_stop", index=index)
    job = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield record("message_delta", delta=job, usage={"output_tokens": message["usage"]["output_tokens"]})
    yield record("message_stop")


def _anthropic_deltas(block: dict[str, Any], exchange: Exchange) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block:
        case {"type": "thinking", "thinking": call_llm, "signature": signature}:
            signed = {"type": "signature_delta", "signature": signature}
            deltas = [{"type": "thinking_delta", "thinking": call_llm}, signed]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case {"type": "tool_use", "input": arguments}:
            text = json.dumps(arguments) if arguments else ""
            parts = ["", *(text[at : at + 5] for at in range(0, len(text), 5))]
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in parts]
        case _:
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in exchange.pieces]


# Chat completions.

_IDS = {"openai": "chatcmpl-1", "xai": "4f2c0b1e-7a51-4d0e-9d4e-0a5d1c1b2a3f_us-east-1"}


def _chat_head(exchange: Exchange, kind: str) -> dict[str, Any]:
    head = {"id": _IDS.get(exchange.profile, "chatcmpl_7a514d0e"), "object": kind, "created": 1_790_000_000}
    fingerprint = {"system_fingerprint": "fp_1"} if exchange.profile == "xai" else {}
    return {**head, "model": exchange.model, **fingerprint}


def _chat_usage(exchange: Exchange) -> dict[str, Any]:
    if exchange.profile == "openclaw-old":
        return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    said, prompt = len(exchange.pieces), 40 + exchange.cached
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": said,
        "total_tokens": prompt + said,
        "prompt_tokens_details": {"cached_tokens": exchange.cached},
    }
    if exchange.profile != "xai" or exchange.request.body.get("reasoning_effort") == "none":
        return usage
    details = {"reasoning_tokens": 120}  # counted in the total, not in completion_tokens
    return {**usage, "total_tokens": prompt + said + 120, "completion_tokens_details": details}


def _whole_tool(tool: ToolCall) -> dict[str, Any]:
    return {"id": tool.id, "type": "function", "function": {"name": tool.name, "arguments": tool.arguments}}


def chat_completion(exchange: Exchange) -> dict[str, Any]:
    answer = exchange.answer
    refused = answer.reason == "content_filter"
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": None}
    if refused and exchange.profile == "openai":
        message["refusal"] = "I can't help with that."
    if answer.tools:
        message["tool_calls"] = [_whole_tool(tool) for tool in answer.tools]
    choice = {"index": 0, "message": message, "finish_reason": answer.reason, "logprobs": None}
    return {**_chat_head(exchange, "chat.completion"), "choices": [choice], "usage": _chat_usage(exchange)}


def chat_records(exchange: Exchange) -> Iterator[Record]:
    for chunk in _CHUNKS[exchange.profile](exchange):
        deltas = [choice["delta"] for choice in chunk.get("choices", [])]
        is_token = any(delta.get("content") or delta.get("tool_calls") for delta in deltas)
        yield Record(f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n", is_token)
    yield Record("data: [DONE]\n\n", False)


def _chunk(exchange: Exchange, delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    more = {"service_tier": "default", "usage": None, "obfuscation": "aX"} if exchange.profile == "openai" else {}
    choices = [{"index": 0, "delta": delta, **choice}]
    return {**_chat_head(exchange, "chat.completion.chunk"), "choices": choices, **more}


def _text_chunks(exchange: Exchange, **choice: Any) -> Iterator[dict[str, Any]]:
    """The text; an error chunk ends it if the answer breaks."""
    for number, piece in enumerate(exchange.pieces):
        if number == exchange.answer.breaks_after:
            yield {"error": {"message": "internal error", "type": "api_error"}}
            return
        yield _chunk(exchange, {"content": piece}, **choice)


def _openai_chunks(exchange: Exchange) -> Iterator[dict[str, Any]]:
    yield _chunk(exchange, {"role": "assistant", "content": ""}, finish_reason=None)
    yield from _said_chunks(exchange, _fragments, finish_reason=None)


def _xai_chunks(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """No `finish_reason` key before the end, visible reasoning, and each tool call in one chunk."""
    yield _chunk(exchange, {"role": "assistant"})
    if exchange.request.body.get("reasoning_effort") != "none":
        yield _chunk(exchange, {})
        yield _chunk(exchange, {"reasoning_content": "Let me see."})
    yield from _said_chunks(exchange, _one_fragment)


def _new_openclaw_chunks(exchange: Exchange) -> Iterator[dict[str, Any]]:
    yield _chunk(exchange, {"role": "assistant"}, finish_reason=None)
    if not exchange.answer.text and not exchange.answer.tools:
        yield _chunk(exchange, {"content": "No response from OpenClaw."}, finish_reason=None)
    yield from _said_chunks(exchange, _fragments, finish_reason=None)


def _old_openclaw_chunks(exchange: Exchange) -> Iterator[dict[str, Any]]:
    """No finish chunk, no tools, and failures as text."""
    yield _chunk(exchange, {"role": "assistant"})
    for chunk in _text_chunks(exchange):
        yield _chunk(exchange, {"content": "Error: internal error"}) if "error" in chunk else chunk
    if not exchange.answer.text:
        yield _chunk(exchange, {"content": "No response from OpenClaw."})


def _said_chunks(exchange: Exchange, fragments: "_Fragments", **choice: Any) -> Iterator[dict[str, Any]]:
    """Text, tool calls, finish and usage, common to the three complete profiles."""
    yield from _text_chunks(exchange, **choice)
    if exchange.answer.breaks_after is not None:
        return
    for index, tool in enumerate(exchange.answer.tools):
        for fragment in fragments(index, tool):
            yield _chunk(exchange, {"tool_calls": [fragment]}, **choice)
    yield _chunk(exchange, {}, finish_reason=exchange.answer.reason)
    if (exchange.request.body.get("stream_options") or {}).get("include_usage"):
        yield {**_chat_head(exchange, "chat.completion.chunk"), "choices": [], "usage": _chat_usage(exchange)}


_Fragments = Callable[[int, ToolCall], Iterator[dict[str, Any]]]


def _fragments(index: int, tool: ToolCall) -> Iterator[dict[str, Any]]:
    yield {"index": index, **_whole_tool(ToolCall(tool.name, "", tool.id))}
    for start in range(0, len(tool.arguments), 9):
        yield {"index": index, "function": {"arguments": tool.arguments[start : start + 9]}}


def _one_fragment(index: int, tool: ToolCall) -> Iterator[dict[str, Any]]:
    yield {"index": index, **_whole_tool(tool)}


_CHUNKS: dict[str, Callable[[Exchange], Iterator[dict[str, Any]]]] = {
    "openai": _openai_chunks,
    "xai": _xai_chunks,
    "openclaw-old": _old_openclaw_chunks,
    "openclaw-new": _new_openclaw_chunks,
}
