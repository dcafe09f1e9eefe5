"""
A caller who says nothing: the agent asks whether they are there, then hangs up. No clock: times are given.

Speech of either side and keypad digits start the time again. The question itself does not, however the engine words it.
"""

import enum
import math
from typing import Final

from gateway.agents import SilenceSettings

TIME_TO_ANSWER: Final = 3.0
"""Seconds that a caller has at least after the question."""


class SilenceStep(enum.Enum):
    """What to do about a silent caller."""

    ASK = enum.auto()
    HANG_UP = enum.auto()


class SilenceTimer:
    """Measures how long neither side of one call has spoken."""

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
