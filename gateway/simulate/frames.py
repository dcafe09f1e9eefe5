"""Frames between the gateway and a simulated peer, and the sink that keeps those the gateway sends."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from websockets.asyncio.connection import Connection
from websockets.exceptions import ConnectionClosed

PEER_SECONDS: Final = 10.0
"""How long a simulated peer waits for the gateway's next step."""
_PING_AGAIN_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class JsonFrame:
    """A text frame that holds a JSON object."""

    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AudioFrame:
    """Audio: a binary frame, or the payload of a carrier's media message."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class TextFrame:
    """A text frame that is not a JSON object."""

    text: str


Frame = JsonFrame | AudioFrame | TextFrame


@dataclass(frozen=True, slots=True)
class ReceivedFrame:
    """One frame from the gateway. `at` is the event loop's time."""

    at: float
    content: Frame


class FrameSink:
    """Keeps received frames in order and counts them."""

    def __init__(self) -> None:
        self.frames: list[ReceivedFrame] = []
        self.silent_frames = 0
        """Frames of pure silence. The gateway also generates them itself, so they are counted and not kept."""
        self._messages = 0
        self._audio_bytes = 0
        self._changed = asyncio.Event()

    def put(self, content: Frame) -> None:
        self.frames.append(ReceivedFrame(asyncio.get_running_loop().time(), content))
        if isinstance(content, AudioFrame):
            self._audio_bytes += len(content.audio)
        else:
            self._messages += 1
        self._changed.set()

    async def wait_for(self, *, messages: int, audio_bytes: int, timeout: float) -> bool:
        """Wait until this much has arrived in total. Returns False after `timeout`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self._messages < messages or self._audio_bytes < audio_bytes:
                    self._changed.clear()
                    await self._changed.wait()
                return True
        return False


async def send_frame(socket: Connection, frame: Frame) -> None:
    """Send one frame. It is lost when the socket is closed, as with a real peer."""
    match frame:
        case AudioFrame(audio):
            data: str | bytes = audio
        case JsonFrame(fields):
            data = orjson.dumps(fields).decode()
        case TextFrame(text):
            data = text
    with contextlib.suppress(ConnectionClosed):
        await socket.send(data)


def parse_text(text: str | bytes) -> JsonFrame | TextFrame:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        fields = None
    return JsonFrame(fields) if isinstance(fields, dict) else TextFrame(str(text))


async def wait_processed(socket: Connection) -> None:
    """
    Wait until the gateway has read every frame sent so far: a pong follows all frames before its ping.

    The gateway drops pings on a media socket that it has not accepted yet, so they are repeated.
    """
    with contextlib.suppress(ConnectionClosed, TimeoutError):
        async with asyncio.timeout(PEER_SECONDS):
            while True:
                pong = asyncio.ensure_future(await socket.ping())
                await asyncio.wait([pong], timeout=_PING_AGAIN_SECONDS)
                if pong.done():
                    await pong
                    return
