"""WebSockets on picows, which parses frames in C: the default for media and engine connections."""

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final

from picows import (
    WSCloseCode,
    WSError,
    WSFrame,
    WSHandshakeError,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_connect,
)
from picows.picows import WSAutoPingStrategy, WSProtocol  # type: ignore[attr-defined]  # left out of its stubs

from gateway.errors import EngineUnavailable
from gateway.websocket.interface import (
    ABNORMAL,
    NO_STATUS,
    NORMAL,
    PING_SECONDS,
    TOO_BIG,
    SocketOwner,
    UpgradeHandler,
    handshake_refused,
    tls_context,
)

_HANDSHAKE_SECONDS: Final = 5.0
_TEXT: Final = WSMsgType.TEXT  # module constants: enum member lookup per frame costs more than the comparison
_BINARY: Final = WSMsgType.BINARY
_log = logging.getLogger("picows")


class PicowsSocket(WSListener):
    """One connection."""

    def __init__(self, owner: SocketOwner, max_bytes: int) -> None:
        self._owner = owner
        self._max_bytes = max_bytes
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []
        self._parts_type = WSMsgType.TEXT
        self._close_code = ABNORMAL

    # Called by the owner

    def send_text(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.send(_TEXT, data)

    def send_binary(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.send(_BINARY, data)

    def close(self, code: int = NORMAL) -> None:
        if self._transport is not None and not self._transport.is_close_frame_sent:
            self._close_code = code
            self._transport.send_close(WSCloseCode(code))
            self._transport.disconnect()

    @property
    def buffered_bytes(self) -> int:
        return self._transport.underlying_transport.get_write_buffer_size() if self._transport is not None else 0

    # Called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._owner.on_open(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == _TEXT and frame.fin:
            self._owner.on_text(frame.get_payload_as_bytes())
        elif kind == _BINARY and frame.fin:
            self._owner.on_binary(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            if not transport.is_close_frame_sent:
                code: Any = frame.get_close_code()  # a plain number for codes outside picows's enumeration
                self._close_code = int(code) or NO_STATUS
                transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif kind in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._collect(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._owner.on_closed(self._close_code)

    def pause_writing(self) -> None:
        """Ignored: audio is never held back. The call checks `buffered_bytes` and drops a slow peer."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def _collect(self, frame: WSFrame) -> None:
        """Reassemble a fragmented message. Close the connection if it grows beyond the limit."""
        if frame.msg_type != WSMsgType.CONTINUATION:
            self._parts, self._parts_type = [], frame.msg_type
        self._parts.append(frame.get_payload_as_bytes())
        if sum(map(len, self._parts)) > self._max_bytes:
            self.close(TOO_BIG)
        elif frame.fin:
            whole, self._parts = b"".join(self._parts), []
            deliver = self._owner.on_text if self._parts_type == WSMsgType.TEXT else self._owner.on_binary
            deliver(whole)


async def connect(
    url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
) -> PicowsSocket:
    """Open a client socket (a `Connector`)."""
    try:
        async with asyncio.timeout(timeout):
            _, listener = await ws_connect(
                lambda: PicowsSocket(owner, max_bytes),
                url,
                extra_headers=dict(headers),
                max_frame_size=max_bytes,
                websocket_handshake_timeout=timeout,
                max_redirects=0,
                ssl_context=tls_context() if url.startswith("wss:") else None,
                enable_auto_ping=True,  # detects a dead peer within 20 s
                auto_ping_idle_timeout=PING_SECONDS,
                auto_ping_reply_timeout=PING_SECONDS,
                logger_name=_log,
            )
    except WSHandshakeError as error:
        raise handshake_refused(error.response.status if error.response is not None else 0) from None
    except (OSError, TimeoutError, WSError, ssl.SSLError) as error:
        raise EngineUnavailable(f"the engine can't be reached: {type(error).__name__}") from None
    assert isinstance(listener, PicowsSocket)
    return listener


def server_protocol(upgrade: UpgradeHandler, *, max_bytes: int) -> asyncio.BufferedProtocol:
    """The protocol for one incoming connection that begins with an upgrade request."""

    def listener(request: WSUpgradeRequest) -> PicowsSocket | WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1")
        answer = upgrade(path, {name.lower(): value for name, value in request.headers.items()})
        if isinstance(answer, int):
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(answer), None)
        return PicowsSocket(answer, max_bytes)

    # By position only. None: host and path, for clients. True: an exception in a callback ends only this connection.
    pings = (False, 20, 20, WSAutoPingStrategy.PING_WHEN_IDLE, True)  # none: the call has its own watchdog
    protocol: asyncio.BufferedProtocol = WSProtocol(
        None, None, False, listener, _log, True, _HANDSHAKE_SECONDS, *pings, max_bytes, None, 2048
    )
    return protocol
