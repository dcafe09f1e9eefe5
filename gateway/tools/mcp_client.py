"""
A session with an MCP server, by the official SDK: streamable HTTP, opened again when it is lost.

Importing this takes a second of CPU; `remote.py` does it in a thread, and only if an agent has such a server.
"""

import asyncio
import contextlib
import importlib.metadata
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx2
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from gateway.settings import Secret
from gateway.tools.remote import RemoteTimeouts, RemoteToolFailed
from gateway.tools.remote_settings import LONGEST_TIMEOUT, McpSettings
from gateway.tools.schema import as_content

MOST_TOOLS: Final = 128
"""Of one server. More would leave a language model no room."""
MOST_PAGES: Final = 20
MOST_SCHEMA_CHARACTERS: Final = 16_000
MOST_DESCRIPTION_CHARACTERS: Final = 2000
MOST_RESPONSE_BYTES: Final = 4_000_000
"""Of one JSON response, a list of tools or a result. The SDK limits events to a quarter of it."""
STREAM_SECONDS: Final = 300.0
"""How long a stream of events may be silent."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedTool:
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class McpConnection:
    """
    One server's tools. `tools` is empty while it is away.

    A request that fails concerns its own call; the session is then checked, and opened again if it is lost.
    """

    def __init__(self, settings: McpSettings, headers: Mapping[str, Secret], timeouts: RemoteTimeouts) -> None:
        self.tools: tuple[ListedTool, ...] = ()
        self._settings = settings
        self._headers = headers
        self._timeouts = timeouts
        self._client: Client | None = None
        self._check = asyncio.Event()
        self._refused: frozenset[str] = frozenset()

    @property
    def is_away(self) -> bool:
        return self._client is None

    async def run(self) -> None:
        """Keep the session open and the list of tools fresh, until cancelled."""
        pause, logged = self._timeouts.first_pause, False
        while True:
            transport = _Transport(self._check.set)
            try:
                async with self._session(transport) as client:
                    self._check.clear()
                    self.tools = await self._list(client)
                    self._client = client
                    _log.info("tool server connected", extra=self._fields(tools=len(self.tools)))
                    pause, logged = self._timeouts.first_pause, False
                    await self._refresh(client)
            except Exception as error:  # the edge to the SDK, which raises groups of anything
                if not logged:
                    _log.warning("tool server is away", extra=self._fields(error=transport.problem or _name(error)))
                logged = True
            finally:
                self._client, self.tools = None, ()
            await asyncio.sleep(pause)
            pause = min(pause * 2, self._timeouts.longest_pause)

    async def call(self, name: str, arguments: dict[str, Any], meta: dict[str, Any]) -> object:
        """The result of a tool. Raises RemoteToolFailed. Cancelling it ends the request at the server, too."""
        if self._client is None:
            raise RemoteToolFailed("the server can't be reached", "away")
        params = types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
        try:
            # Not `Client.call_tool`: it runs the server's schema over the result on the event loop.
            result = await self._client.session.send_request(
                types.CallToolRequest(params=params),
                types.CallToolResult,
                request_read_timeout_seconds=LONGEST_TIMEOUT + 1,
            )
        except (MCPError, ValidationError, RuntimeError, anyio.ClosedResourceError) as error:
            self._check.set()
            raise RemoteToolFailed("the server did not answer as it should", type(error).__name__) from None
        content = _content(result)
        if result.is_error:
            raise RemoteToolFailed(as_content(content or "no reason given"), "tool error")
        return content

    @contextlib.asynccontextmanager
    async def _session(self, transport: "_Transport") -> AsyncIterator[Client]:
        headers = {name: value.reveal() for name, value in self._headers.items()}
        limits = httpx2.Timeout(self._timeouts.connect, read=STREAM_SECONDS)
        async with httpx2.AsyncClient(headers=headers, timeout=limits, transport=transport) as http:
            client = Client(
                streamable_http_client(self._settings.mcp, http_client=http),
                read_timeout_seconds=self._timeouts.connect,
                message_handler=self._on_message,
                client_info=types.Implementation(
                    name="voice-gateway", version=importlib.metadata.version("voice-gateway")
                ),
                cache=None,
            )
            async with client:
                yield client

    # The list of tools

    async def _refresh(self, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow_changes, client)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timeouts.refresh):
                        await self._check.wait()
                self._check.clear()
                self.tools = await self._list(client)

    async def _follow_changes(self, client: Client) -> None:
        """Servers of the protocol of 2026 announce changes on a stream, earlier ones to `_on_message`."""
        while True:
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    self._check.set()  # for a change before the stream was open
                    async for _ in changes:
                        self._check.set()
            except ListenNotSupportedError:
                return
            except (MCPError, TimeoutError):  # it has no such stream, or is gone
                self._check.set()
                return  # the list is read again from time to time all the same
            except SubscriptionLost:
                pass
            self._check.set()
            await asyncio.sleep(self._timeouts.first_pause)

    async def _on_message(self, message: types.ServerNotification | Exception) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._check.set()

    async def _list(self, client: Client) -> tuple[ListedTool, ...]:
        found: list[types.Tool] = []
        cursor = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > MOST_TOOLS:
                break
        usable = [
            ListedTool(
                tool.name, (tool.description or tool.title or "")[:MOST_DESCRIPTION_CHARACTERS], tool.input_schema
            )
            for tool in found[:MOST_TOOLS]
            if _is_usable(tool)
        ]
        refused = {tool.name[:64] for tool in found} - {tool.name for tool in usable}
        for name in sorted(refused - self._refused):
            _log.warning("tool left out", extra=self._fields(function=name, reason="its schema is not usable"))
        self._refused = frozenset(refused)
        return tuple(usable)

    def _fields(self, **fields: object) -> dict[str, object]:
        return {"server": self._settings.host, **fields}


async def tool_names(settings: McpSettings, headers: Mapping[str, Secret], timeouts: RemoteTimeouts) -> frozenset[str]:
    """The names of a server's tools, for `gateway doctor`. Raises RemoteToolFailed, which says why there are none."""
    connection = McpConnection(settings, headers, timeouts)
    transport = _Transport(lambda: None)
    try:
        async with connection._session(transport) as client:
            return frozenset(tool.name for tool in await connection._list(client))
    except Exception as error:  # the edge to the SDK
        raise RemoteToolFailed("no tools", transport.problem or _name(error)) from None


def _is_usable(tool: types.Tool) -> bool:
    """The SDK has checked that the schema is that of an object."""
    properties = tool.input_schema.get("properties", {})
    return isinstance(properties, dict) and len(json.dumps(tool.input_schema)) <= MOST_SCHEMA_CHARACTERS


def _content(result: types.CallToolResult) -> object:
    """Text if there is any, else structured content; sounds and pictures by their names."""
    texts: list[str] = []
    others: list[str] = []
    for block in result.content:
        match block:
            case types.TextContent():
                texts.append(block.text)
            case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
                texts.append(resource.text)
            case types.ImageContent() | types.AudioContent():
                others.append(f"({block.type}, {block.mime_type}, not shown)")
            case _:
                others.append(f"({block.type}, not shown)")
    if not any(texts) and result.structured_content is not None:
        return result.structured_content
    return "\n".join([*filter(None, texts), *others]) or None


def _name(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__


# Connections


class _Transport(httpx2.AsyncHTTPTransport):
    """
    Answers with a status where a request fails, since the SDK ends the whole session for an exception.

    `problem` describes the last failure; it is empty after a success. `stream_ended` is called when a stream of events
    that the client opened has ended: the server may be gone.
    """

    def __init__(self, stream_ended: Callable[[], None]) -> None:
        super().__init__()
        self.problem = ""
        self._stream_ended = stream_ended

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        request.headers["Accept-Encoding"] = "identity"  # a small compressed response could be a large one
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            self.problem = type(error).__name__
            if request.method == "GET":
                self._stream_ended()
            return httpx2.Response(503)
        self.problem = f"status {response.status_code}" if response.status_code >= 300 else ""
        if response.headers.get("Content-Encoding", "identity") != "identity":
            self.problem = "compressed response"
            await response.aclose()
            return httpx2.Response(502)
        is_stream = response.headers.get("Content-Type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        on_end = self._stream_ended if request.method == "GET" else lambda: None
        response.stream = _LimitedStream(response.stream, None if is_stream else MOST_RESPONSE_BYTES, on_end)
        return response


class _LimitedStream(httpx2.AsyncByteStream):
    """Raises StreamError, which the SDK takes for a failed request, for a body that breaks off or is too long."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int | None, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        try:
            async for chunk in self._stream:
                received += len(chunk)
                if self._most_bytes is not None and received > self._most_bytes:
                    raise httpx2.StreamError("the response is too long")
                yield chunk
        except httpx2.TransportError as error:
            raise httpx2.StreamError(type(error).__name__) from None

    async def aclose(self) -> None:
        self._on_end()
        await self._stream.aclose()
