"""A softphone: one call to a gateway, with 20 ms of audio out and in fifty times a second."""

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import httpx
import orjson
from starlette.routing import Route
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.audio import FRAME_BYTES, FRAME_MS, SILENCE_BYTE, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.settings import Secret
from gateway.simulate.carriers import CarrierCall, SimulatedCarrier, twilio_start
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
    """One call. `arrived_at` is the loop time of the last audio; 0 for never."""

    def __init__(self, socket: ClientConnection, placed: dict[str, Any]) -> None:
        self._socket = socket
        self._stream_id = f"stream-{placed['call_id']}"
        self.agent: str = placed["agent"]
        self.session_id: str = placed["session"]
        self._clock = asyncio.get_running_loop().time
        self.playout = SoftphonePlayout()
        self.arrived_at = 0.0

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
                for name in self.playout.clear():
                    await self._send("mark", {"name": name})


class SimulatedSoftphone(SimulatedCarrier):
    """The softphone as a carrier. It has no REST API: the end of its stream is the end of the call."""

    def __init__(self, http: httpx.AsyncClient, admin_token: Secret) -> None:
        super().__init__(http)
        self._admin_token = admin_token
        self._placed: dict[str, Any] = {}

    def settings(self, api_url: str) -> dict[str, Any]:
        return {}

    def routes(self) -> list[Route]:
        return []

    async def _announce(self, caller: str, called: str, gateway: GatewayAddress) -> tuple[str, str]:
        self._placed = await _place(gateway.local(""), self._admin_token, {"caller": caller, "called": called})
        return self._placed["call_id"], self._placed["media_path"]

    async def _resume(self, call: CarrierCall, gateway: GatewayAddress) -> str:
        raise SettingsError("a softphone does not resume a call")

    def _stream_opening(self, call: CarrierCall, stream_id: str) -> list[dict[str, Any]]:
        return [twilio_start(self._placed["account_id"], call.id, stream_id, self._placed["token"])]

    async def _report_hangup(self, call: CarrierCall, gateway: GatewayAddress) -> None:
        """Nothing to report: the call has ended with its stream."""


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
        line = Softphone(socket, placed)
        await line.start(placed)
        yield line


async def _place(origin: str, admin_token: Secret, request: dict[str, str]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {admin_token.reveal()}"}
    async with httpx.AsyncClient(trust_env=False, timeout=ANSWER_SECONDS) as http:
        answer = await http.post(f"{origin}/v1/phone", json=request, headers=headers)
    if answer.status_code == 401:
        raise SettingsError(f"{origin} rejected the admin token; set GATEWAY_ADMIN_TOKEN to the token it uses")
    try:
        placed: dict[str, Any] = dict(answer.json())
    except (ValueError, TypeError):
        placed = {}
    is_another = answer.is_redirect or (not placed and (answer.status_code < 500 or answer.status_code == 501))
    if not answer.is_success and not is_another:
        problem = placed.get("detail", f"status {answer.status_code}")
        raise SettingsError(f"the gateway at {origin} did not accept the call: {problem}")
    if is_another or not {"account_id", "call_id", "token", "media_path", "agent", "session"} <= placed.keys():
        raise SettingsError(f"what answers at {origin} is not a gateway; give the gateway's address with --url")
    return placed
