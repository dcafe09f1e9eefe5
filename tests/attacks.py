"""What a stranger can send to a gateway: one round of each attack. For scripts/attack and test_attack."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

UPGRADE: Final = (
    "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
_CONNECTED: Final = b'{"event": "connected"}'
_ERROR: Final = json.dumps({"event": "error", "payload": {"code": "1", "title": "x" * 30_000}}).encode()
_COSTLY: Final = b'{"event": "connected", "x": [' + b"{}," * 21_000 + b"{}]}"
"""As many objects as a message can have."""
_START: Final = json.dumps(
    {
        "event": "start",
        "streamSid": "MZ0",
        "start": {
            "accountSid": "AC0",
            "callSid": "CA0",
            "mediaFormat": {"encoding": "audio/x-mulaw"},
            "customParameters": {"token": "guess"},
        },
    }
).encode()


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A frame of a client. The mask is zero."""
    if len(payload) < 126:
        size = bytes([0x80 | len(payload)])
    elif len(payload) < 65536:
        size = b"\xfe" + len(payload).to_bytes(2, "big")
    else:
        size = b"\xff" + len(payload).to_bytes(8, "big")
    return bytes([0x80 * fin | opcode]) + size + bytes(4) + payload


@dataclass
class Stranger:
    """Opens connections to a gateway, from several loopback addresses in turn, which it does not trust as proxies."""

    url: str
    media_path: str = "/twilio/media"
    addresses: int = 8
    received: bytes = b""
    """What the last connection that was read to its end has answered."""
    _turn: itertools.count = field(default_factory=itertools.count)

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        parts = urlsplit(self.url)
        local = (f"127.0.0.{2 + next(self._turn) % self.addresses}", 0)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, local_addr=local)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def opens_sockets(self, count: int, stack: contextlib.AsyncExitStack) -> None:
        """Open media sockets that send nothing; they stay until `stack` closes them."""
        for _ in range(count):
            reader, writer = await stack.enter_async_context(self.connection())
            writer.write(UPGRADE.format(path=self.media_path, host="x").encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")

    async def sends(self, data: bytes, *, reads: bool = True) -> None:
        """Send, and wait until the gateway has closed the connection."""
        async with self.connection() as (reader, writer):
            await self._until_closed(reader, writer, data, reads=reads)

    async def sends_on_socket(self, data: bytes, *, reads: bool = True) -> None:
        """The same on a media socket."""
        async with self.connection() as (reader, writer):
            writer.write(UPGRADE.format(path=self.media_path, host="x").encode())
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                await self._until_closed(reader, writer, data, reads=reads)

    async def _until_closed(self, reader, writer, data: bytes, *, reads: bool) -> None:
        self.received = b""
        with contextlib.suppress(ConnectionError):
            for at in range(0, len(data), 65536):
                writer.write(data[at : at + 65536])
                await writer.drain()
            if not reads:
                reader._transport.pause_reading()
                await asyncio.sleep(60)
            while more := await reader.read(65536):
                self.received += more


@dataclass(frozen=True)
class Attack:
    name: str
    round: Callable[[Stranger], Awaitable[None]]
    holds: bool = False
    """Keeps its connection until the gateway ends it by time; otherwise the gateway ends it at once."""
    at_once: int = 64
    """Rounds at the same time."""


_POST: Final = b"POST /twilio/incoming HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
_GET: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
_LAST_GET: Final = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
_FORM: Final = _POST + b"X-Twilio-Signature: wrong\r\nConnection: close\r\nContent-Length: 11\r\n\r\nCallSid=CA0"

ATTACKS: Final = (
    Attack(
        "270 kB of fragments", lambda it: it.sends_on_socket(frame(1, b"x", fin=False) + frame(0, fin=False) * 45_000)
    ),
    Attack("pings", lambda it: it.sends_on_socket(frame(9) * 45_000)),
    Attack("small messages", lambda it: it.sends_on_socket(frame(1, _CONNECTED) * 10_000)),
    Attack("malformed frames", lambda it: it.sends_on_socket(b"\x8f\x80" * 100_000)),
    Attack("frame above 64 KiB", lambda it: it.sends_on_socket(frame(1, bytes(65537)) * 4)),
    Attack("wrong tokens", lambda it: it.sends_on_socket(frame(1, _CONNECTED) + frame(1, _START) + frame(9) * 40_000)),
    Attack("costly messages", lambda it: it.sends_on_socket(frame(1, _COSTLY) * 4), at_once=300),
    Attack("carrier errors", lambda it: it.sends_on_socket(frame(1, _ERROR) * 20)),
    Attack("half messages", lambda it: it.sends_on_socket(frame(1, bytes(65535))[:-1]), holds=True, at_once=300),
    Attack("silent sockets", lambda it: it.sends_on_socket(b""), holds=True, at_once=300),
    Attack("silent connections", lambda it: it.sends(b""), holds=True, at_once=700),
    Attack("requests at once", lambda it: it.sends(_LAST_GET), at_once=300),
    Attack("large headers", lambda it: it.sends(_GET[:-2] + b"X: " + b"x" * 200_000)),
    Attack("many headers", lambda it: it.sends(_GET[:-2] + b"a: b\r\n" * 30_000)),
    Attack("half headers", lambda it: it.sends(_GET[:-2] + b"X: " + b"x" * 32_000), holds=True, at_once=700),
    Attack(
        "half bodies",
        lambda it: it.sends(_POST + b"Content-Length: 65000\r\n\r\n" + b"x" * 64_000),
        holds=True,
        at_once=700,
    ),
    Attack("small chunks", lambda it: it.sends(_POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 45_000)),
    Attack("requests ahead", lambda it: it.sends(_GET * 7000)),
    Attack("unread answers", lambda it: it.sends(_GET * 5, reads=False), holds=True, at_once=700),
    Attack("malformed requests", lambda it: it.sends(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")),
    Attack("wrong signatures", lambda it: it.sends(_FORM)),
)
