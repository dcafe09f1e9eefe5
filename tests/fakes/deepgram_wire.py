"""The server's side of one WebSocket, with a log of every frame, its direction and time."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from websockets.asyncio.server import ServerConnection


class ConversationOver(Exception):
    """The socket was closed while a test waited for a frame."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One frame. `at` is time.monotonic(); `in` is from the client."""

    at: float
    direction: Literal["in", "out"]
    frame: str | bytes


class Wire:
    """Sends and logs frames, and can fail like a real socket."""

    def __init__(self, socket: ServerConnection) -> None:
        self.log: list[LogEntry] = []
        self.messages: list[dict[str, Any]] = []
        self.frames: list[tuple[float, bytes]] = []
        self.heard = bytearray()
        self.problems: list[str] = []
        self.hung = False
        self.on_begun: Callable[[], None] = lambda: None
        """Called with the client's first message."""
        self._has_begun = False
        self._socket = socket
        self._taken: Counter[str] = Counter()
        self._change = asyncio.Event()
        self._over = asyncio.Event()

    @property
    def closed(self) -> int | None:
        """The close code of a closed socket (1005: none given, 1006: no closing handshake)."""
        return self._socket.close_code

    @property
    def gaps(self) -> list[float]:
        """Seconds between one audio frame and the next."""
        times = [at for at, _ in self.frames]
        return [later - earlier for earlier, later in zip(times, times[1:], strict=False)]

    def sent(self, kind: str) -> list[dict[str, Any]]:
        """Messages of this type sent to the client."""
        texts = [entry.frame for entry in self.log if entry.direction == "out" and isinstance(entry.frame, str)]
        return [message for message in map(_as_message, texts) if message.get("type") == kind]

    def received(self, kind: str) -> list[dict[str, Any]]:
        """Messages of this type received from the client."""
        return [message for message in self.messages if message["type"] == kind]

    # Sending

    async def send(self, message: dict[str, Any]) -> None:
        """Send any message, valid or not."""
        await self.send_text(json.dumps(message, ensure_ascii=False))

    async def send_text(self, text: str) -> None:
        """Send a raw text frame."""
        await self._put(text)

    async def send_audio(self, audio: bytes) -> None:
        """Send a binary frame."""
        await self._put(audio)

    async def _put(self, frame: str | bytes) -> None:
        if not self.hung:
            self._remember("out", frame)
            await self._socket.send(frame)
            self._changed()

    # Waiting

    async def until(self, condition: Callable[[], object], *, timeout: float = 60.0) -> None:
        """Wait until the condition holds, checked after each frame. Raises ConversationOver at the end."""
        async with asyncio.timeout(timeout):
            while not condition():
                if self._over.is_set():
                    raise ConversationOver(f"closed with {self.closed}; problems: {self.problems}")
                await self._change.wait()

    async def message(self, kind: str, *, timeout: float = 60.0) -> dict[str, Any]:
        """Wait for the next message of this type from the client."""
        await self.until(lambda: len(self.received(kind)) > self._taken[kind], timeout=timeout)
        self._taken[kind] += 1
        return self.received(kind)[self._taken[kind] - 1]

    async def hears(self, audio_bytes: int, *, timeout: float = 60.0) -> bytes:
        """Wait until this much audio has arrived. Returns all audio."""
        await self.until(lambda: len(self.heard) >= audio_bytes, timeout=timeout)
        return bytes(self.heard)

    async def wait_closed(self, *, timeout: float = 60.0) -> int:
        """Wait for the end of the connection. Returns the close code."""
        async with asyncio.timeout(timeout):
            await self._over.wait()
        assert self.closed is not None
        return self.closed

    # Closing

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close without an Error."""
        await self._socket.close(code, reason)

    def abort(self) -> None:
        """Drop the TCP connection."""
        self._socket.transport.abort()

    def hang(self, *, half_open: bool = False) -> None:
        """Stop sending but keep the socket open. Half open: stop reading too, so that pings stay unanswered."""
        self.hung = True
        if half_open:
            self._socket.transport.pause_reading()

    def _remember(self, direction: Literal["in", "out"], frame: str | bytes) -> None:
        if direction == "in" and not self._has_begun:
            self._has_begun = True
            self.on_begun()
        self.log.append(LogEntry(time.monotonic(), direction, frame))

    def _changed(self) -> None:
        """Wake the waiters to check their conditions."""
        self._change.set()
        self._change = asyncio.Event()


def _as_message(text: str) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
