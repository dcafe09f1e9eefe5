"""A simulated voice engine: a WebSocket server with Deepgram's Voice Agent protocol that sends what it is given."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Self

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from gateway.audio import SILENCE_FRAME
from gateway.engines.deepgram_codec import first_think
from gateway.errors import SettingsError
from gateway.simulate.frames import AudioFrame, Frame, FrameSink, JsonFrame, parse_text, send_frame, wait_processed


class SimulatedEngine:
    """One engine for consecutive calls. Accepts the gateway's connections as they come."""

    def __init__(self, port: int = 0) -> None:
        self.sink = FrameSink()
        self._port = port
        self._server: Server | None = None
        self._socket: ServerConnection | None = None
        self._connected = asyncio.Event()
        self._refusal = 0
        self._refused: asyncio.Future[None] | None = None
        self._holds = False
        self._admission = asyncio.Event()
        self._admission.set()

    async def __aenter__(self) -> Self:
        try:
            self._server = await serve(
                self._converse,
                "127.0.0.1",
                self._port,
                process_request=self._check_handshake,
                compression=None,
                open_timeout=None,  # a handshake waits until it is admitted
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

    def begin_call(self, *, refusal: int = 0, holds: bool = False) -> None:
        """
        Drop the frames of the previous call. A `refusal` is the HTTP status that answers every handshake.

        `holds`: each handshake waits for an `admit` or a `refuse` of its own.
        """
        self.sink = FrameSink()
        self._refusal = refusal
        self._holds = holds
        if holds:
            self._admission.clear()

    def admit(self) -> None:
        """Accept the handshake that waits, or the next one."""
        self._refusal = 0
        self._admission.set()

    def end_call(self) -> None:
        """Accept all handshakes from now on."""
        self._holds = False
        self.admit()

    async def refuse(self, status: int, timeout: float) -> None:
        """Refuse the handshake that waits, or the next one if it comes in time."""
        self._refusal, self._refused = status, asyncio.get_running_loop().create_future()
        self._admission.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._refused, timeout)
        self._admission.clear()

    @property
    def endpoint(self) -> Mapping[str, Any]:
        """The language model endpoint in the settings that came last: its url, and headers for requests."""
        for frame in reversed(self.sink.frames):
            fields = frame.content.fields if isinstance(frame.content, JsonFrame) else {}
            if fields.get("type") == "Settings":
                endpoint: Mapping[str, Any] = first_think(fields).get("endpoint", {})
                return endpoint
        return {}

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
        """Close the connection. A `refusal` is the HTTP status that answers further handshakes."""
        self._refusal = refusal
        self._connected.clear()
        if self._socket is not None:
            await self._socket.close(1011)

    async def _check_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        while not self._admission.is_set():
            await self._admission.wait()
        if self._holds:
            self._admission.clear()
        if not self._refusal:
            return None
        if self._refused is not None and not self._refused.done():
            self._refused.set_result(None)
        return connection.respond(self._refusal, "")

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
