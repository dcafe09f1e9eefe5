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

from gateway.errors import EngineUnavailable, connection_problem
from gateway.websocket.interface import (
    ABNORMAL,
    MAX_FRAGMENTS,
    MAX_OUTGOING_BYTES,
    NORMAL,
    PING_SECONDS,
    POLICY_VIOLATION,
    STRANGER_BYTES,
    STRANGER_FRAMES,
    TOO_BIG,
    SharedLimits,
    SocketOwner,
    handshake_refused,
    tls_context,
)

_STRANGER_READ: Final = 4096
"""What is parsed at once before `trust`: parsing takes some 10 µs per frame, and a frame may have 6 bytes."""
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
        if self._owner is None or self._close_code is not None:
            return
        self._close_code = code
        if self._protocol.state is OPEN:  # else the peer's close frame, or an error, follows in what was just read
            self._protocol.send_close(code)
            self._flush()
        self._abort_after(_CLOSE_SECONDS)

    def trust(self) -> None:
        """A client socket trusts its peer from the start."""

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not subclass it
        self._transport.set_write_buffer_limits(high=MAX_OUTGOING_BYTES)

    def pause_writing(self) -> None:
        """Audio is never held back: the peer has left too much unread."""
        if self._transport is not None:
            self._transport.abort()

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
        # Both refer to the protocol: garbage waits until no call is live.
        self._protocol.parser.close()
        self._protocol.parser_exc = None
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
        if len(self._parts) > MAX_FRAGMENTS:
            self._parts = []
            self.close(TOO_BIG)
        elif frame.fin and self._owner is not None:
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

    def abandon(self) -> None:
        """Close the connection, even if the handshake was completed a moment ago."""
        if self._owner is not None:
            self.close()
        elif self._transport is not None:
            self._transport.abort()

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
        """Ping a silent peer; disconnect if the ping stays unanswered. Detects a dead peer within 8 s."""
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
    try:
        async with asyncio.timeout(timeout):
            _, socket = await asyncio.get_running_loop().create_connection(
                lambda: _ClientSocket(ClientProtocol(uri, max_size=max_bytes), headers, owner),
                uri.host,
                uri.port,
                ssl=tls_context() if uri.secure else None,
            )
            try:
                await socket.handshake
            except BaseException:
                socket.abandon()
                raise
    except InvalidStatus as refused:
        raise handshake_refused(refused.response.status_code) from None
    except (OSError, TimeoutError, WebSocketException, ssl.SSLError) as error:
        raise EngineUnavailable(f"the engine can't be reached: {connection_problem(error)}") from None
    return socket


# The server


class _ServerProtocol(ServerProtocol):
    """Answers no pings before `answers_pings` is set, nor after a close frame."""

    answers_pings = False

    def send_frame(self, frame: Frame) -> None:
        if frame.opcode is not Opcode.PONG or (self.answers_pings and self.state is OPEN):
            super().send_frame(frame)


class _ServerSocket(PortableSocket):
    """Not trusted yet: see `Socket.trust`."""

    def __init__(self, owner: SocketOwner, max_bytes: int, shared: SharedLimits) -> None:
        self._server = _ServerProtocol(max_size=max_bytes)
        super().__init__(self._server)
        self._future_owner = owner
        self._shared = shared
        self._unread = b""
        self._is_dropped = False
        self._stranger_bytes = self._stranger_frames = 0

    def trust(self) -> None:
        self._server.answers_pings = True

    def close(self, code: int = NORMAL) -> None:
        super().close(code)
        self._drop_stranger()

    def data_received(self, data: bytes) -> None:
        if self._server.answers_pings:
            super().data_received(data)
            return
        self._unread = data
        if self._owner is None:  # the handshake, and what came with it
            self.read()
        else:
            self._shared.reads.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.reads.remove(self)
        super().connection_lost(exc)

    # Called by the queue, before `trust`

    def pause(self) -> None:
        if self._transport is not None:
            self._transport.pause_reading()

    def read(self) -> None:
        data, self._unread = self._unread, b""
        self._stranger_bytes += len(data)
        while data and not self._server.answers_pings and self._close_code is None:
            if self._stranger_bytes > STRANGER_BYTES:
                self.close(POLICY_VIOLATION)
            super().data_received(data[:_STRANGER_READ])
            data = data[_STRANGER_READ:]
        if data and self._close_code is None:
            super().data_received(data)
        if self._server.close_sent is not None:
            self._drop_stranger()
        elif self._transport is not None:
            self._transport.resume_reading()

    def _receive(self, frame: Frame) -> None:
        self._stranger_frames += 1
        if not self._server.answers_pings:
            is_fragment = frame.opcode is Opcode.CONT or not frame.fin
            if is_fragment or self._stranger_frames > STRANGER_FRAMES:
                self.close(POLICY_VIOLATION)
        super()._receive(frame)

    def _drop_stranger(self) -> None:
        """Read nothing more after a close frame. It goes out at the end of this turn of the loop."""
        transport = self._transport
        if not self._server.answers_pings and transport is not None and not self._is_dropped:
            self._is_dropped = True
            transport.pause_reading()
            self._shared.closing.add(transport)

    def _on_handshake(self, message: Request | Response) -> None:
        assert isinstance(message, Request)
        response = self._server.accept(message)
        self._server.send_response(response)
        if response.status_code == 101:
            self._opened(self._future_owner)


def server_protocol(owner: SocketOwner, *, max_bytes: int, shared: SharedLimits | None = None) -> asyncio.Protocol:
    """The protocol of one incoming connection, whose `data_received` takes the upgrade request. Not trusted yet."""
    return _ServerSocket(owner, max_bytes, shared or SharedLimits.of_one_connection())
