"""
Deepgram as the client of an own LLM endpoint: one streaming chat completion, read strictly.

What a lenient reader would forgive is a problem on the exchange; what would leave the agent silent is ThinkFailed.
"""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx

_CHUNK_FIELDS = {"id", "object", "created", "model", "choices", "system_fingerprint", "service_tier", "usage"}
_DELTA_FIELDS = {"role", "content", "tool_calls", "refusal"}


class ThinkFailed(Exception):
    """The endpoint's answer is unusable."""


@dataclass
class Exchange:
    """One request to the endpoint and its answer."""

    url: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int | None = None
    text: str = ""
    tool_calls: list[dict[str, str]] = field(default_factory=list)
    finish_reason: str | None = None
    done: bool = False
    dropped: bool = False
    problems: list[str] = field(default_factory=list)
    _same: tuple[Any, ...] | None = None

    async def stream(self, client: httpx.AsyncClient, *, pause: float = 0.0) -> AsyncGenerator[str, None]:
        """Send the request and yield text as it arrives. `pause` simulates a slow reader."""
        headers = {"content-type": "application/json", **self.headers}
        # A bare Request: httpx would add headers.
        request = httpx.Request("POST", self.url, headers=headers, content=json.dumps(self.body))
        try:
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            raise ThinkFailed(type(error).__name__) from error
        try:
            self._check_head(response)
            async with aclosing(_lines(response)) as lines:
                async for line in lines:
                    if piece := self._take(line):
                        yield piece
                        await asyncio.sleep(pause)
            self._check_end()
        except httpx.HTTPError as error:
            raise ThinkFailed(type(error).__name__) from error
        finally:
            self.dropped = not self.done
            await response.aclose()

    def _check_head(self, response: httpx.Response) -> None:
        self.status = response.status_code
        if response.status_code != 200:
            raise ThinkFailed(f"status {response.status_code}")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise ThinkFailed("not an event stream")

    def _check_end(self) -> None:
        if not self.finish_reason:
            raise ThinkFailed("the stream has no finish chunk")
        if not self.done:
            raise ThinkFailed("the stream has no [DONE]")

    def _take(self, line: bytes) -> str:
        """Read one line of the event stream. Returns the text it adds."""
        if not line or line.startswith(b":"):
            return ""
        if not line.startswith(b"data:"):
            raise ThinkFailed("a line is neither data nor comment")
        if self.done:
            self.problems.append("data after [DONE]")
        data = line.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            self.done = True
            return ""
        try:
            chunk = json.loads(data)
        except ValueError:
            raise ThinkFailed("data that is not JSON") from None
        return self._take_chunk(chunk)

    def _take_chunk(self, chunk: Any) -> str:
        if not isinstance(chunk, dict) or chunk.get("object") != "chat.completion.chunk":
            raise ThinkFailed("data that is not a chat.completion.chunk")
        self._check_fields("chunk", chunk, _CHUNK_FIELDS)
        same = (chunk.get("id"), chunk.get("created"), chunk.get("model"))
        if self._same not in (None, same) or None in same:
            self.problems.append("id, created or model differs between chunks")
        self._same = same
        if not chunk.get("choices"):
            self.problems.append("a chunk without choices")
            return ""
        choice = chunk["choices"][0]
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        return self._take_delta(choice.get("delta") or {})

    def _take_delta(self, delta: dict[str, Any]) -> str:
        self._check_fields("delta", delta, _DELTA_FIELDS)
        for part in delta.get("tool_calls") or []:
            self._take_tool_call(part)
        piece = delta.get("content") or ""
        self.text += piece
        return piece

    def _take_tool_call(self, part: dict[str, Any]) -> None:
        while len(self.tool_calls) <= part["index"]:
            self.tool_calls.append({"id": "", "name": "", "arguments": ""})
        call, function = self.tool_calls[part["index"]], part.get("function", {})
        call["id"] += part.get("id") or ""
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""

    def _check_fields(self, where: str, value: dict[str, Any], known: set[str]) -> None:
        self.problems += [f"unknown {where} field {name!r}" for name in sorted(value.keys() - known)]


def request_body(think: dict[str, Any], history: list[dict[str, Any]]) -> dict[str, Any]:
    """Deepgram's chat completion request: prompt, conversation, tools."""
    provider = think["provider"]
    system = [{"role": "system", "content": think["prompt"]}] if think.get("prompt") else []
    messages = system + [message for item in history for message in _chat_messages(item)]
    body: dict[str, Any] = {"model": provider["model"], "messages": messages, "stream": True}
    if "temperature" in provider:
        body["temperature"] = provider["temperature"]
    if think.get("functions"):
        body["tools"] = [_tool(function) for function in think["functions"]]
    return body


def shortened(body: dict[str, Any]) -> dict[str, Any]:
    """The speculative request during the caller's speech: half of the last user message."""
    *earlier, last = body["messages"]
    words = last["content"].split()
    return {**body, "messages": [*earlier, {**last, "content": " ".join(words[: len(words) // 2 or 1])}]}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    known = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", "function": known}


def _chat_messages(item: dict[str, Any]) -> list[dict[str, Any]]:
    if "function_calls" not in item:
        return [{"role": item["role"], "content": item["content"]}]
    calls = item["function_calls"]
    asked = [
        {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
        for call in calls
    ]
    answers = [{"role": "tool", "tool_call_id": call["id"], "content": call["response"]} for call in calls]
    return [{"role": "assistant", "content": None, "tool_calls": asked}, *answers]


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    # httpx's line reader also splits at U+2028, which JSON text may contain.
    buffer = b""
    async for data in response.aiter_raw():
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r")
    if buffer:
        yield buffer
