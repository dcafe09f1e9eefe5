"""
Fuzz target: the port that HTTP and media sockets share.

The first bytes of an input choose the cuts, and whether the loop runs between the parts. The rest is what a client
sends: text, and for the bytes above ASCII whole lines or repeated ones.
"""

import logging
import re
import zlib
from typing import Any, Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.logs import BurstLogger
from gateway.websocket.interface import READS_PER_TURN, Socket, UpgradeRequest
from gateway.websocket.port_mux import (
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    ConnectionLimits,
    PortablePortMux,
    PortMux,
)
from tests.fuzz.data import Choices, pieces
from tests.fuzz.transport import FakeTransport, running_loop

KEY: Final = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
LINES: Final = (
    *(b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\n", b"GET /media?a=b HTTP/1.1\r\n", b"HEAD / HTTP/1.0\r\n", b"\r\n"),
    *(
        b"CONNECT x:1 HTTP/1.1\r\n",
        b"GET /refuse HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\n",
    ),
    *(b"Host: x\r\n", b"Connection: Upgrade\r\n", b"Connection: keep-alive, Upgrade\r\n", b"Connection: close\r\n"),
    *(
        b"Upgrade: websocket\r\n",
        b"Upgrade: h2c\r\n",
        KEY,
        b"Sec-WebSocket-Key: A\r\n",
        b"Sec-WebSocket-Version: 13\r\n",
    ),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"0\r\nTrailer: x\r\n\r\n",
        b"hello",
        b"Expect: 100-continue\r\n",
        b"X-Forwarded-For: 1.2.3.4\r\n",
    ),
    *(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"),
    b"GET /media HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    + KEY
    + b"\r\n",
    *(b"\x81\x85\0\0\0\0hello", b"\x88\x80\0\0\0\0", b" folded: x\r\n", b"\0", b"\xff", b"x" * 1000, b"a: b\r\n"),
)
HIGHEST_TEXT: Final = 0x80
STATUS: Final = re.compile(rb"HTTP/1\.1 (\d{3}) ")
STATUSES: Final = {b"100", b"101", b"200", b"400", b"413", b"431", b"503"}
"""503 is that of a refused upgrade."""
MAX_BYTES: Final = 4000
FLOOD_BYTES: Final = 200_000
FLOOD_EVERY: Final = 200


QUIET: Final = BurstLogger(logging.Logger("quiet", logging.CRITICAL))
"""Otherwise a line for each refused request, since the limits of each input are new."""


class Owner:
    """Of a media socket."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def on_open(self, socket: Socket) -> None:
        self.events.append(("open", None))

    def on_text(self, data: bytes) -> None:
        self.events.append(("text", data))

    def on_binary(self, data: bytes) -> None:
        self.events.append(("binary", data))

    def on_closed(self, code: int) -> None:
        self.events.append(("closed", code))


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and answers with its length."""
    assert scope["type"] == "http"
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        if not message["more_body"]:
            break
    body = f"{scope['method']} {size};".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


CONFIG: Final = Config(application, log_config=None, ws="none", access_log=False, proxy_headers=False)
CONFIG.load()


def fuzz_port_mux(data: bytes) -> None:
    choices = Choices(data)
    kind = choices.one_of((PortMux, PortablePortMux))
    cuts = [choices.byte(), choices.byte() * 7, choices.byte() * 97]
    is_flood = zlib.crc32(data) % FLOOD_EVERY == 0  # rare, because it takes long
    wire = _wire(choices, is_flood=is_flood)
    whole = _serve(kind, [wire])
    split = _serve(kind, pieces(wire, cuts), others=READS_PER_TURN if is_flood else 0)
    # A request that was sent ahead is read when the one before it is answered.
    if wire.count(b"HTTP/") <= 1 and len(wire) < MAX_HEAD_BYTES:
        assert split == whole, "the cuts change the result"
    _serve(kind, pieces(wire, cuts), with_turns=True)


def _wire(choices: Choices, *, is_flood: bool) -> bytes:
    parts, size, max_bytes = [], 0, FLOOD_BYTES if is_flood else MAX_BYTES
    while choices and size < max_bytes:
        byte = choices.byte()
        if byte < HIGHEST_TEXT:
            part = bytes([byte])
        else:
            part = LINES[(byte - HIGHEST_TEXT) % len(LINES)]
            if byte - HIGHEST_TEXT >= 2 * len(LINES):
                part *= choices.byte() * 4 if is_flood else choices.byte() % 8
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:max_bytes]


def _serve(kind: type[PortMux], parts: list[bytes], *, others: int = 0, with_turns: bool = False) -> Any:
    """
    Answers, requests for an upgrade, and what the media socket received.

    `others` have sent a byte each before; if they are many, the connection has to wait for its turn.
    """
    limits, owner, transport, upgrades = ConnectionLimits(total=0, per_peer=0), Owner(), FakeTransport(), []
    limits.log = QUIET

    def upgrade(request: UpgradeRequest) -> Owner | int:
        upgrades.append(request)
        return 503 if "refuse" in request.target else owner

    with running_loop() as loop:
        state = {"connection_limits": limits, "media_endpoint": upgrade, "close_event_streams": lambda: None}
        connections = [FakeTransport() for _ in range(others)]
        for other in connections:
            other.attach(kind(CONFIG, ServerState(), state, loop))
            other.feed(b"G", loop)
        mux = kind(CONFIG, ServerState(), state, loop)
        transport.attach(mux)
        for part in parts:
            transport.feed(part, loop)
            if transport.get_protocol() is mux:
                headers = mux.headers or []
                assert len(headers) <= MAX_HEADERS + 1
                assert sum(len(name) + len(value) for name, value in headers) <= 2 * MAX_HEAD_BYTES
                assert len(mux.pipeline) <= MAX_PIPELINED
            if with_turns:
                loop.run_until(loop.time())
        loop.run_until(40)
        for connection in (transport, *connections):
            connection.abort()
        loop.run_until(80)
    statuses = set(STATUS.findall(transport.written))
    assert statuses <= STATUSES, f"answered {statuses}"
    assert not limits._peers
    assert not limits._unfinished_bytes
    # A media socket may name another reason for its end, if more was read at once.
    return transport.written.partition(b" 101 ")[0], upgrades, owner.events
