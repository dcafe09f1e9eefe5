"""
A TCP connection with the kernel's receive timestamps (SO_TIMESTAMPNS): a late reader adds no delay.

Linux only.
"""

import asyncio
import socket
import struct
import time
from collections import deque
from types import TracebackType
from typing import Final, NamedTuple, Self

_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; Python has no name for it
_TIMESPEC: Final = struct.Struct("@qq")
_READ_BYTES: Final = 65536


class Received(NamedTuple):
    """Received data and its `time.monotonic_ns` receive time. Empty data means end of stream."""

    data: bytes
    at_ns: int


class StampedConnection:
    """A TCP connection. `async with StampedConnection.open(host, port) as connection`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._arrivals: deque[Received] = deque()
        self._received = asyncio.Event()

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        """Raises OSError."""
        connected = socket.socket()
        try:
            connected.setblocking(False)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            await asyncio.get_running_loop().sock_connect(connected, (host, port))
        except BaseException:
            connected.close()
            raise
        return cls(connected)

    async def __aenter__(self) -> Self:
        self._loop.add_reader(self._socket, self._read)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.remove_reader(self._socket)
        self._socket.close()

    async def write(self, data: bytes) -> None:
        await self._loop.sock_sendall(self._socket, data)

    async def read(self) -> Received:
        """Raises OSError."""
        while not self._arrivals:
            self._received.clear()
            await self._received.wait()
        return self._arrivals.popleft()

    def _read(self) -> None:
        try:
            data, notes, _, _ = self._socket.recvmsg(_READ_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        if not data:
            self._loop.remove_reader(self._socket)
        self._arrivals.append(Received(data, time.monotonic_ns() - _waited_ns(notes)))
        self._received.set()


def _waited_ns(notes: list[tuple[int, int, bytes]]) -> int:
    """How long the (last) data waited in the socket buffer; 0 without a kernel timestamp."""
    for _, kind, value in notes:
        if kind == _SO_TIMESTAMPNS and len(value) == _TIMESPEC.size:
            seconds, nanoseconds = map(int, _TIMESPEC.unpack(value))
            return max(time.time_ns() - (seconds * 1_000_000_000 + nanoseconds), 0)
    return 0
