"""
Turns as they become final: what the caller said, and what the caller heard of the agent's answers.

All assistant texts between two turns of the caller are one turn. Each text is journaled when it comes; that an answer
was cut off is journaled when it is known. Cards, passwords and keys are taken out of each text before anybody gets it;
those that are spread over several are found when the call is over. No clock: times are given.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol

from gateway.audio import BYTES_PER_SECOND
from gateway.calls.playout import MARK_BYTES, AgentUtterance, Playout
from gateway.engines.interface import HistoryMessage, HistoryToolCall
from gateway.history.call_log import Row, rows_of_turns
from gateway.session import Speaker, Turn
from gateway.text.redaction import redact

_MOST_USED: Final = 20
"""Functions that a new connection is told of, the last ones: a result may be long."""
_LONGEST_SPOKEN: Final = 10_000
"""Characters, some ten minutes of speech. To go over more takes a while: that is done when the call is over."""


class TurnListener(Protocol):
    """Is told of each turn as it comes. Every method returns at once."""

    def caller_said(self, text: str, at: datetime) -> None: ...

    def agent_said(self, answer: int, text: str, at: datetime) -> None:
        """A piece of the agent's answer of that number."""

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        """Of the answer of that number, only this was heard."""

    def set_off_record(self, off: bool) -> None:
        """Whether turns from now on are kept out of everything that outlives the call."""


class Transcript:
    """Collects turns of one call, in the order spoken; of a call that goes on, after those it had."""

    def __init__(
        self,
        playout: Playout,
        *,
        turns: Sequence[Turn] = (),
        call_events: TurnListener | None = None,
        off_record: bool = False,
    ) -> None:
        self.turns = list(turns)
        self.off_record = off_record
        """Whether what is said now is kept out of everything that outlives the call."""
        self._playout = playout
        self._listeners = [call_events] if call_events is not None else []
        for listener in self._listeners:
            listener.set_off_record(off_record)
        # No answer before had a higher number: each of them became a turn.
        self._number = len(self.turns)
        self._used: list[tuple[int, HistoryToolCall]] = []
        self._answer: AgentUtterance | None = None
        self._answer_at: datetime | None = None
        self._audible_since = self._sent_at = 0.0

    # What happens in the call

    def caller_said(self, text: str, at: datetime) -> None:
        text = _without_secrets(text)
        self._close_answer()
        self.turns.append(Turn(Speaker.CALLER, text, at, kept=not self.off_record))
        for listener in self._listeners:
            listener.caller_said(text, at)

    def agent_said(self, text: str, at: datetime) -> None:
        text = _without_secrets(text)
        answer = self._open_answer()
        answer.said(text)
        self._answer_at = self._answer_at or at
        for listener in self._listeners:
            listener.agent_said(self._number, text, at)

    def function_used(self, used: HistoryToolCall) -> None:
        """For an engine that has to be told the conversation so far; it is written nowhere."""
        self._used = [*self._used, (len(self.turns), used)][-_MOST_USED:]

    def agent_audio(self, size: int, now: float) -> None:
        """So many bytes of the current answer are about to be sent, at `now` on the loop's clock."""
        answer = self._open_answer()
        if answer.sent == 0:
            self._audible_since = now
        answer.sent += size
        self._sent_at = now

    def agent_audio_done(self) -> None:
        if self._answer is not None:
            self._answer.done = True

    def interrupted(self, now: float) -> bool:
        """The caller spoke over the agent: what was not played by now will never be. Whether there was such a rest."""
        answer = self._answer
        if answer is None:
            return False
        # A carrier that has never echoed a mark is believed to have played what the engine had finished.
        trusted = answer.done and not self._playout.marks_work
        if not answer.done and self._is_played_out(answer, now):
            answer.done = True
            self._close_answer(answer.sent)
        else:
            self._close_answer(None if trusted else self._heard_bytes(answer, now))
        return bool(self.turns) and not self.turns[-1].heard

    def go_off_record(self, off: bool) -> None:
        """From the next turn on nothing is kept, or everything is again."""
        self._close_answer()
        self.off_record = off
        for listener in self._listeners:
            listener.set_off_record(off)

    def take_back(self, turns: Sequence[Turn]) -> None:
        """Make it as if these had not been said."""
        self.turns = [turn for turn in self.turns if not any(turn is taken for taken in turns)]
        self._used.clear()  # they may hold what was said

    def ended(self, now: float) -> list[Turn]:
        """The call is over: the whole transcript, of what may be kept."""
        if self._answer is not None and self._known_unheard(self._answer):
            self._close_answer(self._heard_bytes(self._answer, now))
        else:
            self._close_answer()
        return [turn for turn in self.turns if turn.kept]

    @property
    def has_sound(self) -> bool:
        """Whether anything of the answer that is being spoken was sent; its text may come later."""
        return self._answer is not None and self._answer.sent > 0

    @property
    def so_far(self) -> list[Turn]:
        """The conversation, with the answer that is being spoken."""
        if self._answer is None or not self._answer.pieces or self._answer_at is None:
            return list(self.turns)
        return [*self.turns, Turn(Speaker.AGENT, self._answer.text, self._answer_at, kept=not self.off_record)]

    @property
    def conversation(self) -> list[HistoryMessage | HistoryToolCall]:
        """The same for an engine: what was heard, and the functions where they were used."""
        items: list[tuple[float, HistoryMessage | HistoryToolCall]] = [
            (place - 0.5, used) for place, used in self._used
        ]
        for place, turn in enumerate(self.so_far):
            if turn.text:
                items.append(
                    (place, HistoryMessage("user" if turn.speaker is Speaker.CALLER else "assistant", turn.text))
                )
        return [item for _, item in sorted(items, key=lambda item: item[0])]

    @property
    def log_rows(self) -> list[Row]:
        """The rows of the call log for all turns that may be kept."""
        turns = self.so_far
        is_open = len(turns) > len(self.turns) and not self.off_record
        return rows_of_turns([turn for turn in turns if turn.kept], open_answer=self._number if is_open else None)

    # Itself

    def _open_answer(self) -> AgentUtterance:
        if self._answer is None:
            self._answer = AgentUtterance(start=self._playout.sent)
        return self._answer

    def _heard_bytes(self, answer: AgentUtterance, now: float) -> int:
        if self._playout.marks_work:
            return self._playout.confirmed - answer.start
        return int((now - self._audible_since) * BYTES_PER_SECOND) if answer.sent else 0

    def _is_played_out(self, answer: AgentUtterance, now: float) -> bool:
        """Whether nothing was left to be heard, though the engine has not said that this was all: it may never."""
        if not answer.sent or not answer.pieces_have_sound:
            return False
        if not self._playout.marks_work:
            return (now - self._audible_since) * BYTES_PER_SECOND >= answer.sent
        # No mark stands after the last stretch.
        left = self._playout.sent - max(self._playout.confirmed, answer.start)
        return left < MARK_BYTES and (now - self._sent_at) * BYTES_PER_SECOND > left

    def _known_unheard(self, answer: AgentUtterance) -> bool:
        """Whether the carrier's echoes show that some of it was not played. One that never echoes is believed."""
        if not self._playout.marks_work or not answer.sent:
            return False
        heard = self._playout.confirmed - answer.start
        # The last stretch has no mark before the engine says that the answer is complete.
        unmarked = 0 if answer.done or heard <= 0 else MARK_BYTES - 1
        return answer.sent - heard > unmarked

    def _close_answer(self, heard_bytes: int | None = None) -> None:
        """Make the answer a turn: whole, or as far as it was heard."""
        answer, self._answer = self._answer, None
        at, self._answer_at = self._answer_at, None
        if answer is None or at is None:
            return
        heard, unheard = (answer.text, "") if heard_bytes is None else answer.split_at(heard_bytes)
        self.turns.append(Turn(Speaker.AGENT, heard, at, unheard, kept=not self.off_record))
        for listener in self._listeners if unheard else ():
            listener.cut_off(self._number, heard, unheard)
        self._number += 1


def _without_secrets(text: str) -> str:
    return redact(text) if len(text) <= _LONGEST_SPOKEN else text
