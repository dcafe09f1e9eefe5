"""
What a caller's speech does to the agent's: cuts it off at once, with the first words, or never. No clock:
times are given.

With "words", noises and backchannels ("mm-hm", "okay") leave the agent speaking. Engines report the text of a turn at
its end, so speech that lasts longer than a backchannel counts as words before its text is there.
"""

import enum
from typing import Final

from gateway.agents import Agent
from gateway.text.turn_taking import is_backchannel

WORDS_SECONDS: Final = 1.0
"""Speech for this long is more than a backchannel."""

_LONGEST_TICK: Final = 0.2


class TurnEffect(enum.Enum):
    """What a turn of the caller does while the agent speaks."""

    ANSWER = enum.auto()
    """The engine answers it, after what the agent is saying."""
    CUT_OFF = enum.auto()
    """The agent stops, and the engine answers it."""
    NONE = enum.auto()
    """A backchannel: the agent goes on, and nothing answers it."""


class InterruptionPolicy:
    """The `interrupt` setting of an agent, in one call."""

    def __init__(self, agent: Agent) -> None:
        self._setting = agent.interrupt
        self._language = agent.language
        self._over_agent = False
        """Whether the caller is speaking while the agent goes on."""
        self._voiced = 0.0
        self._voiced_at = 0.0

    def caller_starts(self, *, agent_audible: bool) -> bool:
        """The caller begins to speak, or goes on after a short pause. Returns whether the agent is cut off."""
        if self._setting == "at_once" or not agent_audible:
            self._over_agent = False
            return True
        if not self._over_agent:
            self._over_agent, self._voiced = True, 0.0
        return False

    def caller_goes_on(self, now: float) -> bool:
        """Called several times a second while the caller is loud. Returns whether the agent is cut off by it."""
        if not self._over_agent or self._setting != "words":
            return False
        self._voiced += min(now - self._voiced_at, _LONGEST_TICK)
        self._voiced_at = now
        if self._voiced < WORDS_SECONDS:
            return False
        self._over_agent = False
        return True

    def caller_said(self, text: str, *, agent_audible: bool, agent_asks: bool) -> TurnEffect:
        """The caller's turn is over. `agent_asks`: it is at a question, to which a backchannel is an answer."""
        over_agent, self._over_agent = self._over_agent, False
        if not (over_agent and agent_audible):
            return TurnEffect.ANSWER
        if is_backchannel(text, self._language) and not agent_asks:
            return TurnEffect.NONE
        return TurnEffect.CUT_OFF if self._setting == "words" else TurnEffect.ANSWER

    def reset(self) -> None:
        """The caller is not speaking: a new engine session."""
        self._over_agent = False
