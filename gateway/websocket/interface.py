"""
The WebSocket interface of media streams and engine connections, independent of the library behind it.

Callbacks instead of coroutines: a frame goes from one socket to the other inside one callback, without a queue or task
switch. `send` never blocks; `buffered_bytes` is the amount that the peer has not read yet.
"""

import asyncio
import functools
import math
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from gateway.errors import EngineRefused, EngineUnavailable

NORMAL: Final = 1000
POLICY_VIOLATION: Final = 1008
TOO_BIG: Final = 1009
NO_STATUS: Final = 1005
"""Never on the wire: the peer closed without a code."""
PING_SECONDS: Final = 4.0
"""A client socket sends a ping after this much silence and waits as long for the pong."""
ABNORMAL: Final = 1006
"""Never on the wire: `on_closed` reports it when the connection broke without a close frame."""

MAX_FRAGMENTS: Final = 1000
"""Fragments of one message."""
MAX_OUTGOING_BYTES: Final = 8 * 1024 * 1024
"""A peer that leaves this much unread is disconnected. Calls give up a slow peer long before that."""
STRANGER_BYTES: Final = 256 * 1024
"""What a server socket accepts before `trust`: ten seconds of audio, which a carrier may send during admission."""
STRANGER_FRAMES: Final = 600
"""The same in frames of any kind."""
ABORT_SECONDS: Final = 0.05
"""How long an untrusted peer has to read the close frame. Nothing more is read from it, and it can't delay the end."""
READS_PER_TURN: Final = 16
"""Untrusted connections whose data is handled in one turn of the event loop. Each may begin a request or admission."""
READ_SECONDS: Final = 0.005
"""After this time, the next turn goes on. What one connection sent at once takes up to 6 ms."""
MAX_CLOSING: Final = 16
"""Untrusted peers that have that time. Each socket may hold 128 KB."""


def handshake_refused(status: int) -> EngineRefused | EngineUnavailable:
    """The error for a handshake answered with this status: permanent or temporary."""
    kind = EngineRefused if status in (401, 402, 403) else EngineUnavailable
    return kind(f"the engine answered the handshake with status {status}")


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Shared by all client sockets: loading the system's certificates takes longer than a frame of audio."""
    return ssl.create_default_context()


class Reader(Protocol):
    """A connection that has received data."""

    def read(self) -> None:
        """Handle the data, and receive again."""

    def pause(self) -> None:
        """Receive nothing until `read`."""


class ReadQueue:
    """Spreads the work of a burst over several turns of the event loop, in the order in which data came."""

    def __init__(
        self,
        *,
        per_turn: float = READS_PER_TURN,
        seconds: float = READ_SECONDS,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._per_turn = per_turn
        self._seconds = seconds
        self._now = now
        self._began = 0.0
        self._reads = 0
        self._waiting: dict[Reader, None] = {}

    def __len__(self) -> int:
        """The connections that wait."""
        return len(self._waiting)

    def add(self, reader: Reader) -> None:
        """Have the data handled: now, or after others'."""
        if not self._reads:
            self._begin_turn()
        if self._has_room():
            self._reads += 1
            reader.read()
        else:
            self._waiting[reader] = None
            reader.pause()

    def remove(self, reader: Reader) -> None:
        self._waiting.pop(reader, None)

    def _begin_turn(self) -> None:
        self._began = self._now()
        asyncio.get_running_loop().call_soon(self._end_turn)

    def _has_room(self) -> bool:
        is_in_time = self._now() - self._began < self._seconds
        return not self._reads or (is_in_time and self._reads < self._per_turn)

    def _end_turn(self) -> None:
        self._reads = 0
        if self._waiting:
            self._begin_turn()
        while self._waiting and self._has_room():
            self._reads += 1
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            reader.read()


class ClosingSockets:
    """Disconnects untrusted peers after their close frame: soon, or at once if there are many of them."""

    def __init__(self) -> None:
        self._timers: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def add(self, transport: asyncio.Transport) -> None:
        self._timers[transport] = asyncio.get_running_loop().call_later(ABORT_SECONDS, self._abort, transport)
        if len(self._timers) > MAX_CLOSING:
            self._abort(next(iter(self._timers)))

    def _abort(self, transport: asyncio.Transport) -> None:
        self._timers.pop(transport).cancel()
        transport.abort()


@dataclass(frozen=True)
class SharedLimits:
    """What the untrusted connections of a server share."""

    reads: ReadQueue = field(default_factory=ReadQueue)
    closing: ClosingSockets = field(default_factory=ClosingSockets)

    @classmethod
    def of_one_connection(cls) -> "SharedLimits":
        """A connection without others, which waits for none."""
        return cls(ReadQueue(per_turn=math.inf, seconds=math.inf))


class Socket(Protocol):
    """An open WebSocket."""

    def send_text(self, data: bytes) -> None: ...
    def send_binary(self, data: bytes) -> None: ...
    def close(self, code: int = NORMAL) -> None:
        """Send a close frame and disconnect. Safe to repeat; nothing is received after it, and `on_closed` once."""

    def trust(self) -> None:
        """
        The peer has proved who it is.

        Before that, a server socket accepts STRANGER_BYTES and no fragments, answers no pings, and does not wait for
        the peer when it closes.
        """

    @property
    def buffered_bytes(self) -> int: ...


class SocketOwner(Protocol):
    """Receives the messages of one socket. Methods are called on the event loop and must return at once."""

    def on_open(self, socket: Socket) -> None: ...
    def on_text(self, data: bytes) -> None: ...
    def on_binary(self, data: bytes) -> None: ...
    def on_closed(self, code: int) -> None:
        """The connection has ended, from either side. Called once, last."""


class IdleOwner:
    """Ignores what arrives, on a socket that is closed at once."""

    def on_open(self, socket: Socket) -> None: ...
    def on_text(self, data: bytes) -> None: ...
    def on_binary(self, data: bytes) -> None: ...
    def on_closed(self, code: int) -> None: ...


@dataclass(frozen=True, slots=True)
class UpgradeRequest:
    """A request for a WebSocket: path and query as sent, headers with names in lower case."""

    target: str
    headers: Mapping[str, str]
    peer: str
    """The network of the client, which may be behind a trusted proxy."""


UpgradeHandler = Callable[[UpgradeRequest], SocketOwner | int]
"""Called for each upgrade. Returns the socket's owner or an HTTP status to refuse."""


class Connector(Protocol):
    """Opens client sockets. Raises EngineRefused on 401, 402, 403; EngineUnavailable on anything else."""

    async def __call__(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket: ...
