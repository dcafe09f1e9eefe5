"""
Whose turn it is in a call: interruptions, pauses while the caller dictates, and silence.

This module decides; the call acts. What the caller hears is known from the transcript, which has the carrier's marks.
"""

import asyncio

from gateway.agents import Agent
from gateway.calls.call_end import CallEnd
from gateway.calls.engine_connection import EngineConnection
from gateway.calls.interruption import InterruptionPolicy, TurnEffect
from gateway.calls.silence import SilenceStep, SilenceTimer
from gateway.calls.transcript import Transcript
from gateway.logs import CallLogger
from gateway.text.turn_taking import asks_for_dictation, silence_texts
from gateway.tools.executor import ToolExecutor


class TurnTaking:
    """The settings `interrupt` and `silence` of an agent in one call. Engines get `patience` with their settings."""

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
        self._language = agent.language
        self._engine = engine
        self._tools = tools
        self._end = end
        self._transcript = transcript
        self._log = log
        self._silence = SilenceTimer(agent.silence, asyncio.get_running_loop().time())
        self._interruption = InterruptionPolicy(agent)
        self._dictation_expected = False
        self._is_new_answer = True

    # The caller

    def caller_starts(self, now: float, *, answer_goes_on: bool) -> bool:
        """The caller begins to speak. Returns whether the agent is cut off."""
        self._silence.restart(now)
        if self._interruption.caller_starts(agent_audible=self._transcript.is_audible(now)):
            return True
        self._transcript.spoken_over(answer_goes_on=answer_goes_on)
        return False

    def caller_goes_on(self, now: float) -> bool:
        """Called several times a second while the caller is loud. Returns whether the agent is cut off by it."""
        self._silence.restart(now)
        return self._interruption.caller_goes_on(now)

    def caller_said(self, text: str, turn_name: str, now: float) -> TurnEffect:
        """What a turn of the caller does to an answer that is being spoken."""
        self._silence.restart(now)
        self._is_new_answer = True
        return self._interruption.caller_said(
            text,
            agent_audible=not self._transcript.is_answered(turn_name) and self._transcript.is_audible(now),
            agent_asks=self._transcript.is_asking(now),
        )

    def not_silent(self, now: float) -> None:
        """The caller has pressed a key, or has something else to answer first."""
        self._silence.restart(now)

    # The agent

    def agent_said(self, text: str, now: float) -> None:
        """
        Part of an answer. If any part of it asks for a number, a spelling or an e-mail address, the engine waits for
        longer pauses until the next answer.
        """
        self._silence.agent_said(now)
        goes_on = self._dictation_expected and not self._is_new_answer
        expected = asks_for_dictation(text, self._language) or goes_on
        self._is_new_answer = False
        if expected != self._dictation_expected:
            self._dictation_expected = expected
            self._engine.expect_dictation(expected)

    def agent_done(self) -> None:
        """The agent has finished what it said."""
        self._silence.agent_done()

    def new_session(self) -> None:
        """A new engine session: the caller is not speaking, and nothing is expected."""
        self._interruption.reset()
        self._dictation_expected = False

    # Neither of them

    def tick(self, now: float, *, slowest_answer: float) -> str:
        """The question to ask a silent caller, or empty. `slowest_answer`: seconds the agent may take to answer."""
        due = self._engine.answer_due_since
        agent_thinks = due is not None and now - due < slowest_answer
        if agent_thinks or self._tools.is_busy or self._end.is_ending or not self._engine.ready:
            self._silence.restart(now)
            return ""
        match self._silence.tick(now, played_until=self._transcript.played_until):
            case SilenceStep.ASK:
                self._log.info("caller silent, asking")
                return self._question
            case SilenceStep.HANG_UP:
                self._log.info("caller silent, hanging up")
                self._end.caller_is_silent(self._goodbye)
        return ""
