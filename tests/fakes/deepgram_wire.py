"""The server's end of one WebSocket, with a memory: every frame, its direction and its time."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection


class ConversationOver(Exception):
    """The socket closed while a test was waiting for something on it."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One frame. `at` is time.monotonic(); `in` is from the client."""

    at: float
    direction: Literal["in", "out"]
    frame: str | bytes


class Wire:
    """Sends what it is told, remembers what came and went, and can fail in every way a socket can."""

    def __init__(self, socket: ServerConnection) -> None:
        self.log: list[LogEntry] = []
        self.messages: list[dict[str, Any]] = []
        self.frames: list[tuple[float, bytes]] = []
        self.heard = bytearray()
        self.problems: list[str] = []
        self.hung = False
        self._socket = socket
        self._taken: Counter[str] = Counter()
        self._change = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def closed(self) -> int | None:
        """The close code once the socket is closed (1005: none given, 1006: no closing handshake)."""
        return self._socket.close_code

    @property
    def gaps(self) -> list[float]:
        """Seconds between one audio frame and the next."""
        times = [at for at, _ in self.frames]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """The messages of this type that went to the client."""
        texts = [entry.frame for entry in self.log if entry.direction == "out" and isinstance(entry.frame, str)]
        return [message for message in map(_as_message, texts) if message.get("type") == kind]

    def received(self, kind: str) -> list[dict[str, Any]]:
        """The messages of this type that came from the client."""
        return [message for message in self.messages if message["type"] == kind]

    # Said to the client

    async def send(self, message: dict[str, Any]) -> None:
        """Any message, whether or not the protocol knows it."""
        await self.send_text(json.dumps(message, ensure_ascii=False))

    async def send_text(self, text: str) -> None:
        """One text frame as it stands; it need not be JSON."""
        await self._put(text)

    async def send_audio(self, audio: bytes) -> None:
        """One binary frame."""
        await self._put(audio)

    async def _put(self, frame: str | bytes) -> None:
        if not self.hung:
            self._remember("out", frame)
            await self._socket.send(frame)
            self._changed()

    # Waited for

    async def until(self, condition: Callable[[], object], *, timeout: float = 60.0) -> None:
        """Wait until this is so, looking after each frame. ConversationOver when no more will come."""
        async with asyncio.timeout(timeout):
            while not condition():
                if self._over.is_set():
                    raise ConversationOver(f"closed with {self.closed}; problems: {self.problems}")
                await self._change.wait()

    async def message(self, kind: str, *, timeout: float = 60.0) -> dict[str, Any]:
        """The next message of this type from the client that was not yet asked for."""
        await self.until(lambda: len(self.received(kind)) > self._taken[kind], timeout=timeout)
        self._taken[kind] += 1
        return self.received(kind)[self._taken[kind] - 1]

    async def hears(self, audio_bytes: int, *, timeout: float = 60.0) -> bytes:
        """All audio so far, once it is at least this much."""
        await self.until(lambda: len(self.heard) >= audio_bytes, timeout=timeout)
        return bytes(self.heard)

    async def wait_closed(self, *, timeout: float = 60.0) -> int:
        """The close code, once both sides are through."""
        async with asyncio.timeout(timeout):
            await self._over.wait()
        assert self.closed is not None
        return self.closed

    # Ends, good and bad

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """A closing handshake, with no Error before it."""
        await self._socket.close(code, reason)

    def abort(self) -> None:
        """Drop the TCP connection."""
        self._socket.transport.abort()

    def hang(self, *, half_open: bool = False) -> None:
        """Say nothing any more, but keep the socket. Half open: don't read either, so pings stay unanswered."""
        self.hung = True
        if half_open:
            self._socket.transport.pause_reading()

    def _remember(self, direction: Literal["in", "out"], frame: str | bytes) -> None:
        self.log.append(LogEntry(time.monotonic(), direction, frame))

    def _changed(self) -> None:
        """Let those who wait look again."""
        self._change.set()
        self._change = asyncio.Event()


def _as_message(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
