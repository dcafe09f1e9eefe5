"""An application on a loopback port of the system's choice, in this event loop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from gateway.errors import SettingsError


class _GuestServer(uvicorn.Server):
    """A server that is not the whole program: signals are somebody else's, and somebody waits for it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.start_tried = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.start_tried.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: ASGIApp, **options: Any) -> AsyncIterator[str]:
    """Serve the application while the block runs; gives its address. `options` are uvicorn's."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5, **options)
    server = _GuestServer(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]), name="loopback server")
        try:
            await server.start_tried.wait()
            if not server.started:
                raise SettingsError("the server on loopback did not start")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
