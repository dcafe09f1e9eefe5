"""Validation of requests as the real services do it."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tests.fakes.llm_script import Refusal, Request

ANTHROPIC_MODELS = frozenset({"claude-haiku-5-5", "claude-haiku-4-5", "claude-sonnet-5-5"})
XAI_MODELS = frozenset({"grok-4.3", "grok-4.5", "grok-4.20-non-reasoning"})
NEW_ANTHROPIC_VERSION = "2026-10-21"


def schema_of(body: dict[str, Any]) -> dict[str, Any] | None:
    match body:
        case {"output_config": {"format": {"schema": schema}}}:
            return schema
        case {"response_format": {"json_schema": {"schema": schema}}}:
            return schema
        case _:
            return None


def check_anthropic(request: Request) -> None:
    body = request.body
    for complaint in _anthropic_problems(request):
        raise Refusal(400, "invalid_request_error", complaint)
    if body["model"] not in ANTHROPIC_MODELS:
        raise Refusal(404, "not_found_error", f"model: {body['model']}")


def _anthropic_problems(request: Request) -> Iterator[str]:
    body, version = request.body, request.headers.get("anthropic-version")
    if not version:
        yield "anthropic-version: header is required"
    yield from (f"{name}: Field required" for name in ("model", "max_tokens", "messages") if not body.get(name))
    if version == NEW_ANTHROPIC_VERSION:
        sampling = ("temperature", "top_p", "top_k")
        yield from (f"{name}: Extra inputs are not permitted" for name in sampling if name in body)
    messages = body.get("messages", [])
    if messages[0]["role"] != "user":
        yield 'messages: first message must use the "user" role'
    if messages[-1]["role"] == "assistant":
        yield "messages: this model does not support assistant message prefill"
    if any(not _texts_filled(message["content"]) for message in messages):
        yield "messages: text content blocks must be non-empty"
    if any(not block["text"].strip() for block in _blocks(body.get("system", []))):
        yield "system: text content blocks must be non-empty"
    if _unanswered_tools(messages):
        yield "messages: `tool_use` ids were found without `tool_result` blocks immediately after"
    if any(_misplaced_results(message, after) for message, after in pairwise(messages)):
        yield "messages: `tool_result` blocks must come first and answer the `tool_use` blocks of the previous message"
    if "budget_tokens" in body.get("thinking", {}):
        yield "thinking.budget_tokens: not supported on this model"
    schema = schema_of(body)
    if schema is not None and not _closed(schema):
        yield "output_config.format.schema: 'additionalProperties' must be explicitly set to false"


def _texts_filled(content: str | list[dict[str, Any]]) -> bool:
    if isinstance(content, str):
        return bool(content.strip())
    return bool(content) and all(block["text"].strip() for block in content if block["type"] == "text")


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _ids(message: dict[str, Any], kind: str, key: str) -> set[str]:
    return {block[key] for block in _blocks(message["content"]) if block["type"] == kind}


def _unanswered_tools(messages: list[dict[str, Any]]) -> bool:
    following = [*messages[1:], {"content": []}]
    return any(
        _ids(message, "tool_use", "id") - _ids(after, "tool_result", "tool_use_id")
        for message, after in zip(messages, following, strict=True)
    )


def _misplaced_results(message: dict[str, Any], after: dict[str, Any]) -> bool:
    kinds = [block["type"] for block in _blocks(after["content"])]
    orphans = _ids(after, "tool_result", "tool_use_id") - _ids(message, "tool_use", "id")
    return bool(orphans) or "tool_result" in kinds[kinds.count("tool_result") :]


def _closed(schema: dict[str, Any]) -> bool:
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    closed = schema.get("type") != "object" or schema.get("additionalProperties") is False
    return closed and all(map(_closed, inner))


def check_openclaw(request: Request, agents: frozenset[str], *, strict: bool) -> None:
    if request.headers.get("x-openclaw-session-key", "").startswith(("subagent:", "cron:", "acp:")):
        raise Refusal(400, "invalid_request_error", "reserved session key")
    if not any(message.get("role") in ("user", "tool") for message in request.body["messages"]):
        raise Refusal(400, "invalid_request_error", "Missing user message in `messages`.")
    if not strict:
        return  # early builds accepted any model
    model = str(request.body.get("model", "openclaw")).lower()
    named = re.fullmatch(r"openclaw(?:/default)?|(?:openclaw[/:]|agent:)(?P<agent>[a-z0-9][a-z0-9_-]{0,63})", model)
    if named is None:
        raise Refusal(400, "invalid_request_error", "Invalid `model`. Use `openclaw` or `openclaw/<agentId>`.")
    agent = request.headers.get("x-openclaw-agent-id", named["agent"])
    if agent and agent not in agents:
        raise Refusal(400, "invalid_request_error", f"Unknown agent '{agent}'.")
