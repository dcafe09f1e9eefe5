"""The gateway that simulated peers talk to: its address, its HTTP API, and a temporary one on a free loopback port."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import uvicorn
from starlette.types import ASGIApp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake

from gateway.errors import EngineRefused, EngineUnavailable, SettingsError, StoreUnavailable, connection_problem
from gateway.invocation import command
from gateway.settings import Secret, Settings


@dataclass(frozen=True)
class GatewayAddress:
    """The URL that reaches the gateway, and its PUBLIC_URL, which webhook signatures cover."""

    url: str
    public_url: str = ""

    def public(self, path: str) -> str:
        return f"{(self.public_url or self.url).rstrip('/')}{path}"

    def local(self, path: str) -> str:
        return f"{self.url.rstrip('/')}{path}"

    def media(self, stream_url: str) -> str:
        """A media socket's public URL, rewritten to the URL that reaches the gateway."""
        parts, ours = urlsplit(stream_url), urlsplit(self.url.rstrip("/"))
        path = parts.path.removeprefix(urlsplit(self.public("")).path)
        scheme = "wss" if ours.scheme == "https" else "ws"
        return parts._replace(scheme=scheme, netloc=ours.netloc, path=ours.path + path).geturl()

    async def open_media(self, stream_url: str) -> ClientConnection:
        return await connect(self.media(stream_url), compression=None, ping_interval=None, max_size=None, proxy=None)

    @contextlib.contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Raise SettingsError if the gateway does not answer."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL, OSError, InvalidHandshake) as error:
            how = f"start it with `{command('serve')}`, or give its address with --url"
            raise SettingsError(f"no gateway answers at {self.url} ({connection_problem(error)}); {how}") from None


@dataclass(frozen=True)
class GatewayApi:
    """The gateway's HTTP API with the admin token."""

    address: GatewayAddress
    http: httpx.AsyncClient
    admin_token: Secret

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        """Raises StoreUnavailable for any status but success."""
        headers = {"X-API-Key": self.admin_token.reveal()}
        answer = await self.http.request(method, self.address.local(path), json=body, headers=headers)
        if not answer.is_success:
            raise StoreUnavailable(f"the gateway answered {path} with status {answer.status_code}")
        return answer.json()

    async def call_documents(self, *tags: str) -> list[dict[str, Any]]:
        """Search results for the documents of finished calls."""
        query = {"query": "voice call summary", "tags": ["voice-session", *tags], "limit": 100}
        found = await self.request("POST", "/v1/query", query)
        return list(found["results"])

    async def newest_session(self) -> str:
        """The id of the last finished call; empty if there is none."""
        sessions = await self.request("GET", "/v1/sessions?limit=1")
        return str(sessions[0]["session"]) if sessions else ""

    async def document_text(self, document_id: str) -> str:
        return str((await self.request("GET", f"/v1/documents/{document_id}"))["content"])

    async def wait_ready(self) -> None:
        """Wait until the local engine is loaded. Raises EngineUnavailable or EngineRefused."""
        try:
            state = await self._wait_for(lambda state: state["engine_state"] != "loading", 60.0)
        except TimeoutError:
            raise EngineUnavailable("the local engine did not become ready") from None
        if problem := state.get("engine_problem"):
            raise EngineRefused(problem)

    async def wait_idle(self, timeout: float) -> None:
        """Wait until no call is live and every finalization job is done. Raises TimeoutError."""
        await self._wait_for(lambda state: not state["calls"] and not state["endings"], timeout)

    async def _wait_for(self, is_reached: Callable[[dict[str, Any]], bool], timeout: float) -> dict[str, Any]:
        give_up_at = time.monotonic() + timeout  # the loop's clock may be a virtual one
        pause = 0.02
        while True:
            state: dict[str, Any] = await self.request("GET", "/health")
            if is_reached(state):
                return state
            if time.monotonic() > give_up_at:
                raise TimeoutError
            await asyncio.sleep(pause)
            pause = min(pause * 1.25, 1.0)


class _EmbeddedServer(uvicorn.Server):
    """A uvicorn server inside another program: leaves signals alone, reports its start and stops without polling."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.start_tried = asyncio.Event()
        self._stop_requested = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stop_requested.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit:  # uvicorn's way to report an application that did not start
            self.should_exit = True
        finally:
            self.start_tried.set()

    async def main_loop(self) -> None:
        ticks = 0
        while not await self.on_tick(ticks):
            ticks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 0.1)  # uvicorn's interval

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Shut down as uvicorn does, but without its pause of 0.1 s, and with shorter intervals."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while state.connections or state.tasks:  # noqa: ASYNC110  (sets of uvicorn, which signal nothing)
                    await asyncio.sleep(0.005)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in state.tasks:
                task.cancel()
        await self.lifespan.shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_on_loopback(app: ASGIApp, *, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Serve the application on a free port or this one, for the block; yields its URL. `options` are uvicorn's."""
    # Clients close idle connections after 5 s. If the server did so first, a request could meet a closing one.
    defaults = {"log_config": None, "access_log": False, "timeout_graceful_shutdown": 5, "timeout_keep_alive": 75}
    options = {**defaults, **options}
    config = uvicorn.Config(app, **options)
    server = _EmbeddedServer(config)
    # asyncio sets TCP_NODELAY only for sockets with this protocol number. Without it, answers wait 40 ms for an ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    with listener:
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="loopback server")
        try:
            await server.start_tried.wait()
            if not server.started:
                raise SettingsError("the server on loopback did not start")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.stop()
            await serving
            for _ in range(3):  # until those that were accepted last are known
                await asyncio.sleep(0)
            for connection in list(server.server_state.connections):  # those whose requests were cancelled
                if (transport := getattr(connection, "transport", None)) is not None:
                    transport.abort()


@contextlib.asynccontextmanager
async def own_gateway(settings: Settings) -> AsyncIterator[str]:
    """Run a whole gateway with these settings while the block runs; yields its URL."""
    from gateway.app import Timeouts, create_app  # slow to import
    from gateway.calls.engine_connection import EngineTimeouts
    from gateway.websocket.port_mux import PortMux

    # No caller waits here: memory reaches the first prompt even on a slow machine.
    app = create_app(settings, timeouts=Timeouts(engine=EngineTimeouts(memory=8.0), turn_recall=3.0))
    async with serve_on_loopback(app, http=PortMux, ws="none", lifespan="on") as url:
        yield url
