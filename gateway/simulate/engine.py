"""A simulated voice engine: a WebSocket server with Deepgram's Voice Agent protocol that sends what it is given."""

import asyncio
import contextlib
from typing import Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from gateway.audio import SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.simulate.frames import AudioFrame, Frame, FrameSink, parse_text, send_frame, wait_processed


class SimulatedEngine:
    """One engine for consecutive calls. Accepts the gateway's connections as they come."""

    def __init__(self, port: int = 0) -> None:
        self.sink = FrameSink()
        self._port = port
        self._server: Server | None = None
        self._socket: ServerConnection | None = None
        self._connected = asyncio.Event()
        self._refusal = 0

    async def __aenter__(self) -> Self:
        try:
            self._server = await serve(
                self._converse,
                "127.0.0.1",
                self._port,
                process_request=self._check_handshake,
                compression=None,
                ping_interval=None,
                close_timeout=1,
                max_size=None,
                max_queue=None,
            )
        except OSError as error:
            raise SettingsError(f"can't be the engine on port {self._port}: {error.strerror}") from None
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """The value for the gateway's DEEPGRAM_AGENT_URL."""
        assert self._server is not None
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}/v1/agent/converse"

    def begin_call(self, *, refusal: int = 0) -> None:
        """Drop the frames of the previous call. A `refusal` is the HTTP status that answers every handshake."""
        self.sink = FrameSink()
        self._refusal = refusal

    async def wait_connected(self, timeout: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), timeout)
        return self._connected.is_set()

    async def send(self, frame: Frame) -> None:
        """Send one frame. It is lost when the gateway is not connected."""
        if self._socket is not None:
            await send_frame(self._socket, frame)

    async def wait_processed(self) -> None:
        if self._socket is not None:
            await wait_processed(self._socket)

    async def disconnect(self, *, refusal: int = 0) -> None:
        """Close the connection. A `refusal` is the HTTP status that answers every further handshake."""
        self._refusal = refusal
        self._connected.clear()
        if self._socket is not None:
            await self._socket.close(1011)

    def _check_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(self._refusal, "") if self._refusal else None

    async def _converse(self, socket: ServerConnection) -> None:
        self._socket = socket
        self._connected.set()
        with contextlib.suppress(ConnectionClosed):
            async for frame in socket:
                if frame == SILENCE_FRAME:
                    self.sink.silent_frames += 1
                else:
                    self.sink.put(AudioFrame(frame) if isinstance(frame, bytes) else parse_text(frame))
        if self._socket is socket:
            self._socket = None
            self._connected.clear()
