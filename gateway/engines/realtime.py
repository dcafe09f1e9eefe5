"""
OpenAI Realtime, xAI Voice and services with the same protocol as voice engines: one WebSocket per session.

Audio travels as base64 in JSON, in both directions. A service ends each connection after an hour; the session replaces
it before, between two answers, and the call does not notice.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from gateway.agents import Agent
from gateway.audio import BYTES_PER_SECOND
from gateway.engines import interface as engine
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import AgentAudioOutput, AgentSettings, EngineEvent, EngineEvents, LoadSettings
from gateway.engines.realtime_codec import RealtimeCodec, append_audio
from gateway.engines.realtime_dialect import Dialect
from gateway.errors import EngineError, EngineRefused, EngineUnavailable, RemoteProtocolError
from gateway.llm.chat import ModelName
from gateway.settings import Secret
from gateway.text.turn_taking import is_backchannel
from gateway.websocket.interface import NORMAL, Connector, Socket, SocketOwner

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_AZURE_HOSTS: Final = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RealtimeTimeouts:
    """Durations in seconds."""

    connect: float = 5.0
    created: float = 5.0
    """For the first message after the handshake: an account without credit is refused only then."""
    text: float = 10.0
    """For the text of a turn, and for the server's answer to it."""
    retry: float = 1.0
    """Before a failed response is requested again."""
    renew: float = 50 * 60.0
    """Age of a connection that is replaced: services end it after an hour."""
    renew_again: float = 2.0
    """Before another attempt to replace it, where it was in use."""


class RealtimeEngine:
    """A service with OpenAI's Realtime protocol. Stateless."""

    has_llm = True
    is_ready = True

    def __init__(
        self, connect: Connector, url: str, api_key: Secret, dialect: Dialect, timeouts: RealtimeTimeouts
    ) -> None:
        self.name = dialect.name
        self._connect = connect
        self._url = _with_model(url, dialect.model)
        self._is_azure = (urlsplit(self._url).hostname or "").endswith(_AZURE_HOSTS)
        self._api_key = api_key
        self._dialect = dialect
        self._timeouts = timeouts
        self._warned: set[str] = set()

    def own_model(self, agent: Agent) -> ModelName | None:
        """The model in the engine's URL. An agent can't replace it."""
        query = parse_qs(urlsplit(self._url).query)
        provider = "azure" if self._is_azure else self.name
        return ModelName(provider, [*query.get("model", ()), *query.get("deployment", ())][0])

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> engine.EngineSession:
        session = RealtimeSession(self, load_settings, events, self._timeouts)
        try:
            await session.start()
        except BaseException:
            session.close()
            raise
        return session

    def new_link(self, events: "LinkEvents") -> "RealtimeLink":
        return RealtimeLink(events, self._dialect)

    async def open(self, link: "RealtimeLink") -> None:
        """Connect, without settings. Raises EngineUnavailable or EngineRefused."""
        key = self._api_key.reveal()
        headers = {"api-key": key} if self._is_azure else {"Authorization": f"Bearer {key}"}
        timeout = self._timeouts.connect
        await self._connect(self._url, headers, link, max_bytes=MAX_MESSAGE_BYTES, timeout=timeout)

    async def probe(self) -> str:
        host, setting = urlsplit(self._url).netloc, self.name.upper()
        probe = _Probe()
        link = self.new_link(probe)
        try:
            await self.open(link)
            async with asyncio.timeout(self._timeouts.created):
                problem = await probe.answer
            link.close()
        except (EngineUnavailable, TimeoutError) as error:
            problem = str(error) or "no message after the handshake"
            raise EngineUnavailable(f"{host}: {problem}; check the network and {setting}_REALTIME_URL") from None
        except EngineRefused:
            raise EngineRefused(f"{host} rejects the key; correct {setting}_API_KEY") from None
        if problem:
            raise EngineRefused(f"{host} ends the session: {problem}; check the account and {setting}_REALTIME_URL")
        return f"{host} answers and accepts the key"

    def check(self, settings: AgentSettings) -> None:
        """Log once that an agent's own model is not used: the service has one, and takes no other."""
        if settings.llm is not None and settings.agent.name not in self._warned:
            self._warned.add(settings.agent.name)
            _log.warning(
                "engine does not use the agent's brain",
                extra={"engine": self.name, "agent": settings.agent.name, "to_do": "use the engine deepgram or local"},
            )

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None:
        """There is no background work."""


class LinkEvents:
    """Receives what one connection reports. This base ignores everything."""

    def on_link_event(self, link: "RealtimeLink", event: EngineEvent) -> None: ...

    def on_link_audio(self, link: "RealtimeLink", audio: bytes) -> None: ...

    def on_link_closed(self, link: "RealtimeLink", error: EngineError) -> None: ...


class _Probe(LinkEvents):
    """The outcome of a connection that is closed at once: empty, or the problem."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def on_link_event(self, link: "RealtimeLink", event: EngineEvent) -> None:
        if isinstance(event, engine.EngineGreeted | engine.EngineFailed) and not self.answer.done():
            self.answer.set_result("" if isinstance(event, engine.EngineGreeted) else event.code)

    def on_link_closed(self, link: "RealtimeLink", error: EngineError) -> None:
        if not self.answer.done():
            self.answer.set_result(str(error))


class RealtimeLink(SocketOwner):
    """One connection: the socket, and the codec with the state of its conversation."""

    def __init__(self, events: LinkEvents, dialect: Dialect) -> None:
        self.codec = RealtimeCodec(dialect)
        self.socket: Socket | None = None
        self._name = dialect.name
        self._events = events
        self._failure: engine.EngineFailed | None = None
        self._warned = False

    def flush(self) -> None:
        """Send what the codec has collected."""
        frames, self.codec.outgoing = self.codec.outgoing, []
        if self.socket is not None:
            for frame in frames:
                self.socket.send_text(frame)

    def pump(self) -> None:
        self.codec.pump()
        self.flush()

    def close(self) -> None:
        self._events = LinkEvents()
        if self.socket is not None:
            self.socket.close(NORMAL)

    def error(self) -> EngineError:
        if self._failure is None:
            return EngineUnavailable("the engine closed the connection")
        kind = EngineUnavailable if self._failure.retryable else EngineRefused
        return kind(f"the engine gave up: {self._failure.code}")

    # SocketOwner

    def on_open(self, socket: Socket) -> None:
        self.socket = socket

    def on_text(self, data: bytes) -> None:
        try:
            received = self.codec.receive(data)
        except RemoteProtocolError as error:
            if not self._warned:
                self._warned = True
                _log.warning("engine broke its protocol", extra={"engine": error.peer, "problem": error.problem})
            return
        if self.codec.outgoing:
            self.flush()  # the conversation so far, before the audio that SettingsApplied releases
        for event in received:
            if isinstance(event, bytes):
                self._events.on_link_audio(self, event)
                continue
            if isinstance(event, engine.EngineFailed):
                self._failure = self._failure or event
            self._events.on_link_event(self, event)
        if self._failure is not None and self.socket is not None:
            self.socket.close(NORMAL)
        elif received and not isinstance(received[0], bytes):
            self.pump()

    def on_binary(self, data: bytes) -> None:
        """Audio comes in JSON."""

    def on_closed(self, code: int) -> None:
        self.socket = None
        for unknown in sorted(self.codec.unknown_types):
            _log.info("engine sent an unknown type", extra={"engine": self._name, "type": unknown})
        events, self._events = self._events, LinkEvents()
        events.on_link_closed(self, self.error())


class RealtimeSession(LinkEvents):
    """A session of the call: one connection, or a younger one that has replaced it."""

    def __init__(
        self, realtime: RealtimeEngine, load_settings: LoadSettings, events: EngineEvents, timeouts: RealtimeTimeouts
    ) -> None:
        self._engine = realtime
        self._load_settings = load_settings
        self._events: EngineEvents | None = events
        self._timeouts = timeouts
        self._recorder = events.recorder
        self._recording = DeepgramCodec()
        """Recordings hold Deepgram messages, whichever engine took the call."""
        self._output = AgentAudioOutput(events, realtime.name)
        self._loop = asyncio.get_running_loop()
        self._link: RealtimeLink | None = None
        self._next_link: RealtimeLink | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renewed = asyncio.Event()
        self._timers: set[asyncio.TimerHandle] = set()
        self._language = ""
        self._spoken_until = 0.0
        """When the agent's audio has been played, estimated by its length."""

    async def start(self) -> None:
        self._link = self._engine.new_link(self)
        await self._engine.open(self._link)
        settings = await self._load_settings()
        if self._link.socket is None or self._events is None:
            raise self._link.error()
        self._recorder = self._events.recorder
        self._output.bind(self._events)
        self._engine.check(settings)
        self._language = settings.agent.language
        self._recorder.to_engine(self._recording.settings(settings))
        self._link.codec.configure(settings)
        self._link.flush()
        self._later(self._timeouts.renew, self._renew)

    # EngineSession

    @property
    def buffered_bytes(self) -> int:
        socket = self._link.socket if self._link is not None else None
        return socket.buffered_bytes if socket is not None else 0

    def send_audio(self, audio: bytes) -> None:
        if self._link is not None and (socket := self._link.socket) is not None:
            socket.send_text(append_audio(audio))
            self._recorder.audio_to_engine(audio)

    def send_silence(self, audio: bytes) -> None:
        if self._link is not None and (socket := self._link.socket) is not None:
            socket.send_text(append_audio(audio))

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self._recorder.to_engine(self._recording.say(text, interrupt=interrupt))
        if self._link is not None:
            if not self._link.codec.say(text, interrupt=interrupt):
                self._loop.call_soon(self._emit, engine.InjectionRefused())
            self._link.flush()

    def update_instructions(self, text: str) -> None:
        self._recorder.to_engine(self._recording.update_instructions(text))
        if self._link is not None:
            self._link.codec.update_instructions(text)
            self._link.flush()

    def replace_settings(self, settings: AgentSettings) -> None:
        self._recorder.to_engine(self._recording.replace_settings(settings))
        if self._link is not None:
            self._link.codec.replace_settings(settings)
            self._link.flush()

    def truncate(self, unheard_ms: int) -> None:
        self._spoken_until = 0.0
        if self._link is not None:
            self._link.codec.truncate(unheard_ms)
            self._link.flush()

    def end_user_turn(self) -> None:
        self._recorder.to_engine(self._recording.end_user_turn())
        if self._link is not None:
            for event in self._link.codec.end_user_turn():
                self._loop.call_soon(self._emit, event)
            self._link.flush()

    def expect_dictation(self, expected: bool) -> None:
        if (frame := self._recording.expect_dictation(expected)) is not None:
            self._recorder.to_engine(frame)
        if self._link is not None:
            self._link.codec.expect_dictation(expected)
            self._link.flush()

    def answer_tool(self, call_id: str, result: str) -> None:
        if (frame := self._recording.answer_tool(call_id, result)) is not None:
            self._recorder.to_engine(frame)
        if self._link is not None:
            self._link.codec.answer_tool(call_id, result)
            self._link.flush()

    def close(self) -> None:
        self._events = None
        self._output.close()
        for timer in self._timers:
            timer.cancel()
        if self._renewal is not None:
            self._renewal.cancel()
        for link in (self._link, self._next_link):
            if link is not None:
                link.close()

    # LinkEvents

    def on_link_audio(self, link: RealtimeLink, audio: bytes) -> None:
        if link is self._link:
            self._spoken_until = max(self._spoken_until, self._loop.time()) + len(audio) / BYTES_PER_SECOND
            self._output.send(audio)

    def on_link_event(self, link: RealtimeLink, event: EngineEvent) -> None:
        if link is not self._link:
            if isinstance(event, engine.SettingsApplied):
                self._renewed.set()
            return
        self._emit(event)
        if isinstance(event, engine.TurnEnded) and event.turn:
            self._later(self._timeouts.text, self._give_up, link, event.turn)
        elif isinstance(event, engine.UserSaid):
            self._answer_turn(link, event.text)
        elif isinstance(event, engine.EngineWarned) and link.codec.failures == 1:
            self._later(self._timeouts.retry, self._answer_again, link)

    def on_link_closed(self, link: RealtimeLink, error: EngineError) -> None:
        events = self._events
        if link is self._link and events is not None:
            self.close()
            events.on_engine_closed(error)

    def _emit(self, event: EngineEvent) -> None:
        if self._events is not None:
            if self._recorder.wants_frames and not isinstance(event, engine.UsageReported):
                self._recorder.from_engine(self._recording.encode(event))
            self._events.on_engine_event(event)

    # Timers

    def _later(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            self._timers.discard(timer)
            action(*arguments)

        timer = self._loop.call_later(seconds, run)
        self._timers.add(timer)

    def _give_up(self, link: RealtimeLink, turn: str) -> None:
        if link is self._link:
            for event in link.codec.give_up(turn):
                self.on_link_event(link, event)
            link.pump()

    def _answer_again(self, link: RealtimeLink) -> None:
        if link.codec.failures:
            link.codec.answer()
            link.flush()

    def _answer_turn(self, link: RealtimeLink, text: str) -> None:
        """Where the server does not answer by itself: answer words, but no backchannel while the agent speaks."""
        if link.codec.waits_for_text and text:
            is_speaking = self._loop.time() < self._spoken_until
            if not (is_speaking and is_backchannel(text, self._language)):
                link.codec.answer()

    def _renew(self) -> None:
        self._renewal = self._loop.create_task(self._replace_link(), name="engine renewal")

    async def _replace_link(self) -> None:
        """Open a second connection with the conversation so far, and change to it while nothing is said."""
        old, self._renewed = self._link, asyncio.Event()
        try:
            if old is None or not old.codec.is_idle:
                return
            self._next_link = self._engine.new_link(self)
            await self._engine.open(self._next_link)
            self._next_link.codec.configure(await self._load_settings())
            self._next_link.flush()
            async with asyncio.timeout(self._timeouts.connect):
                await self._renewed.wait()
            if old is self._link and old.codec.is_idle:
                self._link, self._next_link = self._next_link, old
                _log.debug("engine connection renewed")
        except (EngineError, TimeoutError):
            _log.warning("engine connection not renewed", extra={"engine": self._engine.name})
        finally:
            if self._next_link is not None:
                self._next_link.close()
            self._next_link = None
            was_renewed = old is not self._link
            self._later(self._timeouts.renew if was_renewed else self._timeouts.renew_again, self._renew)


def _with_model(url: str, model: str) -> str:
    """The address with a model, unless it names one."""
    parts = urlsplit(url)
    if {"model", "deployment"} & parse_qs(parts.query).keys():
        return url
    query = "&".join(filter(None, [parts.query, urlencode({"model": model})]))
    return urlunsplit(parts._replace(query=query))
