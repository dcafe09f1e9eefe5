"""
Fuzz targets: the server's side of both WebSocket libraries.

The first bytes of an input choose when the peer is trusted, the size limit, and where the stream is cut. The rest is
frames, three bytes and a payload each; long payloads and repetitions are short in the input.
"""

import math
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from gateway.websocket import picows, portable
from gateway.websocket.interface import STRANGER_BYTES, STRANGER_FRAMES, ReadQueue, SharedLimits, Socket
from tests.fuzz.data import Choices, pieces
from tests.fuzz.transport import FakeTransport, running_loop

HANDSHAKE: Final = (
    b"GET / HTTP/1.1\r\nupgrade: websocket\r\nconnection: Upgrade\r\nhost: x\r\n"
    b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
)
OPCODES: Final = (1, 1, 2, 0, 0, 8, 9, 10, 1, 2, 1, 0, 8, 9, 3, 11)
REPEATS: Final = (1, 2, 20, 601, 1001)
LIMITS: Final = (125, 1000, 300, 65536)
MAX_FRAMES: Final = 20
MAX_REPEATED_BYTES: Final = 300_000
FLOOD_EVERY: Final = 100
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
INTERNAL_ERROR: Final = 1011


def fuzz_picows(data: bytes) -> None:
    _fuzz(picows.server_protocol, data)


def fuzz_portable(data: bytes) -> None:
    _fuzz(portable.server_protocol, data)


class Owner:
    """Trusts the peer at once, after its first message, or never. Closes at a message that begins with x."""

    def __init__(self, trust: str) -> None:
        self._trust = trust
        self._socket: Socket | None = None
        self.events: list[tuple[str, Any]] = []

    def on_open(self, socket: Socket) -> None:
        self._socket = socket
        self._add("open", None)
        if self._trust == "at once":
            socket.trust()

    def on_text(self, data: bytes) -> None:
        self._add("text", data)
        assert self._socket is not None
        if self._trust == "later":
            self._socket.trust()
        self._socket.send_text(data[:3])
        if data[:1] == b"x":
            self._socket.close(3000 + len(data) % 2)
            self._add("close", None)

    def on_binary(self, data: bytes) -> None:
        self._add("binary", data)

    def on_closed(self, code: int) -> None:
        self._add("closed", code)

    def _add(self, kind: str, value: Any) -> None:
        if self.events:
            assert self.events[-1][0] != "closed", "called after its end"
            assert self.events[-1][0] != "close" or kind == "closed", "a message after the close"
        self.events.append((kind, value))


def _fuzz(make_protocol: Callable[..., Any], data: bytes) -> None:
    choices = Choices(data)
    trust, limit = choices.one_of(("at once", "later", "never")), choices.one_of(LIMITS)
    cuts = [choices.byte() for _ in range(3)]
    is_flood = zlib.crc32(data) % FLOOD_EVERY == 0  # rare, because it takes long
    wire = b"".join(_frames(choices, limit, is_flood=is_flood))
    whole = _receive(make_protocol, trust, limit, [wire])
    split = _receive(make_protocol, trust, limit, pieces(wire, [cuts[0], cuts[1] * 40, cuts[2] * len(wire) // 256]))
    if trust == "at once" or len(wire) < STRANGER_BYTES - len(HANDSHAKE):
        assert split == whole, "the cuts change the result"


def _receive(make_protocol: Callable[..., Any], trust: str, limit: int, parts: list[bytes]) -> Any:
    owner, transport = Owner(trust), FakeTransport()
    with running_loop() as loop:
        one_a_turn = ReadQueue(per_turn=1, seconds=math.inf)
        protocol = make_protocol(owner, max_bytes=limit, shared=SharedLimits(one_a_turn))
        transport.attach(protocol)
        protocol.data_received(HANDSHAKE)
        for part in parts:
            transport.feed(part, loop)
        loop.run_until(5)
        transport.abort()
        loop.run_until(10)
    messages = [data for kind, data in owner.events if kind in ("text", "binary")]
    sent = list(_sent(bytes(transport.written).partition(b"\r\n\r\n")[2]))
    assert owner.events[0][0] == "open"
    assert owner.events[-1][0] == "closed"
    assert all(len(message) <= limit for message in messages), "a message above the limit"
    assert not any(kind == CLOSE for kind, _ in sent[:-1]), "sent more after the close"
    assert not any(kind == CLOSE and payload[:2] == struct.pack("!H", INTERNAL_ERROR) for kind, payload in sent)
    if trust == "never":
        assert len(messages) <= STRANGER_FRAMES
        assert sum(map(len, messages)) <= STRANGER_BYTES
        assert not any(kind == PONG for kind, _ in sent), "a stranger got a pong"
    return owner.events


def _sent(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The frames that the server sent: whole ones, not masked."""
    while data:
        assert data[0] & 0xF0 == 0x80
        assert data[0] & 0x0F in (TEXT, BINARY, CLOSE, PONG)
        assert data[1] < 126, "longer than anything that was to be sent"
        end = 2 + data[1]
        assert len(data) >= end
        yield data[0] & 0x0F, data[2:end]
        data = data[end:]


def _frames(choices: Choices, limit: int, *, is_flood: bool) -> Iterator[bytes]:
    for _ in range(MAX_FRAMES):
        if not choices:
            break
        head, length, form = choices.byte(), choices.byte(), choices.byte()
        sizes = (125, 126, limit, limit + 1, 65535, 65536) if is_flood else (125, 126, min(limit, 1000) + 1)
        payload = choices.take(length % 20) if length < 0xF0 else bytes(sizes[length % len(sizes)])
        first = (head & 0x80 ^ 0x80) | (0x40 if head & 0x70 == 0x70 else 0) | OPCODES[head & 15]
        frame = bytes([first]) + _length(len(payload), form >> 2 & 7) + b"\0\0\0\0" + payload
        if form & 3 == 3:  # not masked
            frame = frame[:1] + bytes([frame[1] & 0x7F]) + frame[2:]
        repeated = REPEATS[form % len(REPEATS)] if is_flood else 1
        yield frame * min(repeated, MAX_REPEATED_BYTES // len(frame))


def _length(size: int, form: int) -> bytes:
    """A frame's length with the mask bit: as short as the RFC wants it, or too long, or wrong."""
    if form == 7:
        return struct.pack("!BH", 0xFE, size & 0xFFFF)
    if form == 6:
        return struct.pack("!BQ", 0xFF, size if size & 1 else 2**63 + size)
    if form == 5:
        size += 7
    if size < 126:
        return bytes([0x80 | size])
    return struct.pack("!BH", 0xFE, size) if size < 65536 else struct.pack("!BQ", 0xFF, size)
