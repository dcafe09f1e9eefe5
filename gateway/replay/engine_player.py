"""The voice engine of a recorded call: a WebSocket server in Deepgram's dialect that says what was recorded."""

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

import orjson
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from gateway.audio import SILENCE_FRAME
from gateway.engines.deepgram_codec import KEEP_ALIVE
from gateway.errors import SettingsError
from gateway.replay.carrier_player import ANSWER_SECONDS
from gateway.replay.recording import Content, RawText, RecordedMessage, RecordedSound
from gateway.replay.sink import Inbox

PATH: Final = "/v1/agent/converse"
_KEEP_ALIVE: Final = KEEP_ALIVE.decode()


class EnginePlayer:
    """One engine for calls one after the other. The gateway's connections to it are taken as they come."""

    def __init__(self, port: int = 0) -> None:
        self.inbox = Inbox()
        self._port = port
        self._server: Server | None = None
        self._socket: ServerConnection | None = None
        self._connected = asyncio.Event()
        self._refusal = 0

    async def __aenter__(self) -> Self:
        try:
            self._server = await serve(
                self._converse,
                "127.0.0.1",
                self._port,
                process_request=self._admit,
                compression=None,
                ping_interval=None,
                close_timeout=1,
                max_size=None,
                max_queue=None,
            )
        except OSError as error:
            raise SettingsError(f"can't be the engine on port {self._port}: {error.strerror}") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    @property
    def url(self) -> str:
        """What the gateway's DEEPGRAM_AGENT_URL is."""
        assert self._server is not None
        return f"ws://127.0.0.1:{next(iter(self._server.sockets)).getsockname()[1]}{PATH}"

    def begin_call(self, *, refusal: int = 0) -> None:
        """Forget the call before. With a refusal, that is how every handshake is answered."""
        self.inbox = Inbox()
        self._refusal = refusal

    async def connected(self, patience: float) -> bool:
        """Until the gateway is connected; False if it does not come in time."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), patience)
        return self._connected.is_set()

    async def send(self, content: Content) -> None:
        """Send a recorded frame; one that finds no connection is lost."""
        if self._socket is None:
            return
        with contextlib.suppress(ConnectionClosed):
            await self._socket.send(_frame(content))

    async def settled(self) -> None:
        """Until the gateway has dealt with all that was sent."""
        if self._socket is not None:
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                await asyncio.wait_for(await self._socket.ping(), ANSWER_SECONDS)

    async def hang_up(self, *, refusal: int = 0) -> None:
        """Drop the connection; with a refusal, that is how every further handshake is answered."""
        self._refusal = refusal
        self._connected.clear()
        if self._socket is not None:
            await self._socket.close(1011)

    # The network

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(self._refusal, "") if self._refusal else None

    async def _converse(self, socket: ServerConnection) -> None:
        self._socket = socket
        self._connected.set()
        with contextlib.suppress(ConnectionClosed):
            async for frame in socket:
                self._receive(frame)
        if self._socket is socket:
            self._socket = None
            self._connected.clear()

    def _receive(self, frame: str | bytes) -> None:
        if frame == SILENCE_FRAME:
            self.inbox.silent_frames += 1
        elif isinstance(frame, bytes):
            self.inbox.put(RecordedSound(frame))
        elif frame != _KEEP_ALIVE:
            self.inbox.put(_received(frame))


def _frame(content: Content) -> str | bytes:
    match content:
        case RecordedSound(audio):
            return audio
        case RecordedMessage(fields):
            return orjson.dumps(fields).decode()
        case RawText(text):
            return text
        case _:
            raise TypeError("an engine's sound is recorded in full")


def _received(frame: str) -> RecordedMessage | RawText:
    try:
        fields = orjson.loads(frame)
    except orjson.JSONDecodeError:
        return RawText(frame)
    return RecordedMessage(fields) if isinstance(fields, dict) else RawText(frame)
