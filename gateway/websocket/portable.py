"""
WebSockets in pure Python, on the sans-I/O protocol of `websockets`: the fallback where picows has no wheel.

Both sides of a connection are one asyncio protocol, which calls the owner directly, as picows does. It needs about a
third more CPU per call than picows (`gateway bench --sockets websockets`).
"""

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final, cast

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from gateway.errors import EngineUnavailable
from gateway.websocket.interface import (
    ABNORMAL,
    NORMAL,
    PING_SECONDS,
    SocketOwner,
    UpgradeHandler,
    handshake_refused,
    tls_context,
)

_HANDSHAKE_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 2.0
"""How long the peer may take to answer a close frame and to read what was sent before it."""


class PortableSocket(asyncio.Protocol):
    """One connection. The subclasses do the handshake of each side."""

    def __init__(self, protocol: ClientProtocol | ServerProtocol) -> None:
        self._protocol = protocol
        self._transport: asyncio.Transport | None = None
        self._owner: SocketOwner | None = None
        self._parts: list[bytes] = []
        self._parts_opcode = Opcode.TEXT
        self._close_code: int | None = None
        self._timer: asyncio.TimerHandle | None = None

    # Called by the owner

    def send_text(self, data: bytes) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_text(data)
            self._flush()

    def send_binary(self, data: bytes) -> None:
        if self._protocol.state is OPEN:
            self._protocol.send_binary(data)
            self._flush()

    def close(self, code: int = NORMAL) -> None:
        if self._protocol.state is OPEN:
            self._close_code = code
            self._protocol.send_close(code)
            self._flush()
            self._abort_after(_CLOSE_SECONDS)

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not subclass it

    def data_received(self, data: bytes) -> None:
        self._protocol.receive_data(data)
        self._process()

    def eof_received(self) -> None:
        self._protocol.receive_eof()
        self._process()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        owner, self._owner = self._owner, None
        if owner is not None:
            received = self._protocol.close_rcvd
            peer_code = received.code if received is not None else ABNORMAL
            owner.on_closed(self._close_code if self._close_code is not None else peer_code)

    def _process(self) -> None:
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._receive(event)
            else:
                self._on_handshake(event)
        self._flush()
        if self._protocol.close_expected() and self._close_code is None:
            self._abort_after(_CLOSE_SECONDS)

    def _on_handshake(self, message: Request | Response) -> None:
        raise NotImplementedError

    def _opened(self, owner: SocketOwner) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._owner = owner
        owner.on_open(self)

    def _receive(self, frame: Frame) -> None:
        """Deliver a message. `websockets` answers pings and enforces the size limit itself."""
        if frame.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT) or self._close_code is not None:
            return
        if frame.opcode is not Opcode.CONT:
            self._parts, self._parts_opcode = [], frame.opcode
        self._parts.append(bytes(frame.data))
        if frame.fin and self._owner is not None:
            whole, self._parts = b"".join(self._parts), []
            if self._parts_opcode is Opcode.TEXT:
                self._owner.on_text(whole)
            else:
                self._owner.on_binary(whole)

    def _flush(self) -> None:
        if self._transport is not None:
            for data in self._protocol.data_to_send():
                if data:
                    self._transport.write(data)
                else:  # the protocol's end of stream
                    self._transport.close()

    def _abort_after(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)


# The client


class _ClientSocket(PortableSocket):
    def __init__(self, protocol: ClientProtocol, headers: Mapping[str, str], owner: SocketOwner) -> None:
        super().__init__(protocol)
        self._headers = headers
        self._future_owner = owner
        self._is_alive = True
        self.handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(self._protocol, ClientProtocol)
        request = self._protocol.connect()
        request.headers.update(self._headers)
        self._protocol.send_request(request)
        self._flush()

    def data_received(self, data: bytes) -> None:
        self._is_alive = True
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.handshake.done():
            problem = self._protocol.handshake_exc or exc or ConnectionResetError("closed during the handshake")
            self.handshake.set_exception(problem)
        super().connection_lost(exc)

    def _on_handshake(self, message: Request | Response) -> None:
        if self.handshake.done():
            return
        if self._protocol.handshake_exc is not None:
            self.handshake.set_exception(self._protocol.handshake_exc)
            return
        self.handshake.set_result(None)
        self._opened(self._future_owner)
        self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._check_alive)

    def _check_alive(self) -> None:
        """Ping a silent peer; disconnect if the ping stays unanswered. Detects a dead peer within 20 s."""
        if self._protocol.state is not OPEN:
            return
        if self._is_alive:
            self._is_alive = False
            self._protocol.send_ping(b"")
            self._flush()
            self._timer = asyncio.get_running_loop().call_later(PING_SECONDS, self._check_alive)
        elif self._transport is not None:
            self._transport.abort()


async def connect(
    url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
) -> PortableSocket:
    """Open a client socket (a `Connector`)."""
    uri = parse_uri(url)
    socket: _ClientSocket | None = None
    try:
        async with asyncio.timeout(timeout):
            _, socket = await asyncio.get_running_loop().create_connection(
                lambda: _ClientSocket(ClientProtocol(uri, max_size=max_bytes), headers, owner),
                uri.host,
                uri.port,
                ssl=tls_context() if uri.secure else None,
            )
            await socket.handshake
    except InvalidStatus as refused:
        raise handshake_refused(refused.response.status_code) from None
    except (OSError, TimeoutError, WebSocketException, ssl.SSLError) as error:
        if socket is not None and socket._transport is not None:
            socket._transport.abort()
        raise EngineUnavailable(f"the engine can't be reached: {type(error).__name__}") from None
    return socket


# The server


class _ServerSocket(PortableSocket):
    def __init__(self, upgrade: UpgradeHandler, max_bytes: int) -> None:
        super().__init__(ServerProtocol(max_size=max_bytes))
        self._upgrade = upgrade

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._abort_after(_HANDSHAKE_SECONDS)

    def _on_handshake(self, message: Request | Response) -> None:
        assert isinstance(message, Request) and isinstance(self._protocol, ServerProtocol)
        response = self._protocol.accept(message)
        owner: SocketOwner | int = response.status_code
        if response.status_code == 101:
            owner = self._upgrade(message.path, {name.lower(): value for name, value in message.headers.raw_items()})
            if isinstance(owner, int):
                response = self._protocol.reject(owner, "")
        self._protocol.send_response(response)
        if not isinstance(owner, int):
            self._opened(owner)


def server_protocol(upgrade: UpgradeHandler, *, max_bytes: int) -> asyncio.Protocol:
    """The protocol for one incoming connection that begins with an upgrade request."""
    return _ServerSocket(upgrade, max_bytes)
