"""
Voice engines that fail on demand, for the virtual clock.

The caller's speech is frames of one byte value per word; an engine of this kind turns them into text, answers each
turn, and fails as its next `Fault` says. It detects a turn's end by silence, as real engines do.
"""

import asyncio
import enum
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.agents import Agent
from gateway.audio import SILENCE_BYTE
from gateway.engines.interface import (
    AgentAudioDone,
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineEvents,
    EngineFailed,
    LoadSettings,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.errors import EngineError, EngineRefused, EngineUnavailable
from gateway.llm.chat import ModelName

HANDSHAKE = 0.15
THINKING = 0.4
CHUNK = bytes([7]) * 800
"""Agent audio, a tenth of a second."""
CHUNKS_PER_ANSWER = 8
TURN_END_FRAMES = 15
OWN_TIMEOUT = 5.0
"""Real engines give up a handshake after this long."""
DEAD_PEER = 8.0
"""The socket detects a half-open connection after this long."""


class Kind(enum.StrEnum):
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    HUNG_HANDSHAKE = "hung in the handshake"
    NO_SETTINGS = "settings never applied"
    NO_GREETING = "ready, then silent"
    QUOTA = "quota after connect"
    HALF_OPEN = "half-open"
    NO_ANSWER = "turn heard, no answer"
    CLOSED_IN_ANSWER = "closed during an answer"
    CLOSED_IN_TURN = "closed while the caller speaks"


AT_CONNECT = (Kind.REFUSED, Kind.UNREACHABLE, Kind.HUNG_HANDSHAKE, Kind.NO_SETTINGS, Kind.NO_GREETING)
IN_SESSION = (Kind.QUOTA, Kind.HALF_OPEN, Kind.NO_ANSWER, Kind.CLOSED_IN_ANSWER, Kind.CLOSED_IN_TURN)


@dataclass(frozen=True)
class Fault:
    """How one session fails: at once, or in the turn of the caller with this number."""

    kind: Kind
    turn: int = 0
    words: int = 1
    """For failures while the caller speaks: after this many words of the turn."""


class FaultPlan:
    """The faults of one call: each session takes the next one, whichever engine it is of."""

    def __init__(self, faults: Iterable[Fault | None] = ()) -> None:
        self._faults = iter(faults)

    def next(self) -> Fault | None:
        """None for a session that works."""
        return next(self._faults, None)


class FailingEngine:
    has_llm = True
    is_ready = True

    def __init__(self, name: str, plan: FaultPlan) -> None:
        self.name = name
        self.sessions: list[FailingSession] = []
        self.attempts = 0
        self._plan = plan

    def own_model(self, agent: Agent) -> ModelName | None:
        return None

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> "FailingSession":
        self.attempts += 1
        fault = self._plan.next()
        await asyncio.sleep(HANDSHAKE)
        match fault and fault.kind:
            case Kind.REFUSED:
                raise EngineRefused("the engine refused: 402")
            case Kind.UNREACHABLE:
                raise EngineUnavailable("the engine can't be reached: ConnectionRefusedError")
            case Kind.HUNG_HANDSHAKE:
                await asyncio.sleep(OWN_TIMEOUT)
                raise EngineUnavailable("the engine can't be reached: TimeoutError")
        session = FailingSession(await load_settings(), events, fault)
        self.sessions.append(session)
        return session

    async def probe(self) -> str:
        return "fails on demand"

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None: ...


class FailingSession:
    buffered_bytes = 0

    def __init__(self, settings: AgentSettings, events: EngineEvents, fault: Fault | None) -> None:
        self.settings = settings
        self.said: list[str] = []
        self._events: EngineEvents | None = events
        self._fault = fault
        self._loop = asyncio.get_running_loop()
        self._words: list[int] = []
        self._silent_frames = 0
        self._turns = 0
        self._is_dead = False
        self._speech: asyncio.Task[None] | None = None
        if fault is None or fault.kind is not Kind.NO_SETTINGS:
            self._loop.call_soon(self._start)

    def _start(self) -> None:
        self._emit(SettingsApplied())
        if self._fails(Kind.NO_GREETING):
            self._is_dead = True
        elif self.settings.greeting:
            self._speak(self.settings.greeting)
        if self._fails(Kind.QUOTA) and self._fault is not None and self._fault.turn == 0:
            self._loop.call_later(0.3, self._give_up)

    # EngineSession

    def send_audio(self, audio: bytes) -> None:
        if self._is_dead or self._events is None:
            return
        word = audio[0]
        if word != SILENCE_BYTE:
            self._silent_frames = 0
            if not self._words:
                self._emit(UserStartedSpeaking())
                if self._speech is not None:
                    self._speech.cancel()
            if word not in self._words[-1:]:
                self._words.append(word)
                self._fail_in_speech()
        elif self._words:
            self._silent_frames += 1
            if self._silent_frames == TURN_END_FRAMES:
                self.end_user_turn()

    send_silence = send_audio

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self.said.append(text)
        if not self._words and not self._is_dead:
            self._speak(text)

    def end_user_turn(self) -> None:
        if not self._words:
            return
        text = " ".join(map(str, self._words))
        self._words, self._silent_frames = [], 0
        self._turns += 1
        self._emit(TurnEnded())
        self._emit(UserSaid(text))
        if self._is_due(Kind.NO_ANSWER):
            self._is_dead = True
        else:
            self._speak(f"You said {text}.", after=THINKING)

    def update_instructions(self, text: str) -> None: ...
    def expect_dictation(self, expected: bool) -> None: ...
    def replace_settings(self, settings: AgentSettings) -> None: ...
    def truncate(self, heard_ms: int) -> None: ...
    def answer_tool(self, call_id: str, result: str) -> None: ...

    def close(self) -> None:
        self._events = None
        if self._speech is not None:
            self._speech.cancel()

    # Failures

    def _fails(self, kind: Kind) -> bool:
        return self._fault is not None and self._fault.kind is kind

    def _is_due(self, kind: Kind) -> bool:
        """Whether to fail in the turn that has just ended."""
        return self._fails(kind) and self._fault is not None and self._turns == self._fault.turn

    def _fail_in_speech(self) -> None:
        fault = self._fault
        if fault is None or self._turns + 1 != fault.turn or len(self._words) != fault.words:
            return
        if fault.kind is Kind.HALF_OPEN:
            self._is_dead = True
            self._loop.call_later(DEAD_PEER, self._end, EngineUnavailable("the engine closed the connection"))
        elif fault.kind is Kind.CLOSED_IN_TURN:
            self._end(EngineUnavailable("the engine closed the connection"))

    def _give_up(self) -> None:
        self._emit(EngineFailed("INSUFFICIENT_FUNDS", retryable=False))
        self._end(EngineRefused("the engine gave up: INSUFFICIENT_FUNDS"))

    def _end(self, error: EngineError) -> None:
        events = self._events
        self.close()
        if events is not None:
            events.on_engine_closed(error)

    # Speech

    def _speak(self, text: str, *, after: float = 0.1) -> None:
        if self._speech is not None:
            self._speech.cancel()
        self._speech = self._loop.create_task(self._say(text, after))

    async def _say(self, text: str, after: float) -> None:
        await asyncio.sleep(after)
        self._emit(AgentSaid(text))
        for chunk in range(CHUNKS_PER_ANSWER):
            if self._events is not None and not self._is_dead:
                self._events.on_agent_audio(CHUNK)
            await asyncio.sleep(0.05)
            if chunk == 2 and self._is_due(Kind.CLOSED_IN_ANSWER):
                self._end(EngineUnavailable("the engine closed the connection"))
            if chunk == 4 and self._is_due(Kind.QUOTA):
                self._give_up()
        self._emit(AgentAudioDone())

    def _emit(self, event: EngineEvent) -> None:
        if self._events is not None and not self._is_dead:
            self._events.on_engine_event(event)
