"""
Serves HTTP and media sockets on one port, with limits on what peers without a token can cost.

uvicorn's HTTP protocol, which reads every request. An upgrade to a WebSocket, also on a connection that served other
requests before, hands the connection over to a media socket; ASGI never sees it. The application's lifespan state must
hold `media_endpoint` (an UpgradeHandler), `connection_limits` and `close_event_streams`.
"""

import asyncio
import binascii
import errno
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import httptools
from uvicorn.config import Config
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.errors import SettingsError
from gateway.logs import BurstLogger
from gateway.websocket import picows, portable
from gateway.websocket.interface import SharedLimits, UpgradeHandler, UpgradeRequest

MAX_FRAME_BYTES: Final = 64 * 1024
"""The largest message accepted from a carrier. 20 ms of audio is 300 bytes, and no other message is long."""
MAX_HEAD_BYTES: Final = 32 * 1024
MAX_HEADERS: Final = 100
HEAD_SECONDS: Final = 15.0
"""From the first byte of a request, or from the start of the connection, until its headers are complete."""
MAX_BODY_BYTES: Final = 2 * 1024 * 1024
"""Handlers read less: this stops a body that a handler does not read. `BodyLimit` may allow more."""
MAX_BODY_PARTS: Final = 1000
"""Chunks of a chunked body, and one more for each KB. 256 KB of one-byte chunks would hold the loop for 60 ms."""
MAX_UNFINISHED_BYTES: Final = 3 * 1024 * 1024
"""What all unfinished requests together may have sent. Beyond it, the one is closed that sent nothing for longest."""
BODY_SECONDS: Final = 30.0
"""For a body, or for each MAX_BODY_BYTES of one that may be larger."""
LATE_SECONDS: Final = 1.0
"""A timer that fires later than this does not count: the machine was suspended or overloaded, and what the peer has
sent is not read yet. The peer gets this time once more."""
MAX_PIPELINED: Final = 4
"""Requests sent ahead on one connection. 256 KB of them, read at once, would hold the loop for 200 ms."""

_UPGRADE_HEADERS: Final = ("host", "sec-websocket-key", "sec-websocket-version")

_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """The socket that the gateway serves. Raises SettingsError if the address can't be had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]  # create_server adds the address
        problem = f"can't listen on {host}:{port}: {reason}"
        if error.errno == errno.EADDRINUSE:
            problem += ", perhaps by a gateway that runs already"
        raise SettingsError(f"{problem}; set HOST and PORT to a free address") from None


BodyLimit = Callable[[bytes, Sequence[tuple[bytes, bytes]]], int]
"""
How many bytes the body of a request with this path and these headers may have.

Above MAX_BODY_BYTES its handler must read it piece by piece and keep no more than that.
"""


def ordinary_body(path: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    return MAX_BODY_BYTES


class ConnectionLimits:
    """
    The HTTP connections of this process, in all and per network of peers. 0: no limit.

    For one connection too many, the one is closed that has waited longest for a request. Media sockets do not count.
    """

    def __init__(self, *, total: int, per_peer: int, body_limit: BodyLimit = ordinary_body) -> None:
        self.body_limit = body_limit
        self._total = total
        self._per_peer = per_peer
        self._peers: dict[PortMux, str] = {}
        self._counts: Counter[str] = Counter()
        self._waiting: dict[PortMux, None] = {}
        self._unfinished: dict[PortMux, int] = {}
        self._unfinished_bytes = 0
        self.shared = SharedLimits()
        self.log = BurstLogger(_log)

    def add(self, connection: "PortMux", peer: str) -> bool:
        """False if there is no room. An empty `peer` is a proxy, which has no limit of its own."""
        if peer and 0 < self._per_peer <= self._counts[peer] and not self._make_room(peer):
            return False
        if 0 < self._total <= len(self._peers) and not self._make_room(""):
            return False
        self._peers[connection] = peer
        self._counts[peer] += 1
        return True

    def remove(self, connection: "PortMux") -> None:
        self.shared.reads.remove(connection)
        self._waiting.pop(connection, None)
        self.request_finished(connection)
        peer = self._peers.pop(connection, None)
        if peer is not None:
            self._counts[peer] -= 1
            if not self._counts[peer]:
                del self._counts[peer]

    def waits(self, connection: "PortMux") -> None:
        """The connection waits for a request, as after its start and after each response."""
        if connection in self._peers:
            self._waiting[connection] = None

    def works(self, connection: "PortMux") -> None:
        self._waiting.pop(connection, None)

    def request_unfinished(self, connection: "PortMux", count: int) -> None:
        """Count the bytes of a request that has not ended."""
        self._unfinished[connection] = self._unfinished.pop(connection, 0) + count  # the last one, from now on
        self._unfinished_bytes += count
        while self._unfinished_bytes > MAX_UNFINISHED_BYTES:
            stalled = next(iter(self._unfinished))
            self.log.warning("too many unfinished requests", {"peer": self._peers.get(stalled, "")})
            self.remove(stalled)
            stalled.drop()

    def request_finished(self, connection: "PortMux") -> None:
        self._unfinished_bytes -= self._unfinished.pop(connection, 0)

    def _make_room(self, peer: str) -> bool:
        self.log.warning("too many connections", {"peer": peer or "all"})
        oldest = next((one for one in self._waiting if not peer or self._peers[one] == peer), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.drop()
        return True


class PortMux(HttpToolsProtocol):
    """One connection."""

    _make_media: ClassVar[Callable[..., Any]] = staticmethod(picows.server_protocol)

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits: ConnectionLimits = app_state["connection_limits"]
        self._proxies = self.app.trusted_hosts if isinstance(self.app, ProxyHeadersMiddleware) else None
        self._timer: asyncio.TimerHandle | None = None
        """Runs while a request is expected or incomplete."""
        self._times_out_at = 0.0
        self._is_in_head = True
        self._unfinished_bytes = self._head_bytes = self._body_parts = 0
        self._max_body = MAX_BODY_BYTES
        self._unread = b""
        self._waiting_bytes = 0
        self._refusal = 400

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        is_proxy = self._proxies is not None and host in self._proxies
        if not self._limits.add(self, "" if is_proxy else network(host)):
            transport.abort()
            return
        self._limits.waits(self)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        for cycle, _ in self.pipeline:
            cycle.on_response = lambda: None  # no cycle of references, as uvicorn does after a response
        self.pipeline.clear()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Disconnect at once, and free what was received."""
        self.transport.abort()
        self._unread = b""
        if self.cycle is not None:
            self.cycle.body = bytearray()

    def shutdown(self) -> None:
        """uvicorn would wait for event streams, which do not end by themselves."""
        self.app_state["close_event_streams"]()
        super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, also if the peer has not read the last response."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _release(self) -> None:
        self._stop_timer()
        self._limits.remove(self)

    # Requests

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._limits.shared.reads.add(self)

    def pause(self) -> None:
        if not self.transport.is_closing():
            self.transport.pause_reading()
            more = len(self._unread) - self._waiting_bytes
            self._waiting_bytes += more
            self._limits.request_unfinished(self, more)

    def read(self) -> None:
        data, self._unread = self._unread, b""
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            return
        if self._waiting_bytes:
            self._limits.request_unfinished(self, -self._waiting_bytes)
            self._waiting_bytes = 0
        if not self.flow.read_paused:  # by uvicorn, until a handler has read what came before
            self.transport.resume_reading()
        if self._timer is None:
            self._begin_head()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse(self._refusal)
        else:
            before = self._unfinished_bytes
            self._unfinished_bytes += len(data)
            if self._is_in_head and self._unfinished_bytes > MAX_HEAD_BYTES:
                self._refuse(431)
            elif self._timer is not None and self._unfinished_bytes > self._max_body:
                self._refuse(413)
            elif self._timer is not None:
                self._limits.request_unfinished(self, max(min(len(data), MAX_BODY_BYTES - before), 0))
                if before // MAX_BODY_BYTES < self._unfinished_bytes // MAX_BODY_BYTES:
                    self._start_timer(BODY_SECONDS)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many requests at once")
        super().on_message_begin()
        self._head_bytes = 0
        self._begin_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_header(len(name) + len(value) + 4)

    def on_headers_complete(self) -> None:
        self._limits.works(self)
        self._is_in_head = False
        self._unfinished_bytes = self._body_parts = 0
        self._max_body = self._limits.body_limit(self.url.partition(b"?")[0], self.headers)
        self._start_timer(BODY_SECONDS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_parts += 1
        if self._body_parts > MAX_BODY_PARTS + self._unfinished_bytes // 1024:
            self._refusal = 413
            raise ValueError("too many chunks")
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_timer()
        self._limits.request_finished(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limits.waits(self)

    def _count_header(self, size: int) -> None:
        """Headers that are complete. `data_received` counts the bytes of an endless one."""
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refusal = 431
            raise ValueError("too many headers")

    def _begin_head(self) -> None:
        self._is_in_head = True
        if self._timer is None:
            self._unfinished_bytes = 0
            self._start_timer(HEAD_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._times_out_at = self.loop.time() + seconds
        self._timer = self.loop.call_later(seconds, self._time_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _time_out(self) -> None:
        self._timer = None
        if self._is_in_head and self._has_open_response:  # of the request before
            self._start_timer(HEAD_SECONDS)
        elif self.loop.time() - self._times_out_at > LATE_SECONDS:
            self._start_timer(LATE_SECONDS)
        else:
            self.transport.abort()

    @property
    def _has_open_response(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, status: int) -> None:
        self._limits.log.warning("request refused", {"status": status, "peer": self.client[0] if self.client else ""})
        self._stop_timer()
        if self.cycle is not None and self.cycle.response_started and self._has_open_response:
            self.transport.abort()
            return
        self.transport.write(STATUS_LINE[status] + b"connection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()

    # Media sockets

    def _should_upgrade(self) -> bool:
        """The parser has seen `Connection: Upgrade`, alone or in a list."""
        return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in self.headers)

    def handle_websocket_upgrade(self, rest: bytes = b"") -> None:
        """`rest` is what was read after the request: frames of a peer that did not wait for the response."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.headers}
        if self._has_open_response or self.scope["method"] != "GET" or not _is_valid_handshake(headers):
            self._refuse(400)
            return
        target = self.url.decode("latin-1")
        open_media: UpgradeHandler = self.app_state["media_endpoint"]
        answer = open_media(UpgradeRequest(target, headers, self._network_of_client(headers)))
        if isinstance(answer, int):
            self._refuse(answer)
            return
        self.connections.discard(self)
        self._release()
        # No cycle of references: garbage waits until no call is live.
        self.parser = None  # type: ignore[assignment]
        # Only what the handshake needs: the library has limits of its own, and wants `Connection: Upgrade` alone.
        lines = [f"GET {target} HTTP/1.1", "upgrade: websocket", "connection: Upgrade"]
        lines += [f"{name}: {headers.get(name, '')}" for name in _UPGRADE_HEADERS]
        protocol = self._make_media(answer, max_bytes=MAX_FRAME_BYTES, shared=self._limits.shared)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        protocol.data_received("\r\n".join([*lines, "", ""]).encode("latin-1"))
        if rest:
            protocol.data_received(rest)

    def _network_of_client(self, headers: Mapping[str, str]) -> str:
        """As uvicorn's proxy middleware finds the client, which media sockets do not pass through."""
        host = self.client[0] if self.client else ""
        forwarded = headers.get("x-forwarded-for")
        if forwarded and self._proxies is not None and host in self._proxies:
            host = self._proxies.get_trusted_client_address(forwarded)[0] or host
        return network(host)


class PortablePortMux(PortMux):
    """The same with media sockets in pure Python."""

    _make_media = staticmethod(portable.server_protocol)


def _is_valid_handshake(headers: Mapping[str, str]) -> bool:
    """RFC 6455, section 4.2.1: version 13, and a key of 16 bytes."""
    try:
        key = binascii.a2b_base64(headers.get("sec-websocket-key", ""), strict_mode=True)
    except ValueError:
        return False
    return headers.get("sec-websocket-version") == "13" and len(key) == 16


def network(address: str) -> str:
    """What counts as one peer: one subscriber usually has a whole /64 of IPv6 addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)
