"""
Serves HTTP and media sockets on one port; the request line decides.

Media sockets go to picows, everything else to uvicorn's HTTP protocol. Passed to uvicorn as its `http` class, so that
uvicorn keeps control of listening sockets, signals and lifespan. The application's lifespan state must hold
`media_endpoint` (an UpgradeHandler), `media_prefixes` (see `request_prefixes`) and `close_event_streams`.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, cast

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.websocket import picows, portable

REQUEST_LINE_SECONDS: Final = 10.0
MAX_FRAME_BYTES: Final = 64 * 1024
"""The largest message accepted from a carrier. 20 ms of audio is 300 bytes, and no other message is long."""


def request_prefixes(paths: Iterable[str]) -> tuple[bytes, ...]:
    """The start of every request line that asks for one of these paths."""
    return tuple(f"GET {path}{end}".encode() for path in paths for end in (" ", "?"))


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol. At shutdown it ends event streams, which uvicorn would otherwise wait for."""

    def shutdown(self) -> None:
        self.app_state["close_event_streams"]()
        super().shutdown()


class PortMux(asyncio.Protocol):
    """Reads the start of the request line, then hands the connection over to the right protocol."""

    _make_media: ClassVar[Callable[..., asyncio.Protocol | asyncio.BufferedProtocol]] = staticmethod(
        picows.server_protocol
    )

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
        self._received = b""
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transport does not subclass it
        self._timeout = asyncio.get_running_loop().call_later(REQUEST_LINE_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()

    def data_received(self, data: bytes) -> None:
        self._received += data
        prefixes: tuple[bytes, ...] = self._app_state["media_prefixes"]
        if self._received.startswith(prefixes):
            self._hand_to_media()
        elif len(self._received) >= max(map(len, prefixes)) or b"\r\n" in self._received:
            self._hand_over(protocol := self._make_http())
            protocol.data_received(self._received)

    def _hand_to_media(self) -> None:
        protocol = self._make_media(self._app_state["media_endpoint"], max_bytes=MAX_FRAME_BYTES)
        transport = self._hand_over(protocol)
        if isinstance(protocol, asyncio.Protocol):
            protocol.data_received(self._received)
            return
        # A BufferedProtocol reads into its own buffer, so the bytes received so far are copied there.
        while self._received and not transport.is_closing():
            room = memoryview(protocol.get_buffer(-1))
            taken = min(len(room), len(self._received))
            room[:taken] = self._received[:taken]
            self._received = self._received[taken:]
            protocol.buffer_updated(taken)

    def _hand_over(self, protocol: asyncio.Protocol | asyncio.BufferedProtocol) -> asyncio.Transport:
        self._cancel_timeout()
        assert self._transport is not None
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        return self._transport

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None


class PortablePortMux(PortMux):
    """The same with media sockets in pure Python."""

    _make_media = staticmethod(portable.server_protocol)
