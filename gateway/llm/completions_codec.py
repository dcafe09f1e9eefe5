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
    messages = fields.get("messages")
    _demand(isinstance(messages, list) and messages, "messages must be a list with at least one message")
    request = ChatRequest(
        tuple(_message(number, message) for number, message in enumerate(messages)),
        tools=_tools(fields.get("tools")),
        tool_choice=_tool_choice(fields.get("tool_choice")),
        max_tokens=_max_tokens(fields),
        temperature=_temperature(fields.get("temperature")),
    )
    options = fields.get("stream_options")
    with_usage = isinstance(options, dict) and options.get("include_usage") is True
    return CompletionRequest(request, streamed=fields.get("stream") is True, with_usage=with_usage)


def _demand(holds: object, problem: str) -> None:
    if not holds:
        raise MalformedChatRequest(problem)


def _message(number: int, given: Any) -> Message:
    where = f"messages[{number}]"
    _demand(isinstance(given, dict), f"{where} must be an object")
    role = given.get("role")
    _demand(isinstance(role, str) and role in _ROLES, f"{where}.role must be one of {', '.join(_ROLES)}")
    message: dict[str, Any] = {"role": _ROLES[role], "content": _text(where, given.get("content"))}
    if role == "tool":
        _demand(isinstance(given.get("tool_call_id"), str), f"{where}.tool_call_id must be text")
        message["tool_call_id"] = given["tool_call_id"]
    elif role == "assistant" and given.get("tool_calls"):
        _demand(isinstance(given["tool_calls"], list), f"{where}.tool_calls must be a list")
        message["tool_calls"] = [_tool_call(where, call) for call in given["tool_calls"]]
        message["content"] = message["content"] or None
    return message


def _text(where: str, content: Any) -> str:
    """The text of a message, without parts that are not text."""
    match content:
        case None:
            return ""
        case str():
            return content
        case list():
            return "".join(part["text"] for part in content if _is_text(part))
        case _:
            raise MalformedChatRequest(f"{where}.content must be text, a list of parts or null")


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


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


def _tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """The functions among the tools; other kinds belong to a provider."""
    _demand(tools is None or isinstance(tools, list), "tools must be a list")
    functions = []
    for tool in tools or ():
        match tool:
            case {"type": "function", "function": {"name": str()}}:
                functions.append(tool)
            case {"type": str(kind)} if kind != "function":
                pass
            case _:
                raise MalformedChatRequest("tools must be functions with a name")
    return tuple(functions)


def _tool_choice(choice: Any) -> str | Mapping[str, Any] | None:
    match choice:
        case "auto" | "none" | "required":
            return str(choice)
        case {"function": {"name": str(name)}}:
            return {"type": "function", "function": {"name": name}}
        case _:
            return None  # an unknown kind: the model chooses


def _max_tokens(fields: Mapping[str, Any]) -> int | None:
    newer = fields.get("max_completion_tokens")
    match fields.get("max_tokens") if newer is None else newer:
        case None:
            return None
        case int(limit) if limit > 0 and limit is not True:
            return limit
        case _:
            raise MalformedChatRequest("max_tokens must be a whole number above 0")


def _temperature(temperature: Any) -> float | None:
    match temperature:
        case bool():
            raise MalformedChatRequest("temperature must be a number")
        case None | int() | float():
            return temperature
        case _:
            raise MalformedChatRequest("temperature must be a number")


# Out


class ChunkWriter:
    """
    Writes one streamed answer: `start`, `write` for each event, `end`. Each returns the bytes to send.

    Usage is sent with the finish reason: OpenAI uses a separate chunk without choices, which engines do not accept.
    """

    def __init__(self, model: str, *, with_usage: bool = False) -> None:
        head = _head("chat.completion.chunk", model)
        self._before = b"data: " + write_json(head)[:-1] + b',"choices":[{"index":0,"delta":'
        self._with_usage = with_usage
        self._usage = b""
        self._finished = False

    def start(self) -> bytes:
        return self._chunk({"role": "assistant", "content": ""})

    def write(self, event: ChatEvent) -> bytes:
        """b"" for events that are not sent."""
        match event:
            case TextDelta(text):
                return self._chunk({"content": text})
            case ToolCallDelta():
                return self._chunk({"tool_calls": [_fragment(event)]})
            case Finished(reason) if not self._finished:
                return self._finish(reason)
            case Usage() if self._with_usage:
                self._usage = b',"usage":' + write_json(_usage_of(event))
                return b""
            case _:
                return b""

    def end(self) -> bytes:
        """The end of the stream. Adds a finish reason if there was none: without one, the engine reports an error."""
        return (b"" if self._finished else self._finish("stop")) + b"data: [DONE]\n\n"

    def _finish(self, reason: FinishReason) -> bytes:
        self._finished = True
        return self._chunk({}, b'"%b"' % reason.encode(), self._usage)

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


def _fragment(delta: ToolCallDelta) -> dict[str, Any]:
    return {
        "index": delta.index,
        **(_tool_call_of(delta) if delta.id else {"function": {"arguments": delta.arguments}}),
    }


def _tool_call_of(delta: ToolCallDelta) -> dict[str, Any]:
    return {"id": delta.id, "type": "function", "function": {"name": delta.name, "arguments": delta.arguments}}


def _usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
