"""Sockets on picows, which parses frames in C: the default on both sides of a call."""

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
    Door,
    SocketOwner,
    handshake_refused,
    tls_context,
)

_HANDSHAKE_SECONDS: Final = 5.0
_TEXT: Final = WSMsgType.TEXT  # asked for with every frame: to find one in its class takes longer than to compare it
_BINARY: Final = WSMsgType.BINARY
_log = logging.getLogger("picows")


class PicowsSocket(WSListener):
    """One connection, and picows' listener for it."""

    def __init__(self, owner: SocketOwner, max_bytes: int) -> None:
        self._owner = owner
        self._max_bytes = max_bytes
        self._transport: WSTransport | None = None
        self._parts: list[bytes] = []
        self._parts_type = WSMsgType.TEXT
        self._close_code = ABNORMAL

    # The link's side

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

    # picows' side

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
                self._close_code = _number(frame.get_close_code()) or NO_STATUS
                transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif kind in (WSMsgType.TEXT, WSMsgType.BINARY, WSMsgType.CONTINUATION):
            self._collect(frame)

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        self._transport = None
        self._owner.on_closed(self._close_code)

    def pause_writing(self) -> None:
        """The peer reads slowly. Audio waits for nobody: the call's own watch on `buffered_bytes` decides."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def _collect(self, frame: WSFrame) -> None:
        """Put a fragmented message together; one that grows beyond the limit ends the connection."""
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
                enable_auto_ping=True,  # a peer that vanished without a word is noticed within 20 s
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


def _number(code: Any) -> int:
    """picows gives a plain number for codes outside its enumeration."""
    return int(code)


def server_protocol(door: Door, *, max_bytes: int) -> asyncio.BufferedProtocol:
    """The protocol for one incoming connection whose first bytes ask for an upgrade."""

    def listener(request: WSUpgradeRequest) -> PicowsSocket | WSUpgradeResponseWithListener:
        path = request.path.decode("latin-1")
        answer = door(path, {name.lower(): value for name, value in request.headers.items()})
        if isinstance(answer, int):
            return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(answer), None)
        return PicowsSocket(answer, max_bytes)

    protocol: asyncio.BufferedProtocol = WSProtocol(
        None,  # host and path are a client's
        None,
        False,
        listener,
        _log,
        True,  # an exception in a callback ends this connection, no other
        _HANDSHAKE_SECONDS,
        False,  # no pings of our own: the call watches for silence
        20,
        20,
        WSAutoPingStrategy.PING_WHEN_IDLE,
        True,
        max_bytes,
        None,
        2048,
    )
    return protocol
