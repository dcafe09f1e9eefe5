"""
Engine connections that are opened while the phone rings, so that settings leave with the carrier's `start`.

`VoiceEngine.connect` asks for the settings once it is connected. Here that request waits until the call has media.
"""

import asyncio
from collections.abc import Callable, Sequence

from gateway.engines.failover import EngineChain, GuardedEngine
from gateway.engines.interface import (
    AgentSettings,
    EngineEvent,
    EngineEvents,
    EngineRecorder,
    EngineSession,
    LoadSettings,
)
from gateway.errors import EngineError, EngineUnavailable


class EarlyRecorder:
    """Keeps what an engine sends before the call has a recorder."""

    wants_frames = True

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._recorder: EngineRecorder | None = None

    def attach(self, recorder: EngineRecorder) -> None:
        self._recorder = recorder
        for frame in self._frames:
            recorder.from_engine(frame)

    def from_engine(self, frame: bytes) -> None:
        if self._recorder is None:
            self._frames.append(frame)
        else:
            self._recorder.from_engine(frame)

    # With media only

    def to_engine(self, frame: bytes) -> None:
        if self._recorder is not None:
            self._recorder.to_engine(frame)

    def audio_from_engine(self, audio: bytes) -> None:
        if self._recorder is not None:
            self._recorder.audio_from_engine(audio)

    def audio_to_engine(self, audio: bytes) -> None:
        if self._recorder is not None:
            self._recorder.audio_to_engine(audio)


class EarlyConnection:
    """
    One connection without settings. Takes the place of the call (`EngineEvents`) until `attach`.

    An engine that fails before that is replaced by the next one, as during a call.
    """

    def __init__(
        self, engines: Sequence[GuardedEngine], seconds: float, on_released: "Callable[[EarlyConnection], None]"
    ) -> None:
        self.engine: GuardedEngine | None = None
        """The engine that is connected or connecting; None if there is no connection to attach."""
        self.connecting_since: float | None = None
        """None once it is connected."""
        self.recorder: EngineRecorder = EarlyRecorder()
        self.on_agent_audio: Callable[[bytes], None] = self._pass_on_audio
        self._call: EngineEvents | None = None
        self._received: list[EngineEvent] = []
        self._on_released = on_released
        self._loop = asyncio.get_running_loop()
        self._settings: asyncio.Future[LoadSettings] = self._loop.create_future()
        self._opening = self._loop.create_task(self._open(EngineChain(engines)), name="early engine connection")
        self._opening.add_done_callback(_ignore_failure)
        self._expiry = self._loop.call_later(seconds, self.close)

    async def attach(self, load_settings: LoadSettings, call: EngineEvents) -> EngineSession:
        """The call has media. Raises EngineError."""
        self._release()
        self._call, self.on_agent_audio = call, call.on_agent_audio
        if isinstance(self.recorder, EarlyRecorder):
            self.recorder.attach(call.recorder)
        self.recorder = call.recorder
        for event in self._received:
            call.on_engine_event(event)
        self._settings.set_result(load_settings)
        return await self._opening

    def close(self) -> None:
        """Disconnect. Does nothing once the call has it."""
        if self._call is None:
            self._release()
            self.engine = None
            self._opening.cancel()

    def _release(self) -> None:
        self._expiry.cancel()
        self._on_released(self)

    async def _open(self, chain: EngineChain) -> EngineSession:
        while True:
            self.engine, self.connecting_since = chain.next(self._loop.time()), self._loop.time()
            try:
                return await self.engine.engine.connect(self._load_settings, self)
            except EngineError as error:
                if self._settings.done():
                    raise  # from here on, the call chooses the next engine
                chain.failed(error, self._loop.time())
                if chain.all_refused:
                    raise  # the call gets it, instead of asking again
                if chain.is_exhausted:
                    self.engine = None
                    raise

    async def _load_settings(self) -> AgentSettings:
        self.connecting_since = None
        load_settings = await self._settings
        return await load_settings()

    # EngineEvents

    def _pass_on_audio(self, audio: bytes) -> None:
        if self._call is not None:
            self._call.on_agent_audio(audio)

    def on_engine_event(self, event: EngineEvent) -> None:
        if self._call is not None:
            self._call.on_engine_event(event)
        else:
            self._received.append(event)

    def on_engine_closed(self, error: EngineError) -> None:
        if self._call is not None:
            self._call.on_engine_closed(error)
        else:
            self.close()


class NoEarlyConnection:
    """For a call that connects when its media comes."""

    engine = None
    connecting_since = None

    async def attach(self, load_settings: LoadSettings, call: EngineEvents) -> EngineSession:
        raise EngineUnavailable("there is no early connection")

    def close(self) -> None: ...


def _ignore_failure(opening: "asyncio.Task[EngineSession]") -> None:
    """The call connects by itself then; the engine's circuit breaker has noted it."""
    if not opening.cancelled():
        opening.exception()
