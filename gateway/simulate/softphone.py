"""A softphone: one call to a gateway, with 20 ms of audio out and in fifty times a second."""

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx
import orjson
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.audio import FRAME_BYTES, FRAME_MS, SILENCE_BYTE, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.settings import Secret
from gateway.simulate.carriers import twilio_start
from gateway.simulate.gateway_under_test import GatewayAddress

ANSWER_SECONDS: Final = 10.0
FRAME_SECONDS: Final = FRAME_MS / 1000

Speak = Callable[[], bytes | None]
"""Returns the next 20 ms from the caller; None hangs up."""
Listen = Callable[[bytes], None]
"""Receives every 20 ms that the caller hears."""


class SoftphonePlayout:
    """The phone's play-out queue. `take` is called every 20 ms."""

    def __init__(self) -> None:
        self._queue: deque[bytes | str] = deque()
        self._rest = b""
        self.is_playing = False
        """Whether the frame taken last had audio in it."""

    def add_audio(self, audio: bytes) -> None:
        self._queue.append(audio)

    def add_mark(self, name: str) -> None:
        self._queue.append(name)

    def clear(self) -> list[str]:
        """Drop the queue. Returns its marks: carriers report cleared marks as well."""
        marks = [item for item in self._queue if isinstance(item, str)]
        self._queue.clear()
        self._rest = b""
        return marks

    def take(self) -> tuple[bytes, list[str]]:
        """The next 20 ms, and the marks reached with it."""
        marks: list[str] = []
        while self._queue and (len(self._rest) < FRAME_BYTES or isinstance(self._queue[0], str)):
            item = self._queue.popleft()
            if isinstance(item, bytes):
                self._rest += item
            elif len(self._rest) <= FRAME_BYTES:
                marks.append(item)
            else:
                self._queue.appendleft(item)
                break
        self.is_playing = bool(self._rest)
        if not self._rest:
            return SILENCE_FRAME, marks
        frame, self._rest = self._rest[:FRAME_BYTES], self._rest[FRAME_BYTES:]
        return frame.ljust(FRAME_BYTES, bytes([SILENCE_BYTE])), marks


class Softphone:
    """One call. `arrived_at` and `cleared_at` are the loop times of the last audio and the last clear; 0 for never."""

    def __init__(self, socket: ClientConnection, stream_id: str) -> None:
        self._socket = socket
        self._stream_id = stream_id
        self._clock = asyncio.get_running_loop().time
        self.playout = SoftphonePlayout()
        self.arrived_at = 0.0
        self.cleared_at = 0.0

    async def talk(self, speak: Speak, listen: Listen, *, speed: float = 1.0) -> None:
        """Exchange audio until the caller or the gateway hangs up."""
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read())
            due = self._clock()
            while not reading.done() and (frame := speak()) is not None:
                await self._send("media", {"payload": base64.b64encode(frame).decode()})
                heard, marks = self.playout.take()
                listen(heard)
                for name in marks:
                    await self._send("mark", {"name": name})
                due += FRAME_SECONDS / speed
                await asyncio.sleep(max(0.0, due - self._clock()))
            await self._send("stop", {})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await asyncio.wait({reading})
            reading.cancel()

    async def press(self, digit: str) -> None:
        await self._send("dtmf", {"track": "inbound_track", "digit": digit})

    async def start(self, placed: dict[str, Any]) -> None:
        start = twilio_start(placed["account_id"], placed["call_id"], self._stream_id, placed["token"])
        await self._send("start", start["start"])

    async def _send(self, event: str, content: dict[str, Any]) -> None:
        frame = {"event": event, "streamSid": self._stream_id, event: content}
        with contextlib.suppress(ConnectionClosed):  # `_read` ends too, and the call with it
            await self._socket.send(orjson.dumps(frame).decode())

    async def _read(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in self._socket:
                await self._receive(orjson.loads(text))

    async def _receive(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "media":
                self.arrived_at = self._clock()
                self.playout.add_audio(base64.b64decode(message["media"]["payload"]))
            case "mark":
                self.playout.add_mark(message["mark"]["name"])
            case "clear":
                self.cleared_at = self._clock()
                for name in self.playout.clear():
                    await self._send("mark", {"name": name})


@contextlib.asynccontextmanager
async def phone_line(
    gateway_url: str, admin_token: Secret, *, caller: str = "", called: str = ""
) -> AsyncIterator[Softphone]:
    """Place a call as this caller. SettingsError if the gateway is down or rejects the call."""
    gateway = GatewayAddress(gateway_url)
    with gateway.translated_errors():
        placed = await _place(gateway_url.rstrip("/"), admin_token, {"caller": caller, "called": called})
        socket = await gateway.open_media(placed["media_path"])
    async with socket:
        line = Softphone(socket, f"stream-{placed['call_id']}")
        await line.start(placed)
        yield line


async def _place(origin: str, admin_token: Secret, request: dict[str, str]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {admin_token.reveal()}"}
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS) as http:
        answer = await http.post(f"{origin}/v1/phone", json=request, headers=headers)
    if answer.status_code == 401:
        raise SettingsError(
            f"the gateway at {origin} does not take this admin token; set GATEWAY_ADMIN_TOKEN to its own"
        )
    try:
        placed: dict[str, Any] = dict(answer.json())
    except (ValueError, TypeError):
        placed = {}
    if not answer.is_success:
        problem = placed.get("detail", f"status {answer.status_code}")
        raise SettingsError(f"the gateway at {origin} did not take the call: {problem}")
    if not {"account_id", "call_id", "token", "media_path"} <= placed.keys():
        raise SettingsError(f"what answers at {origin} is no gateway; give its address with --url")
    return placed
