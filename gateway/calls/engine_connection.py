"""
The call's connection to its voice engine, with reconnect and buffering.

Audio that arrives while no session is ready is buffered; pauses of the carrier are filled with silence; a lost session
is replaced by one with the conversation so far and no second greeting, a limited number of times. A call with several
engines goes on with the next one (`engines/failover.py`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from gateway.agents import Agent
from gateway.audio import BYTES_PER_SECOND, FRAME_MS, SILENCE_FRAME
from gateway.calls.agent_context import AgentContext, RecordedMemory
from gateway.calls.caller_audio import IncomingAudio, drop
from gateway.calls.recorder import CallRecorder
from gateway.calls.speech_output import wait_for_event
from gateway.calls.transcript import Transcript
from gateway.engines.early_connection import EarlyConnection, NoEarlyConnection
from gateway.engines.failover import EngineChain, GuardedEngine, TurnAudio
from gateway.engines.interface import (
    AgentSettings,
    EngineEvent,
    EngineSession,
    InjectionRefused,
    LoadSettings,
    NoEngine,
    SettingsApplied,
    VoiceEngine,
)
from gateway.errors import EngineError, EngineRefused, EngineUnavailable
from gateway.history.live_events import CallEvents
from gateway.metrics import ENGINE_FAILOVERS, ENGINE_LOSSES, MEMORY_LOAD, WATCHDOG

MOST_EARLY: Final = 100
"""Connections that were opened while the phone rang, and wait for media."""
STALLED_BYTES: Final = 4 * 1024 * 1024
"""Unsent data at which a peer counts as no longer reading."""


@dataclass(frozen=True)
class EngineTimeouts:
    """Durations in seconds."""

    memory: float = 0.08
    """The longest wait for memory before the settings leave; they have to leave within 150 ms of `start`."""
    settings: float = 10.0
    """For the engine to apply its settings."""
    answer: float = 20.0
    """An engine that reports nothing for this long after the caller's turn no longer answers."""
    failover_connect: float = 3.0
    """For the connection, while another engine could take over."""
    failover_settings: float = 3.0
    """As `settings`, while another engine could take over."""
    failover_answer: float = 8.0
    """As `answer`, while another engine could take over; also from the settings to the greeting, and for `say`."""
    silence_after: float = 0.2
    """A longer pause of the carrier is filled with silence: engines detect the end of a turn from the audio."""
    retry_pauses: tuple[float, ...] = (0.2, 0.5, 1.0, 2.0, 3.0)
    """Between attempts to connect; after the last one the call is given up."""
    retry: float = 12.0
    """No new attempt begins this long after the loss: the caller hears silence."""
    steady: float = 30.0
    """A session that lasted this long resets the retry pauses."""
    early_audio: float = 10.0
    """Audio kept until the first session is ready: the caller's first words."""
    reconnect_audio: float = 1.0
    """Audio kept while a session is replaced; an answer to anything older would come too late."""
    failover_audio: float = 30.0
    """The same for another engine: also what the lost one had received and not turned into text."""
    early: float = 8.0
    """How long a connection that was opened while the phone rang waits for media. Deepgram closes one on which nothing
    was sent for 10 s."""


@dataclass(frozen=True)
class EngineConfig:
    """The voice engines of an agent's calls in order of preference, and how long a call waits for them."""

    engines: Sequence[GuardedEngine]
    timeouts: EngineTimeouts = EngineTimeouts()
    early: EarlyConnection | NoEarlyConnection = NoEarlyConnection()
    """Of one call."""

    @property
    def is_set_up(self) -> bool:
        return not isinstance(self.engines[0].engine, NoEngine)


class CallEngines:
    """The engines of each agent's calls, and the connections that wait for the media of a call."""

    def __init__(
        self,
        engines_of: Callable[[Agent], Sequence[GuardedEngine]],
        timeouts: EngineTimeouts,
        *,
        most_early: int = MOST_EARLY,
    ) -> None:
        """`most_early`: connections that may wait; further calls connect later."""
        self._engines_of = engines_of
        self._timeouts = timeouts
        self._most_early = most_early
        self._early: set[EarlyConnection] = set()

    def config(self, agent: Agent, early: EarlyConnection | NoEarlyConnection) -> EngineConfig:
        """For a call, with the connection that was opened for it."""
        return EngineConfig(self._engines_of(agent), self._timeouts, early)

    def is_set_up(self, agent: Agent) -> bool:
        return self.config(agent, NoEarlyConnection()).is_set_up

    def connect_early(self, agent: Agent) -> EarlyConnection | NoEarlyConnection:
        """The phone rings: connect to the agent's engine."""
        config = self.config(agent, NoEarlyConnection())
        if len(self._early) >= self._most_early or not config.is_set_up:
            return NoEarlyConnection()
        early = EarlyConnection(config.engines, config.timeouts.early, self._early.discard)
        self._early.add(early)
        return early

    def close(self) -> None:
        """Close the connections that wait."""
        for early in list(self._early):
            early.close()


class EngineListener(Protocol):
    """The call, seen from its engine connection."""

    @property
    def recorder(self) -> CallRecorder: ...

    caller_audio: IncomingAudio
    transcript: Transcript

    def on_agent_audio(self, audio: bytes) -> None: ...
    def on_engine_event(self, event: EngineEvent) -> None: ...


class EngineConnection:
    """One session after another, for the whole call. Receives their events (`EngineEvents`)."""

    def __init__(
        self,
        call: EngineListener,
        config: EngineConfig,
        agent_context: AgentContext,
        call_events: CallEvents,
        log: logging.LoggerAdapter[logging.Logger],
        *,
        sorry: str,
        resumed: bool,
    ) -> None:
        """`sorry` is said when the conversation goes on after a loss; with `resumed` already by the first session."""
        self._call = call
        self._chain = EngineChain(config.engines)
        self._early_connection = config.early
        self._has_several = len(config.engines) > 1
        self._timeouts = config.timeouts
        self._agent_context = agent_context
        self._call_events = call_events
        self._log = log
        self._sorry = sorry
        self._loop = asyncio.get_running_loop()
        self._early: deque[bytes] = deque()
        self._early_bytes = 0
        self._was_ready = False
        self._recorded_memory: RecordedMemory = {}
        """The memory in the last note of it in the recording."""
        self._sorry_due = resumed
        self._unsaid: list[str] = []
        self._settings_outdated = False
        self._settings_applied = False
        """By the present session, which may report it before it is returned."""
        self._greets = False
        """Whether the session begins with the greeting."""
        self._hurried = False
        """Whether another engine could take over, so that this one gets less time."""
        self._turn_audio = TurnAudio(
            longest=_frames(config.timeouts.failover_audio), before_speech=_frames(config.timeouts.reconnect_audio)
        )
        """With several engines: what the next one gets."""
        self._filled_at = self._received_at = self._away_since = self._loop.time()
        self._flushed = asyncio.Event()
        self._lost: asyncio.Future[EngineError]
        self.session: EngineSession | None = None
        self.ready = False
        """Whether the session takes audio."""
        self._transcript = call.transcript
        # Audio is bound directly: no method of this class stands between session and call.
        self.on_agent_audio = call.on_agent_audio
        self._caller_audio = call.caller_audio
        self._ignored_since: float | None = None
        self._route_audio(self._buffer)
        self.name = config.engines[0].name
        """The engine that was ready last."""

    @property
    def recorder(self) -> CallRecorder:
        return self._call.recorder

    @property
    def engine(self) -> VoiceEngine:
        """The one in use, or being tried."""
        return self._chain.current.engine

    @property
    def answer_due_since(self) -> float | None:
        """When the caller finished a turn that the agent has not begun to answer, or the agent was to say something."""
        return self._transcript.answer_due_since

    @answer_due_since.setter
    def answer_due_since(self, at: float | None) -> None:
        self._transcript.answer_due_since = at

    async def run(self) -> None:
        """Keep a session open until cancelled. Raises the last EngineError when every engine is given up."""
        pauses = list(self._timeouts.retry_pauses)
        while True:
            tried_at = self._loop.time()
            engine = self._chain.next(tried_at, connected=self._early_connection.engine)
            self.recorder.note("engine", {"name": engine.name})
            try:
                await self._run_session(engine)
            except EngineError as error:
                now = self._loop.time()
                self.recorder.note("engine lost", {"reason": str(error), "refused": isinstance(error, EngineRefused)})
                if now - tried_at > self._timeouts.steady:
                    pauses = list(self._timeouts.retry_pauses)
                    self._chain.start_over()
                    engine.worked()
                is_avoided = self._chain.failed(error, now)
                if is_avoided and self._has_several:
                    fields = {"engine": engine.name, "reason": str(error), "seconds": round(engine.retry_at - now)}
                    self._log.warning("engine failed, calls avoid it", extra=fields)
                is_exhausted = self._chain.is_exhausted
                if self._chain.all_refused or (is_exhausted and not pauses):
                    raise
                if now - self._away_since > self._timeouts.retry:
                    raise
                self._log.warning("engine lost, connecting again", extra={"engine": engine.name, "reason": str(error)})
                self._call_events.publish("engine_lost", engine=engine.name, reason=str(error))
                ENGINE_LOSSES.labels(engine.name).inc()
                if is_exhausted:
                    await asyncio.sleep(pauses.pop(0))
                    self._chain.start_over()

    async def _run_session(self, engine: GuardedEngine) -> None:
        """One session, from handshake to loss. Always raises."""
        started = self._loop.time()
        self._hurried = self._chain.has_alternative(started)

        async def load_settings() -> AgentSettings:
            waited = self._loop.time() - started
            settings = self._adapted(await self._agent_context.load_settings(self._timeouts.memory - waited))
            self._greets = bool(settings.greeting)
            self._settings_outdated = False
            if not self._was_ready:
                self._recorded_memory = self._agent_context.recorded_memory
                self.recorder.note("memory", self._recorded_memory)
                event = self._agent_context.memory_event
                self._call_events.publish("memory", **event)
                if event["outcome"] != "off":
                    MEMORY_LOAD.labels(event["outcome"]).observe(self._agent_context.memory_seconds)
            return settings

        self._lost = self._loop.create_future()
        self._settings_applied = False
        deadline: asyncio.TimerHandle | None = None
        try:
            self.session = await self._connect(engine, load_settings)
            if self._settings_applied:
                self._start_audio()
            seconds = self._timeouts.failover_settings if self._hurried else self._timeouts.settings
            deadline = self._loop.call_later(seconds, self._check_ready, seconds)
            raise await self._lost
        except asyncio.CancelledError:  # the call is over
            if self.ready:
                engine.worked()
            raise
        finally:
            if deadline is not None:
                deadline.cancel()
            if self.ready:
                self._away_since = self._loop.time()
                self._early.extendleft(reversed([*self._turn_audio]))
                self._early_bytes = sum(map(len, self._early))
            session, self.session, self.ready = self.session, None, False
            self._route_audio(self._buffer)
            if session is not None:
                session.close()

    async def _connect(self, engine: GuardedEngine, load_settings: LoadSettings) -> EngineSession:
        seconds, now = self._timeouts.failover_connect, self._loop.time()
        early, self._early_connection = self._early_connection, NoEarlyConnection()
        connect = early.attach if early.engine is engine else engine.engine.connect
        began = early.connecting_since or now
        try:
            async with asyncio.timeout_at(began + seconds if self._hurried else None):
                return await connect(load_settings, self)
        except TimeoutError:
            raise EngineUnavailable(f"the engine did not connect within {seconds:.0f} s") from None

    def _adapted(self, settings: AgentSettings) -> AgentSettings:
        """For the present engine: one with a language model uses its own, unless the agent names one."""
        if settings.llm is not None and self._chain.current.engine.has_llm and not settings.agent.brain:
            return replace(settings, llm=None)
        return settings

    def _check_ready(self, seconds: float) -> None:
        if not self.ready:
            self.on_engine_closed(EngineUnavailable(f"the engine did not apply its settings within {seconds:.0f} s"))

    # From the session

    def on_engine_event(self, event: EngineEvent) -> None:
        self._received_at = self._loop.time()
        match event:
            case SettingsApplied():
                self._settings_applied = True
                self._engine_is_ready(self._chain.current)
            case InjectionRefused():  # the caller or the agent speaks
                self.answer_due_since = None
        self._turn_audio.observe(event)
        self._call.on_engine_event(event)
        if isinstance(event, SettingsApplied):
            self._start_audio()

    def _engine_is_ready(self, engine: GuardedEngine) -> None:
        if engine.connected() and self._has_several:
            self._log.info("engine works again", extra={"engine": engine.name})
        if engine.name != self.name:
            ENGINE_FAILOVERS.labels(self.name, engine.name).inc()
            self._log.info("another engine took over", extra={"engine": engine.name, "instead_of": self.name})
            self.name = engine.name

    def on_engine_closed(self, error: EngineError) -> None:
        """The session is lost; only the first error counts."""
        self._route_audio(self._buffer)
        if not self._lost.done():
            self._lost.set_result(error)

    def _start_audio(self) -> None:
        """The session is ready: send what was buffered. Repeated calls have no effect."""
        if self.session is None or self.ready:
            return
        self.ready = True
        self._turn_audio.new_session()
        send_audio = self._send_and_keep if self._has_several else self.session.send_audio
        while self._early:
            send_audio(self._early.popleft())
        self._turn_audio.replayed()
        self._early_bytes = 0
        self._route_audio(send_audio)
        self._flushed.set()
        self._filled_at = max(self._heard_at, self._loop.time() - self._timeouts.silence_after)
        if self._was_ready:
            self._call_events.publish("engine_back", engine=self.name)
        says_sorry = self._sorry_due and not self._greets  # a caller who was not greeted has missed nothing
        if says_sorry:
            self.session.say(self._sorry)
        if says_sorry or self._greets:
            self._expect_speech()
        self._was_ready = self._sorry_due = True
        while self._unsaid:
            self.session.say(self._unsaid.pop(0))
        if self._settings_outdated:
            self.replace_settings()
        self.send_late_memory()

    # From the call

    def ignore_caller(self) -> None:
        """Send silence instead of the caller's audio from now on."""
        self._ignored_since = self._loop.time()
        self._caller_audio.send = drop

    @property
    def _heard_at(self) -> float:
        """When audio came last that was meant for the engine."""
        return self._caller_audio.heard_at if self._ignored_since is None else self._ignored_since

    def _route_audio(self, send: Callable[[bytes], None]) -> None:
        """Have the caller's audio sent there: to the session, or into the buffer until one is ready."""
        if self._ignored_since is None:
            self._caller_audio.send = send

    def _buffer(self, audio: bytes) -> None:
        """Keep the newest seconds."""
        seconds = self._timeouts.reconnect_audio if self._was_ready else self._timeouts.early_audio
        if self._has_several:
            seconds = self._timeouts.failover_audio
        self._early.append(audio)
        self._early_bytes += len(audio)
        while self._early_bytes > seconds * BYTES_PER_SECOND:
            self._early_bytes -= len(self._early.popleft())

    def _send_and_keep(self, audio: bytes) -> None:
        """Send audio, and keep it for another engine."""
        if self.session is not None:
            self.session.send_audio(audio)
            self._turn_audio.append(audio)

    async def flush(self, seconds: float) -> bool:
        """Wait up to `seconds` for buffered audio to reach the engine. Returns whether it is connected."""
        if self._early:
            self._flushed.clear()
            await wait_for_event(self._flushed, seconds)
        return self.ready

    def say(self, text: str, *, interrupt: bool = False) -> None:
        """Have the agent say this: now, or when a session is ready. `interrupt`: instead of its current answer."""
        if self.ready and self.session is not None:
            self.session.say(text, interrupt=interrupt)
            self._expect_speech()
        else:
            self._unsaid.append(text)

    def _expect_speech(self) -> None:
        """With several engines: replace one that does not say what it was asked to say."""
        if self._has_several and self.answer_due_since is None:
            self.answer_due_since = self._loop.time()

    def replace_settings(self) -> None:
        """Replace the agent's instructions and functions by the current ones."""
        self._settings_outdated = not self.ready
        if self.ready and self.session is not None:
            self.session.replace_settings(self._adapted(self._agent_context.settings()))

    def send_late_memory(self) -> None:
        """Add memory to the instructions that was loaded, or allowed, after the settings had left."""
        if not self.ready or self.session is None:
            return
        addition = self._agent_context.late_memory()
        if (memory := self._agent_context.recorded_memory) != self._recorded_memory:  # perhaps another speaker's
            self._recorded_memory = memory
            self.recorder.note("late memory", memory)
        if addition:
            self.session.update_instructions(addition)
            self._log.info("late memory sent to the engine")
            self._call_events.publish("memory", **self._agent_context.memory_event)

    def truncate(self, unheard_ms: int) -> None:
        """The caller interrupted the agent: this much of its audio was not played."""
        if self.session is not None:
            self.session.truncate(unheard_ms)

    def expect_dictation(self, expected: bool) -> None:
        """The agent has asked for a number, a spelling or an address, or no longer."""
        if self.ready and self.session is not None:
            self.session.expect_dictation(expected)

    def end_user_turn(self) -> None:
        if self.session is not None:
            self.session.end_user_turn()

    def tick(self, now: float) -> None:
        """Called several times a second: fill a carrier's pause."""
        if self.ready and self.session is not None and now - self._heard_at > self._timeouts.silence_after:
            self._filled_at = max(self._filled_at, self._heard_at)
            frames = int((now - self._filled_at) * BYTES_PER_SECOND / len(SILENCE_FRAME))
            for _ in range(frames):
                self.session.send_silence(SILENCE_FRAME)
            self._filled_at += frames * len(SILENCE_FRAME) / BYTES_PER_SECOND

    def check(self, now: float, *, tool_runs: bool = False) -> None:
        """Called now and then: drop a session that no longer works. `tool_runs`: it waits for a tool's result."""
        if self.session is None:
            return
        if tool_runs:
            self._received_at = now
        answer = self._timeouts.failover_answer if self._hurried else self._timeouts.answer
        if self.session.buffered_bytes > STALLED_BYTES:
            WATCHDOG.labels("engine stopped reading").inc()
            self._log.warning("engine stopped reading")
            self.on_engine_closed(EngineUnavailable("the engine stopped reading"))
        elif (due := self.answer_due_since) is not None and now - max(due, self._received_at) > answer:
            WATCHDOG.labels("engine stopped answering").inc()
            self._log.warning("engine stopped answering", extra={"seconds": answer})
            self.answer_due_since = None
            self.on_engine_closed(EngineUnavailable("the engine stopped answering"))


def _frames(seconds: float) -> int:
    return round(seconds * 1000 / FRAME_MS)
