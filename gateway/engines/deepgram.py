"""Deepgram Voice Agent as a voice engine: one WebSocket per session."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gateway.agents import Agent
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import (
    AgentAudioOutput,
    AgentSettings,
    EngineEvents,
    EngineFailed,
    EngineGreeted,
    EngineSession,
    LoadSettings,
)
from gateway.errors import EngineError, EngineRefused, EngineUnavailable, RemoteProtocolError
from gateway.llm.chat import ModelName
from gateway.settings import Secret
from gateway.websocket.interface import NORMAL, Connector, IdleOwner, Socket, SocketOwner

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeepgramTimeouts:
    connect: float = 5.0
    welcome: float = 0.08
    """Deepgram asks clients to wait for Welcome before Settings. It comes 10 ms after the handshake; Settings leave
    without it after this long."""


class DeepgramEngine:
    """Deepgram's Voice Agent. Stateless."""

    name = DeepgramCodec.name
    has_llm = True
    is_ready = True

    def __init__(self, connect: Connector, url: str, api_key: Secret, timeouts: DeepgramTimeouts) -> None:
        self._connect = connect
        self._url = url
        self._api_key = api_key
        self._timeouts = timeouts

    def own_model(self, agent: Agent) -> ModelName | None:
        return None if agent.brain else ModelName(agent.think["type"], agent.think["model"])

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        session = DeepgramSession(events)
        try:
            await self._open(session)
            await session.start(load_settings, welcome_seconds=self._timeouts.welcome)
        except BaseException:
            session.close()
            raise
        return session

    async def probe(self) -> str:
        host = urlsplit(self._url).netloc
        try:
            (await self._open(IdleOwner())).close()
        except EngineRefused:
            raise EngineRefused(f"{host} rejects the key; correct DEEPGRAM_API_KEY") from None
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{host}: {error}; check the network and DEEPGRAM_AGENT_URL") from None
        return f"{host} answers and accepts the key"

    async def _open(self, owner: SocketOwner) -> Socket:
        headers = {"Authorization": f"Token {self._api_key.reveal()}"}
        timeout = self._timeouts.connect
        return await self._connect(self._url, headers, owner, max_bytes=MAX_MESSAGE_BYTES, timeout=timeout)

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None:
        """There is no background work."""


class DeepgramSession:
    """One connection to Deepgram."""

    send_audio: Callable[[bytes], None]
    """Bound to the socket, unless it is recorded: no method of the session stands between the call and the socket."""

    def __init__(self, events: EngineEvents) -> None:
        self._events: EngineEvents | None = events
        self._recorder = events.recorder
        self._codec = DeepgramCodec()
        self._socket: Socket | None = None
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with Welcome, or when the connection is gone."""
        self._failure: EngineFailed | None = None
        self._warned = False
        self._output = AgentAudioOutput(events, DeepgramCodec.name)
        # Agent audio: bound directly, without a method of the session between the socket and the call.
        self.on_binary = self._output.send
        self.send_audio = _drop

    async def start(self, load_settings: LoadSettings, *, welcome_seconds: float) -> None:
        """Send the settings. Raises EngineRefused or EngineUnavailable if the connection is lost first."""
        await asyncio.wait({self._welcome}, timeout=welcome_seconds)
        settings = await load_settings() if self._socket is not None else None
        if self._socket is None or self._events is None or settings is None:
            raise self._error()
        self._recorder = self._events.recorder
        self._output.bind(self._events)
        self.send_audio = self._send_recorded_audio if self._recorder.wants_frames else self._socket.send_binary
        self._send(self._codec.settings(settings))

    # EngineSession

    @property
    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes if self._socket is not None else 0

    def _send_recorded_audio(self, audio: bytes) -> None:
        if self._socket is not None:
            self._socket.send_binary(audio)
            self._recorder.audio_to_engine(audio)

    def send_silence(self, audio: bytes) -> None:
        """Also keeps the connection open: Deepgram closes one on which a client sends nothing for 10 s."""
        if self._socket is not None:
            self._socket.send_binary(audio)

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self._send(self._codec.say(text, interrupt=interrupt))

    def update_instructions(self, text: str) -> None:
        self._send(self._codec.update_instructions(text))

    def replace_settings(self, settings: AgentSettings) -> None:
        self._send(self._codec.replace_settings(settings))

    def truncate(self, unheard_ms: int) -> None:
        """Deepgram has no message for this: its history keeps every sentence that it began to send."""

    def end_user_turn(self) -> None:
        self._send(self._codec.end_user_turn())

    def expect_dictation(self, expected: bool) -> None:
        if (frame := self._codec.expect_dictation(expected)) is not None:
            self._send(frame)

    def answer_tool(self, call_id: str, result: str) -> None:
        frame = self._codec.answer_tool(call_id, result)
        if frame is not None:
            self._send(frame)

    def close(self) -> None:
        self._events = None
        self._output.close()
        if self._socket is not None:
            self._socket.close(NORMAL)

    def _send(self, frame: bytes) -> None:
        if self._socket is not None:
            self._socket.send_text(frame)
            self._recorder.to_engine(frame)

    # SocketOwner

    def on_open(self, socket: Socket) -> None:
        self._socket = socket

    def on_text(self, data: bytes) -> None:
        events = self._events
        if events is None:
            return
        self._recorder.from_engine(data)
        try:
            received = self._codec.receive(data)
        except RemoteProtocolError as error:
            if not self._warned:
                self._warned = True
                _log.warning("engine broke its protocol", extra={"engine": error.peer, "problem": error.problem})
            return
        for event in received:
            if isinstance(event, EngineGreeted):
                _log.debug("engine connected", extra={"request_id": event.request_id})
                _set(self._welcome)
            elif isinstance(event, EngineFailed):
                # Deepgram closes the connection soon after every Error; there is no need to wait for it.
                self._failure = self._failure or event
                if self._socket is not None:
                    self._socket.close(NORMAL)
            events.on_engine_event(event)

    def on_closed(self, code: int) -> None:
        """Deepgram's close codes are not documented: the last Error decides whether to connect again."""
        self._socket = None
        self.send_audio = _drop
        _set(self._welcome)
        for unknown in sorted(self._codec.unknown_types):
            _log.info("engine sent an unknown type", extra={"engine": self._codec.name, "type": unknown})
        events, self._events = self._events, None
        if events is not None:
            events.on_engine_closed(self._error())

    def _error(self) -> EngineError:
        if self._failure is None:
            return EngineUnavailable("the engine closed the connection")
        kind = EngineUnavailable if self._failure.retryable else EngineRefused
        return kind(f"the engine gave up: {self._failure.code or 'no reason given'}")


def _drop(audio: bytes) -> None:
    """There is no connection."""


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
