"""The voice engine's socket and its codec, as the other end of a call. Decides nothing about the conversation."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final, Protocol

from gateway.calls.recorder import CallRecorder
from gateway.engines.agent_settings import AgentSettings
from gateway.engines.deepgram_codec import KEEP_ALIVE, DeepgramCodec
from gateway.engines.events import EngineEvent, EngineFailed, EngineGreeted, FunctionCall, SettingsApplied
from gateway.errors import EngineRefused, EngineUnavailable, RemoteProtocolError
from gateway.metrics import ADDED_DELAY
from gateway.settings import Secret
from gateway.websocket.interface import NORMAL, Connector, Socket

CONNECT_SECONDS: Final = 5.0
GREETING_SECONDS: Final = 0.08
"""How long we wait for Welcome before Settings go out all the same; it comes 10 ms after the handshake."""
APPLY_SECONDS: Final = 10.0
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
MEASURED_FRAMES: Final = 50
"""Of so many pieces of sound one is timed."""

_log = logging.getLogger(__name__)


class EngineEvents(Protocol):
    """The call, as its engine sees it."""

    recorder: CallRecorder | None

    def on_agent_audio(self, audio: bytes) -> None: ...
    def on_engine_event(self, event: EngineEvent) -> None: ...


class DeepgramSession:
    """One connection to the engine, from handshake to close. Made for one call, used once."""

    def __init__(self, call: EngineEvents, name: str) -> None:
        """`name` is the engine's, for those who count."""
        self._call: EngineEvents | None = call
        self._name = name
        self._codec = DeepgramCodec()
        self._frames = 0
        self._socket: Socket | None = None
        loop = asyncio.get_running_loop()
        self._greeted: asyncio.Future[None] = loop.create_future()
        self._applied: asyncio.Future[None] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._failure: EngineFailed | None = None
        self._complained = False
        self.sent_at = loop.time()
        """When we last sent anything; the engine gives up on a silent client."""
        self.received_at = loop.time()
        """When the engine last said anything."""
        self._clock = loop.time

    # Life, in order

    async def open(self, connect: Connector, url: str, headers: Mapping[str, Secret]) -> None:
        """Connect, and wait a moment for the engine's greeting. EngineRefused or EngineUnavailable if it fails."""
        revealed = {name: value.reveal() for name, value in headers.items()}
        await connect(url, revealed, self, max_bytes=MAX_MESSAGE_BYTES, timeout=CONNECT_SECONDS)
        await asyncio.wait({self._greeted, self._closed}, timeout=GREETING_SECONDS, return_when="FIRST_COMPLETED")
        self._raise_if_closed()

    async def configure(self, agent_settings: AgentSettings) -> None:
        """Send Settings, and wait until the engine takes audio."""
        self._send(self._codec.settings(agent_settings))
        done, _ = await asyncio.wait(
            {self._applied, self._closed}, timeout=APPLY_SECONDS, return_when="FIRST_COMPLETED"
        )
        if self._applied not in done:
            self._raise_if_closed()
            raise EngineUnavailable(f"the engine did not apply its settings within {APPLY_SECONDS:.0f} s")

    async def lost(self) -> None:
        """Wait until the connection is gone, then say why: raises EngineRefused or EngineUnavailable."""
        await asyncio.shield(self._closed)
        self._raise_if_closed()

    def close(self) -> None:
        """End the connection. Nothing it still sends reaches the call."""
        self._call = None
        if self._socket is not None:
            self._socket.close(NORMAL)

    def drop(self) -> None:
        """Give this connection up as lost."""
        if self._socket is not None:
            self._socket.close(NORMAL)

    def _raise_if_closed(self) -> None:
        if not self._closed.done():
            return
        if self._failure is None:
            raise EngineUnavailable("the engine closed the connection")
        kind = EngineUnavailable if self._failure.retryable else EngineRefused
        raise kind(f"the engine gave up: {self._failure.code or 'no reason given'}")

    # The call's side

    @property
    def buffered_bytes(self) -> int:
        return self._socket.buffered_bytes if self._socket is not None else 0

    def send_audio(self, audio: bytes, *, at: float) -> None:
        if self._socket is not None:
            self._socket.send_binary(audio)
            self.sent_at = at
            if self._call is not None and self._call.recorder is not None:
                self._call.recorder.audio_to_engine(audio)

    def send_silence(self, audio: bytes, *, at: float) -> None:
        """Sound that the carrier did not send, so that the engine can hear that nobody speaks. Not recorded."""
        if self._socket is not None:
            self._socket.send_binary(audio)
            self.sent_at = at

    def keep_alive(self, *, at: float) -> None:
        if self._socket is not None:
            self._socket.send_text(KEEP_ALIVE)
            self.sent_at = at

    def update_prompt(self, addition: str) -> None:
        self._send(self._codec.update_prompt(addition))

    def update_think(self, agent_settings: AgentSettings) -> None:
        self._send(self._codec.update_think(agent_settings))

    def say(self, text: str) -> None:
        self._send(self._codec.say(text))

    def say_instead(self, text: str) -> None:
        self._send(self._codec.say_instead(text))

    def force_end_turn(self) -> None:
        self._send(self._codec.force_end_turn())

    def function_result(self, call: FunctionCall, content: str) -> None:
        self._send(self._codec.function_result(call, content))

    def _send(self, frame: bytes) -> None:
        if self._socket is not None:
            self._socket.send_text(frame)
            if self._call is not None and self._call.recorder is not None:
                self._call.recorder.to_engine(frame)

    # The socket's side

    def on_open(self, socket: Socket) -> None:
        self._socket = socket

    def on_binary(self, data: bytes) -> None:
        self._frames += 1
        if self._frames % MEASURED_FRAMES:
            self._take_audio(data)
            return
        began = time.perf_counter()
        self._take_audio(data)
        ADDED_DELAY.observe(time.perf_counter() - began, "to carrier", self._name)

    def _take_audio(self, data: bytes) -> None:
        self.received_at = self._clock()
        if self._call is not None:
            if self._call.recorder is not None:
                self._call.recorder.audio_from_engine(data)
            self._call.on_agent_audio(data)

    def on_text(self, data: bytes) -> None:
        self.received_at = self._clock()
        call = self._call
        if call is None:
            return
        if call.recorder is not None:
            call.recorder.from_engine(data)
        try:
            events = self._codec.receive(data)
        except RemoteProtocolError as error:
            self._complain(error)
            return
        for event in events:
            self._deliver(event, call)

    def on_closed(self, code: int) -> None:
        self._socket = None
        _settle(self._closed)
        for unknown in sorted(self._codec.unknown_types):
            _log.info("engine sent a type we do not know", extra={"engine": self._codec.name, "type": unknown})

    def _deliver(self, event: EngineEvent, call: EngineEvents) -> None:
        match event:
            case EngineGreeted(request_id):
                _log.debug("engine connected", extra={"request_id": request_id})
                _settle(self._greeted)
            case SettingsApplied():
                _settle(self._applied)
            case EngineFailed():
                # Deepgram closes soon after; we do not wait for it.
                self._failure = self._failure or event
                if self._socket is not None:
                    self._socket.close(NORMAL)
            case _:
                pass
        call.on_engine_event(event)

    def _complain(self, error: RemoteProtocolError) -> None:
        if not self._complained:
            self._complained = True
            _log.warning("engine broke its protocol", extra={"engine": error.peer, "problem": error.problem})


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
