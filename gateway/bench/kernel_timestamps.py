"""
A connection that knows when what it reads had arrived at this machine, however late it is read.

The kernel notes that: a load generator that is held up itself does not blame the gateway for it. Linux only.
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


class FrameArrival(NamedTuple):
    """What has come, and when, by `time.monotonic_ns`. No data: the end of the connection."""

    data: bytes
    at_ns: int


class StampedConnection:
    """A TCP connection. `async with StampedConnection.open(host, port) as connection`."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._arrivals: deque[FrameArrival] = deque()
        self._news = asyncio.Event()

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

    async def read(self) -> FrameArrival:
        """Raises OSError."""
        while not self._arrivals:
            self._news.clear()
            await self._news.wait()
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
        self._arrivals.append(FrameArrival(data, time.monotonic_ns() - _rested_ns(notes)))
        self._news.set()


def _rested_ns(notes: list[tuple[int, int, bytes]]) -> int:
    """How long what was read had been there; of several pieces the last. 0 where the kernel does not tell."""
    for _, kind, value in notes:
        if kind == _SO_TIMESTAMPNS and len(value) == _TIMESPEC.size:
            seconds, nanoseconds = map(int, _TIMESPEC.unpack(value))
            return max(time.time_ns() - (seconds * 1_000_000_000 + nanoseconds), 0)
    return 0
