"""WebSockets on picows, which parses frames in C: the default for media and engine connections."""

import asyncio
import functools
import logging
import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    ws_connect,
)
from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]  # left out of its stubs

from gateway.errors import EngineUnavailable, connection_problem
from gateway.logs import BurstLogger
from gateway.websocket.interface import (
    ABNORMAL,
    MAX_FRAGMENTS,
    MAX_OUTGOING_BYTES,
    NO_STATUS,
    NORMAL,
    PING_SECONDS,
    POLICY_VIOLATION,
    STRANGER_BYTES,
    STRANGER_FRAMES,
    TOO_BIG,
    ReadQueue,
    SharedLimits,
    SocketOwner,
    handshake_refused,
    tls_context,
)

_TEXT: Final = WSMsgType.TEXT  # module constants: enum member lookup per frame costs more than the comparison
_BINARY: Final = WSMsgType.BINARY
_READ_BUFFER_BYTES: Final = 2048
"""Of each connection, at first: several frames of audio. picows enlarges it when needed."""
_log = logging.getLogger("picows")


class PicowsSocket(WSListener):
    """One connection."""

    __slots__ = (  # used for each frame
        "_close_code _is_closed _max_bytes _on_binary _on_text _owner _parts _parts_bytes _parts_type _shared "
        "_stranger_bytes _stranger_frames _transport is_trusted send_binary send_text"
    ).split()

    def __init__(self, owner: SocketOwner, max_bytes: int, shared: SharedLimits, *, is_trusted: bool) -> None:
        self._owner = owner
        self._max_bytes = max_bytes
        self._shared = shared
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []
        self._parts_bytes = 0
        self._parts_type = WSMsgType.TEXT
        self._close_code = ABNORMAL
        self._is_closed = False
        self.is_trusted = False
        self._stranger_bytes = self._stranger_frames = 0
        # Attributes, so that the state costs nothing per frame.
        self.send_text: Callable[[bytes], None] = _ignore
        self.send_binary: Callable[[bytes], None] = _ignore
        self._on_text: Callable[[bytes], None] = self._stranger_text
        self._on_binary: Callable[[bytes], None] = self._stranger_binary
        if is_trusted:
            self.trust()

    # Called by the owner

    def close(self, code: int = NORMAL) -> None:
        if self._transport is not None and not self._is_closed:
            self._close_code = code
            if not self._transport.is_close_frame_sent:
                self._transport.send_close(WSCloseCode(code))
            self.stop_receiving()
            if self.is_trusted:
                self._transport.disconnect()

    def trust(self) -> None:
        self.is_trusted = True
        if not self._is_closed:
            self._on_text = self._owner.on_text
            self._on_binary = self._owner.on_binary

    def cancel_handshake(self) -> None:
        """
        Close the connection even if the peer answers the handshake only now.

        picows itself goes on with a cancelled handshake, until its timeout, and would then keep the connection.
        """
        self.close()
        self._is_closed = True

    @property
    def buffered_bytes(self) -> int:
        return self._transport.underlying_transport.get_write_buffer_size() if self._transport is not None else 0

    # Called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        if self._is_closed:  # the handshake was cancelled
            transport.disconnect(graceful=False)
            return
        self._transport = transport
        self.send_text = functools.partial(transport.send, _TEXT)
        self.send_binary = functools.partial(transport.send, _BINARY)
        transport.underlying_transport.set_write_buffer_limits(high=MAX_OUTGOING_BYTES)
        self._owner.on_open(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == _TEXT and frame.fin:
            self._on_text(frame.get_payload_as_bytes())
        elif kind == _BINARY and frame.fin:
            self._on_binary(frame.get_payload_as_bytes())
        elif self._is_closed:
            pass
        elif kind == WSMsgType.CLOSE:
            code: Any = frame.get_close_code()  # a plain number for codes outside picows's enumeration
            self.close()
            self._close_code = int(code) or NO_STATUS
        elif not self.is_trusted:
            self._count_stranger_frame()
            if kind not in (WSMsgType.PING, WSMsgType.PONG):
                self.close(POLICY_VIOLATION)
        elif kind == WSMsgType.PING:
            transport.send_pong(frame.get_payload_as_bytes())
        elif kind != WSMsgType.PONG:
            self._collect(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._transport is None:
            return  # it never opened
        self._transport = None
        # No reference to itself remains: garbage waits until no call is live.
        self.send_text = self.send_binary = self._on_text = self._on_binary = _ignore
        self._owner.on_closed(self._close_code)

    def pause_writing(self) -> None:
        """Audio is never held back: the peer has left too much unread."""
        if self._transport is not None:
            self._transport.disconnect(graceful=False)

    def resume_writing(self) -> None:
        """See pause_writing."""

    def accepts(self, nbytes: int) -> bool:
        """Whether bytes just read may be parsed: not after the close, and a limited number before `trust`."""
        if not self.is_trusted:
            self._stranger_bytes += nbytes
            if self._stranger_bytes > STRANGER_BYTES:
                self.close(POLICY_VIOLATION)
        return not self._is_closed

    def stop_receiving(self) -> None:
        """After the close frame, which picows sends itself for a protocol error, read and deliver nothing more."""
        if self._transport is None or self._is_closed:
            return
        self._is_closed = True
        self._on_text = self._on_binary = _ignore
        underlying = self._transport.underlying_transport
        if not underlying.is_closing():
            underlying.pause_reading()
            if not self.is_trusted:
                self._shared.closing.add(underlying)

    def resume_receiving(self) -> None:
        if self._transport is not None and not self._is_closed:
            self._transport.underlying_transport.resume_reading()

    def _stranger_text(self, data: bytes) -> None:
        self._count_stranger_frame()
        if not self._is_closed:
            self._owner.on_text(data)

    def _stranger_binary(self, data: bytes) -> None:
        self._count_stranger_frame()
        if not self._is_closed:
            self._owner.on_binary(data)

    def _count_stranger_frame(self) -> None:
        self._stranger_frames += 1
        if self._stranger_frames > STRANGER_FRAMES:
            self.close(POLICY_VIOLATION)

    def _collect(self, frame: WSFrame) -> None:
        """Reassemble a fragmented message. Close the connection if it grows beyond the limits."""
        if frame.msg_type != WSMsgType.CONTINUATION:
            self._parts, self._parts_bytes, self._parts_type = [], 0, frame.msg_type
        self._parts.append(data := frame.get_payload_as_bytes())
        self._parts_bytes += len(data)
        if self._parts_bytes > self._max_bytes or len(self._parts) > MAX_FRAGMENTS:
            self._parts = []
            self.close(TOO_BIG)
        elif frame.fin:
            whole, self._parts, self._parts_bytes = b"".join(self._parts), [], 0
            deliver = self._on_text if self._parts_type == WSMsgType.TEXT else self._on_binary
            deliver(whole)


def _ignore(data: bytes) -> None:
    """What comes from or goes to a peer after the close is dropped."""


async def connect(
    url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
) -> PicowsSocket:
    """Open a client socket (a `Connector`)."""
    socket = PicowsSocket(owner, max_bytes, SharedLimits.of_one_connection(), is_trusted=True)
    try:
        async with asyncio.timeout(timeout):
            _, listener = await ws_connect(
                lambda: socket,
                url,
                extra_headers=dict(headers),
                max_frame_size=max_bytes,
                websocket_handshake_timeout=timeout,
                max_redirects=0,
                ssl_context=tls_context() if url.startswith("wss:") else None,
                enable_auto_ping=True,  # detects a dead peer within 8 s
                auto_ping_idle_timeout=PING_SECONDS,
                auto_ping_reply_timeout=PING_SECONDS,
                enable_auto_pong=False,  # the socket answers pings itself
                logger_name=_log,
                read_buffer_init_size=_READ_BUFFER_BYTES,
            )
    except WSHandshakeError as error:
        if error.response is None:
            raise EngineUnavailable("the engine can't be reached: what answers is no WebSocket server") from None
        raise handshake_refused(error.response.status) from None
    except (OSError, TimeoutError, WSError, ssl.SSLError) as error:
        socket.cancel_handshake()
        raise EngineUnavailable(f"the engine can't be reached: {connection_problem(error)}") from None
    except asyncio.CancelledError:
        socket.cancel_handshake()
        raise
    if listener is None:  # the peer hung up before it had answered the handshake
        raise EngineUnavailable("the engine can't be reached: it closed the connection during the handshake")
    return socket


class _ServerProtocol(WSProtocol):  # type: ignore[misc]  # untyped
    """Limits what picows would accept without limit: bytes before `trust`, and data after a protocol error."""

    socket: PicowsSocket
    reads: ReadQueue
    _unread = 0

    def data_received(self, data: bytes) -> None:
        """Feed bytes that were read before this protocol took over."""
        while data and not self.transport.underlying_transport.is_closing():
            room = memoryview(self.get_buffer(-1))
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            data = data[taken:]
            self._receive(taken)

    def buffer_updated(self, nbytes: int) -> None:
        if self.socket.is_trusted:  # for each frame of audio: two comparisons
            _parse(self, nbytes)
            if self.transport.is_close_frame_sent:
                self.socket.stop_receiving()
        else:
            self._unread = nbytes
            self.reads.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.reads.remove(self)
        WSProtocol.connection_lost(self, exc)

    def _receive(self, nbytes: int) -> None:
        socket = self.socket
        if socket.is_trusted or socket.accepts(nbytes):
            _parse(self, nbytes)
            if self.transport.is_close_frame_sent:
                socket.stop_receiving()

    # Called by the queue, before `trust`

    def pause(self) -> None:
        self.transport.underlying_transport.pause_reading()

    def read(self) -> None:
        self._receive(self._unread)
        self.socket.resume_receiving()


_parse: Final = WSProtocol.buffer_updated


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """picows logs an error for each malformed frame. From a stranger that is one line per burst."""

    def error(self, msg: object, *args: object, **fields: object) -> None:
        _burst_log.warning("websocket protocol error", {"problem": str(args[0]) if args else str(msg)})


_burst_log = BurstLogger(_log)


def server_protocol(
    owner: SocketOwner, *, max_bytes: int, shared: SharedLimits | None = None
) -> asyncio.BufferedProtocol:
    """The protocol of one incoming connection, whose `data_received` takes the upgrade request. Not trusted yet."""
    shared = shared or SharedLimits.of_one_connection()
    socket = PicowsSocket(owner, max_bytes, shared, is_trusted=False)
    protocol = _ServerProtocol(
        None,  # host and path: only for clients
        None,
        False,
        lambda request: socket,
        _ServerLog(_log, {}),
        True,  # an exception in a callback ends only this connection
        None,  # the whole request is here already: no time limit
        False,  # no automatic pings: the call has its own watchdog
        20,
        20,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        False,  # no automatic pongs: strangers get none
        max_bytes,
        None,
        _READ_BUFFER_BYTES,
    )
    protocol.socket, protocol.reads = socket, shared.reads
    return protocol
