"""
A caller who says nothing: the agent asks whether they are there, then hangs up.

Speech of either side and keypad digits start the time again. The question itself does not, however the engine words it.
"""

import asyncio
import enum
import math
from typing import Final

from gateway.agents import Agent, SilenceSettings
from gateway.calls.call_end import CallEnd
from gateway.calls.engine_connection import EngineConnection
from gateway.calls.transcript import Transcript
from gateway.logs import CallLogger
from gateway.text.turn_taking import silence_texts
from gateway.tools.executor import ToolExecutor

TIME_TO_ANSWER: Final = 3.0
"""Seconds that a caller has at least after the question."""


class SilenceStep(enum.Enum):
    """What to do about a silent caller."""

    ASK = enum.auto()
    HANG_UP = enum.auto()


class SilenceTimer:
    """Measures how long neither side of one call has spoken. No clock: times are given."""

    def __init__(self, settings: SilenceSettings, now: float) -> None:
        self._ask_after = settings.ask_after or math.inf
        self._hang_up_after = settings.hang_up_after or math.inf
        self._time_to_answer = min(TIME_TO_ANSWER, max(settings.hang_up_after - settings.ask_after, 0.0))
        self._quiet_since = now
        self._asked = False
        self._asking = False
        """Whether what the agent says next is the question."""

    def restart(self, now: float) -> None:
        """The caller speaks or presses a key, or the silence has another reason."""
        self._quiet_since = now
        self._asked = self._asking = False

    def agent_said(self, now: float) -> None:
        """The agent says a sentence: the question, or something of its own."""
        if not self._asking:
            self.restart(now)

    def agent_done(self) -> None:
        """The agent has finished what it said."""
        self._asking = False

    def tick(self, now: float, *, played_until: float) -> SilenceStep | None:
        """`played_until`: when the caller has heard everything that the agent has said."""
        if not self._asked:
            self._quiet_since = max(self._quiet_since, played_until)
        silence = now - self._quiet_since
        if silence >= self._ask_after and not self._asked:
            self._asked = self._asking = True
            return SilenceStep.ASK
        if silence >= self._hang_up_after and now >= played_until + self._time_to_answer:
            self.restart(now)
            return SilenceStep.HANG_UP
        return None


class SilenceWatch:
    """Asks the silent caller of one call, and hangs up."""

    def __init__(
        self,
        agent: Agent,
        engine: EngineConnection,
        tools: ToolExecutor,
        end: CallEnd,
        transcript: Transcript,
        log: CallLogger,
    ) -> None:
        texts = silence_texts(agent.language)
        self._question, self._goodbye = agent.silence.ask or texts["ask"], texts["goodbye"]
        self.timer = SilenceTimer(agent.silence, asyncio.get_running_loop().time())
        self._engine = engine
        self._tools = tools
        self._end = end
        self._transcript = transcript
        self._log = log

    def tick(self, now: float, *, slowest_answer: float) -> str:
        """The question to ask now; else empty. `slowest_answer`: so long, silence is not the caller's."""
        due = self._engine.answer_due_since
        agent_thinks = due is not None and now - due < slowest_answer
        if agent_thinks or self._tools.is_busy or self._end.is_ending or not self._engine.ready:
            self.timer.restart(now)
            return ""
        match self.timer.tick(now, played_until=self._transcript.played_until):
            case SilenceStep.ASK:
                self._log.info("caller silent, asking")
                return self._question
            case SilenceStep.HANG_UP:
                self._log.info("caller silent, hanging up")
                self._end.caller_is_silent(self._goodbye)
        return ""
