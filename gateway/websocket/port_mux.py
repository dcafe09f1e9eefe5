"""
One port for everything: the first line of a connection decides who speaks on it.

A media socket goes to the fast WebSocket implementation, everything else to uvicorn's HTTP protocol. Passed to
uvicorn as its `http` class, so that sockets, signals and lifespan stay uvicorn's.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.telephony.media_stream import MAX_FRAME_BYTES
from gateway.web.media import CODECS
from gateway.websocket import picows

_FIRST_LINE_SECONDS: Final = 10.0
_MEDIA: Final = tuple(f"GET {path}{end}".encode() for path in CODECS for end in (" ", "?"))
_LONGEST: Final = max(map(len, _MEDIA))


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, which waits for every response before it stops: those that have no end of their own are ended."""

    def shutdown(self) -> None:
        self.app_state["close_event_streams"]()
        super().shutdown()


class PortMux(asyncio.Protocol):
    """Reads until it knows, then hands the connection over, bytes and all."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._make_http: Callable[[], asyncio.Protocol] = lambda: HttpProtocol(config, server_state, app_state, _loop)
        self._app_state = app_state
        self._transport: asyncio.Transport | None = None
        self._first = b""
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._patience = asyncio.get_running_loop().call_later(_FIRST_LINE_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()

    def data_received(self, data: bytes) -> None:
        self._first += data
        if self._first.startswith(_MEDIA):
            self._hand_to_media()
        elif len(self._first) >= _LONGEST or b"\r\n" in self._first:
            self._hand_to_http()

    def _hand_to_media(self) -> None:
        protocol = picows.server_protocol(self._app_state["media_endpoint"], max_bytes=MAX_FRAME_BYTES)
        transport = self._hand_over(protocol)
        # A buffered protocol takes bytes in its own memory; the first ones are copied there by hand.
        while self._first and not transport.is_closing():
            room = memoryview(protocol.get_buffer(-1))
            taken = min(len(room), len(self._first))
            room[:taken] = self._first[:taken]
            self._first = self._first[taken:]
            protocol.buffer_updated(taken)

    def _hand_to_http(self) -> None:
        protocol = self._make_http()
        self._hand_over(protocol)
        protocol.data_received(self._first)

    def _hand_over(self, protocol: asyncio.Protocol | asyncio.BufferedProtocol) -> asyncio.Transport:
        self._stop_waiting()
        assert self._transport is not None
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return self._transport

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
