"""
The chat completions API that we serve to engines: requests in, chunks or whole answers out. No I/O.

Chunks without choices and keys of a single provider are never sent: engines do not accept them.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import orjson

from gateway.llm.chat import ChatEvent, ChatRequest, Finished, FinishReason, Message, TextDelta, ToolCallDelta, Usage

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


class MalformedChatRequest(ValueError):
    """A body that is not a chat completion. The text says why in one sentence and quotes nothing of the body."""


# orjson refuses lone surrogates, which a peer sends when it cuts text inside an emoji; json accepts them.


def read_json(data: bytes | str) -> Any:
    """Raises ValueError."""
    try:
        return orjson.loads(data)
    except ValueError:
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("nested too deep") from None


def write_json(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


# In


class CompletionRequest(NamedTuple):
    """A request, and the form of its answer."""

    request: ChatRequest
    streamed: bool
    with_usage: bool
    """For a streamed answer; any other has its usage anyway."""


def read_request(body: bytes) -> CompletionRequest:
    """Raises MalformedChatRequest."""
    try:
        fields = read_json(body)
    except ValueError:
        raise MalformedChatRequest("the body is not JSON") from None
    _demand(isinstance(fields, dict), "the body must be a JSON object")
    messages, tools = fields.get("messages"), fields.get("tools")
    _demand(isinstance(messages, list) and messages, "messages must be a list with at least one message")
    _demand(tools is None or isinstance(tools, list), "tools must be a list")
    newer, older = fields.get("max_completion_tokens"), fields.get("max_tokens")
    limit = older if newer is None else newer
    _demand(limit is None or (type(limit) is int and limit > 0), "max_tokens must be a whole number above 0")
    temperature = fields.get("temperature")
    _demand(temperature is None or type(temperature) in (int, float), "temperature must be a number")
    request = ChatRequest(
        tuple(_message(f"messages[{number}]", message) for number, message in enumerate(messages)),
        tools=tuple(tool for tool in tools or () if _is_function(tool)),
        tool_choice=_tool_choice(fields.get("tool_choice")),
        max_tokens=limit,
        temperature=temperature,
        parallel_tool_calls=fields.get("parallel_tool_calls") is not False,
    )
    options = fields.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    return CompletionRequest(request, streamed=fields.get("stream") is True, with_usage=with_usage)


def _demand(holds: object, problem: str) -> None:
    if not holds:
        raise MalformedChatRequest(problem)


def _message(where: str, given: Any) -> Message:
    _demand(isinstance(given, dict), f"{where} must be an object")
    role, calls = given.get("role"), given.get("tool_calls")
    _demand(isinstance(role, str) and role in _ROLES, f"{where}.role must be one of {', '.join(_ROLES)}")
    message: dict[str, Any] = {"role": _ROLES[role], "content": _text(where, given.get("content"))}
    if role == "tool":
        _demand(isinstance(given.get("tool_call_id"), str), f"{where}.tool_call_id must be text")
        message["tool_call_id"] = given["tool_call_id"]
    elif role == "assistant" and calls:
        _demand(isinstance(calls, list), f"{where}.tool_calls must be a list")
        message["tool_calls"] = [_tool_call(where, call) for call in calls]
        message["content"] = message["content"] or None
    return message


def _text(where: str, content: Any) -> str:
    """The text of a message, without parts that are not text."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(text for text in texts if isinstance(text, str))
    _demand(content is None or isinstance(content, str), f"{where}.content must be text, a list of parts or null")
    return content or ""


def _tool_call(where: str, call: Any) -> Message:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), **more}}:
            arguments = arguments_of(more.get("arguments"))
            return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        case _:
            raise MalformedChatRequest(f"{where}.tool_calls must have an id and a function with a name")


def arguments_of(given: Any) -> str:
    """Arguments as JSON text. Some servers send nothing, some the object itself."""
    if isinstance(given, str):
        return given
    return write_json(given).decode() if given else ""


def _is_function(tool: Any) -> bool:
    """Other kinds of tools belong to a provider."""
    match tool:
        case {"type": "function", "function": {"name": str()}}:
            return True
        case {"type": str(kind)} if kind != "function":
            return False
        case _:
            raise MalformedChatRequest("tools must be functions with a name")


def _tool_choice(choice: Any) -> str | Mapping[str, Any] | None:
    match choice:
        case "auto" | "none" | "required":
            return str(choice)
        case {"function": {"name": str(name)}}:
            return {"type": "function", "function": {"name": name}}
        case _:
            return None  # an unknown kind: the model chooses


# Out


class ChunkWriter:
    """
    Writes one streamed answer: `start`, `write` for each event, `end`. Each returns the bytes to send.

    Usage is sent with the finish reason: OpenAI uses a separate chunk without choices, which engines do not accept.
    `usage_apart`: as OpenAI does it.
    """

    def __init__(self, model: str, *, with_usage: bool = False, usage_apart: bool = False) -> None:
        head = _head("chat.completion.chunk", model)
        self._before = b"data: " + write_json(head)[:-1] + b',"choices":[{"index":0,"delta":'
        self._with_usage = with_usage
        self._usage_apart = usage_apart
        self._usage = b""
        self._finished = False

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def write(self, event: ChatEvent) -> bytes:
        """b"" for events that are not sent."""
        match event:
            case TextDelta(text):
                return self._chunk({"content": text})
            case ToolCallDelta(index, call_id):
                call = _tool_call_of(event) if call_id else {"function": {"arguments": event.arguments}}
                return self._chunk({"tool_calls": [{"index": index, **call}]})
            case Finished(reason) if not self._finished:
                return self._finish(reason)
            case Usage() if self._with_usage:
                self._usage = b',"usage":' + write_json(_usage_of(event))
                return b""
            case _:
                return b""

    def end(self) -> bytes:
        """The end of the stream. Adds a finish reason if there was none: without one, the engine reports an error."""
        rest = b"" if self._finished else self._finish("stop")
        if self._usage and self._usage_apart:
            rest += self._before.rpartition(b"[")[0] + b"[]" + self._usage + b"}\n\n"
        return rest + b"data: [DONE]\n\n"

    def _finish(self, reason: FinishReason) -> bytes:
        self._finished = True
        return self._chunk({}, b'"%b"' % reason.encode(), b"" if self._usage_apart else self._usage)

    def _chunk(self, delta: Mapping[str, Any], finish_reason: bytes = b"null", more: bytes = b"") -> bytes:
        return b'%b%b,"finish_reason":%b}]%b}\n\n' % (self._before, write_json(delta), finish_reason, more)


def completion(events: Iterable[ChatEvent], model: str) -> bytes:
    """The events of one answer as a response that is not streamed."""
    text, reason = "", "stop"
    calls: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    for event in events:
        match event:
            case TextDelta(piece):
                text += piece
            case ToolCallDelta(index) if index in calls:
                calls[index]["function"]["arguments"] += event.arguments
            case ToolCallDelta(index):
                calls[index] = _tool_call_of(event)
            case Usage():
                usage = {"usage": _usage_of(event)}
            case Finished():
                reason = event.reason
    asked = {"tool_calls": list(calls.values())} if calls else {}
    message = {"role": "assistant", "content": text or (None if calls else ""), "refusal": None, **asked}
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    return write_json({**_head("chat.completion", model), "choices": [choice], **usage})


def _head(kind: str, model: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _tool_call_of(delta: ToolCallDelta) -> dict[str, Any]:
    return {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}


def _usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
