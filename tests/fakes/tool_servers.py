"""Servers whose tools an agent uses: an MCP server made with the official SDK, and one with a plain HTTP API."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.simulate.gateway_under_test import serve_on_loopback

SERVED: dict[str, Any] = {"lifespan": "on", "timeout_graceful_shutdown": 0}  # streams of events stay open
TOKEN = "crm-token-5b1f"


def tool(name: str, properties: dict[str, Any] | None = None, **schema: Any) -> types.Tool:
    schema = {"type": "object", "properties": properties or {}, **schema}
    return types.Tool(name=name, description=f"The tool {name}.", input_schema=schema)


def text(*texts: str, **fields: Any) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=each) for each in texts], **fields)


ORDER = {"order": {"type": "string", "description": "its number"}}


class FakeMcpServer:
    """
    A customer database. `tools` may change while it runs; `calls` has what was called, with its `_meta`.

    `is_old`: it speaks the protocol before 2026, with a session. `token`: others get 401.
    """

    def __init__(self, *, is_old: bool = False, token: str = "", sends_json: bool = False) -> None:
        self.tools = [tool("find_order", ORDER, required=["order"]), tool("cancel_order", ORDER, required=["order"])]
        self.results: dict[str, Callable[[dict[str, Any]], Awaitable[types.CallToolResult]]] = {}
        self.calls: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.cancelled = asyncio.Event()
        self.lists = 0
        self.connections = 0
        self.url = ""
        self._is_old = is_old
        self._sends_json = sends_json
        self._token = token
        self._port = 0
        self._bus = InMemorySubscriptionBus()
        self._sessions: list[Any] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Serve it; a second time on the same port."""
        server: Server[Any] = Server(
            "crm",
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        app = server.streamable_http_app(json_response=self._sends_json)
        async with serve_on_loopback(self._guarded(app), port=self._port, **SERVED) as url:
            self._port = int(url.rpartition(":")[2])
            self.url = f"{url}/mcp"
            yield self

    async def announce_change(self) -> None:
        if self._is_old:
            await self._sessions[-1].send_tool_list_changed()
        else:
            await self._bus.publish(ToolsListChanged())

    def _guarded(self, app: ASGIApp) -> ASGIApp:
        async def guard(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                headers = Request(scope).headers
                method = headers.get("mcp-method", "")
                if self._token and headers.get("authorization") != f"Bearer {self._token}":
                    await Response(status_code=401)(scope, receive, send)
                    return
                if self._is_old and method == "server/discover":
                    await Response(status_code=400)(scope, receive, send)
                    return
                self.connections += method == "server/discover" or "mcp-protocol-version" not in headers
            await app(scope, receive, send)

        return guard

    async def _list(self, context: ServerRequestContext[Any, Any], _: object) -> types.ListToolsResult:
        self.lists += 1
        self._sessions.append(context.session)
        return types.ListToolsResult(tools=self.tools)

    async def _call(
        self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        arguments, meta = params.arguments or {}, dict(params.meta or {})
        ours = {key: value for key, value in meta.items() if key.startswith("voice-gateway/")}
        self.calls.append((params.name, arguments, ours))
        if params.name in self.results:
            try:
                return await self.results[params.name](arguments)
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
        return text(f"Order {arguments.get('order')} is on its way.")


class FakeToolServer:
    """A shop's HTTP API. `requests` has what came: method, path with query, body and headers."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, Any, dict[str, str]]] = []
        self.answer: Response = JSONResponse({"status": "on its way"})
        self.hold: asyncio.Event | None = None
        self.abandoned = asyncio.Event()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        routes = [
            Route("/moved", lambda request: RedirectResponse("/orders/7")),
            Route("/{path:path}", self._take, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
        ]
        async with serve_on_loopback(Starlette(routes=routes)) as url:
            self.url = url
            yield self

    async def _take(self, request: Request) -> Response:
        body = await request.json() if await request.body() else None
        query = f"?{request.url.query}" if request.url.query else ""
        path = request.scope["raw_path"].decode() + query
        self.requests.append((request.method, path, body, dict(request.headers)))
        if self.hold is not None:
            while not self.hold.is_set():
                if await request.is_disconnected():
                    self.abandoned.set()
                    break
                await asyncio.sleep(0.01)
        return self.answer
