"""
Failover between voice engines: a circuit breaker per engine, the order in which a call tries its engines, and the
caller's audio that the next one gets.

`EngineConnection` opens the sessions and detects failures. No clock and no socket here: times are given.
"""

import enum
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gateway.engines.interface import EngineEvent, TurnEnded, UserSaid, UserStartedSpeaking, VoiceEngine
from gateway.errors import EngineError, EngineRefused

BACK_OFF: Final = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Seconds for which calls avoid an engine, after its first, second, … failure in a row."""


class BreakerState(enum.StrEnum):
    """The states of a circuit breaker; the values are shown in /health."""

    CLOSED = "ok"
    OPEN = "failing"
    HALF_OPEN = "on trial"


class GuardedEngine:
    """
    An engine behind a circuit breaker. All calls of this process share it, so that an outage is paid for once.

    After a failure, calls prefer other engines for a while. Then one call tries it again; if that fails too, the pause
    is longer. Pauses start over when a session has worked.
    """

    def __init__(self, engine: VoiceEngine, back_off: Sequence[float] = BACK_OFF) -> None:
        self.engine = engine
        self.state = BreakerState.CLOSED
        self.problem = ""
        """Why it failed last."""
        self.retry_at = -math.inf
        """When a call may try it again."""
        self._back_off = back_off
        self._failures = 0

    @property
    def name(self) -> str:
        return self.engine.name

    def admits(self, now: float) -> bool:
        """Whether a call may prefer this engine: it works, or it is time for a trial."""
        return self.state is BreakerState.CLOSED or now >= self.retry_at

    def is_failing(self) -> bool:
        """Whether calls prefer other engines, except for trials."""
        return self.state is not BreakerState.CLOSED

    def connecting(self, now: float) -> None:
        """A call opens a session. On an engine that failed, this is the only trial for as long as it was avoided."""
        if self.state is not BreakerState.CLOSED and now >= self.retry_at:
            self.state = BreakerState.HALF_OPEN
            self.retry_at = now + self._pause

    def connected(self) -> bool:
        """A session is ready. Returns whether the engine had failed before."""
        had_failed, self.state = self.state is not BreakerState.CLOSED, BreakerState.CLOSED
        return had_failed

    def worked(self) -> None:
        """A session lasted, or ended with its call: the next failure is a first one."""
        self._failures = 0

    def failed(self, error: EngineError, now: float) -> bool:
        """A session failed or could not be opened. Returns whether other calls avoid the engine from now on."""
        if self.state is BreakerState.OPEN:  # one of many calls that noticed the same outage
            return False
        self._failures += 1
        self.state, self.problem, self.retry_at = BreakerState.OPEN, str(error), now + self._pause
        return True

    def health(self, now: float) -> dict[str, Any]:
        """Its state for /health."""
        if self.state is BreakerState.CLOSED:
            return {"state": str(self.state)}
        return {"state": str(self.state), "problem": self.problem, "retry_in": max(math.ceil(self.retry_at - now), 0)}

    @property
    def _pause(self) -> float:
        return self._back_off[min(max(self._failures, 1), len(self._back_off)) - 1]


class EngineChain:
    """The engines of one call in order of preference. Each is tried once, then all of them again after a pause."""

    def __init__(self, engines: Sequence[GuardedEngine]) -> None:
        self._engines = engines
        self._errors: dict[GuardedEngine, EngineError] = {}
        """Of the engines that this call has tried in the present round."""
        self.current = engines[0]

    @property
    def is_exhausted(self) -> bool:
        """Whether all engines have failed in this round."""
        return len(self._errors) == len(self._engines)

    @property
    def all_refused(self) -> bool:
        """Whether another attempt with any engine would fail in the same way."""
        return self.is_exhausted and all(isinstance(error, EngineRefused) for error in self._errors.values())

    def has_alternative(self, now: float) -> bool:
        """Whether another engine could take over at once."""
        return any(one is not self.current and one.admits(now) for one in self._untried)

    def next(self, now: float, connected: GuardedEngine | None = None) -> GuardedEngine:
        """The engine for the next session: `connected`, the first that works, or the one that failed longest ago."""
        if connected is not None:
            self.current = connected
            return connected
        untried = self._untried
        working = (one for one in untried if one.admits(now))
        self.current = next(working, None) or min(untried, key=lambda one: one.retry_at)
        self.current.connecting(now)
        return self.current

    def failed(self, error: EngineError, now: float) -> bool:
        """The present engine failed. Returns whether other calls avoid it from now on."""
        self._errors[self.current] = error
        return self.current.failed(error, now)

    def start_over(self) -> None:
        """A new round: a session lasted, or all engines have failed."""
        self._errors.clear()

    @property
    def _untried(self) -> list[GuardedEngine]:
        return [one for one in self._engines if one not in self._errors]


class TurnAudio:
    """Keeps the newest `longest` frames that one session was sent and may not have transcribed, for another engine."""

    def __init__(self, *, longest: int, before_speech: int) -> None:
        """`before_speech`: frames before an engine's report of speech that may belong to it."""
        self._frames: deque[bytes] = deque(maxlen=longest)
        self._before_speech = before_speech
        self._is_open = False
        """Whether a turn has begun whose text has not come."""
        self._is_speaking = False
        self._began = 0
        """The first frame of the turn that is being spoken; those before it belong to a turn whose text is due."""
        self.append = self._frames.append

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._frames)

    def new_session(self) -> None:
        """An engine session begins, without audio."""
        self._frames.clear()
        self._is_open = self._is_speaking = False

    def replayed(self) -> None:
        """What was sent so far comes from an earlier session: it may contain speech."""
        self._is_open = self._is_open or len(self._frames) > self._before_speech

    def observe(self, event: EngineEvent) -> None:
        """Drop what the engine has turned into text, or heard no speech in."""
        match event:
            case UserSaid(_, turn):  # a turn with a name may be an earlier one
                goes_on = bool(turn) and self._is_speaking
                self._keep(len(self._frames) - self._began if goes_on else 0)
                self._began, self._is_open = 0, goes_on
            case TurnEnded():
                self._is_speaking = False
        if not self._is_open:
            self._keep(self._before_speech)
        if isinstance(event, UserStartedSpeaking) and not self._is_speaking:
            self._began = max(len(self._frames) - self._before_speech, 0)
            self._is_open = self._is_speaking = True

    def _keep(self, newest: int) -> None:
        while len(self._frames) > newest:
            self._frames.popleft()
