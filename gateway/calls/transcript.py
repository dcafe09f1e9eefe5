"""
The turns of a live call: what the caller said, and what the caller heard of the agent's answers.

All texts of the agent between two turns of the caller are one turn; an operator's words are a turn of their own. Each
text is written when it arrives, an interruption when it is known. Card numbers, passwords and keys are redacted on the
way in; those spread over several turns are found when the call is over. Its methods are given times.
"""

import asyncio
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from gateway.audio import BYTES_PER_SECOND
from gateway.calls.playout import MARK_BYTES, AgentUtterance, Playout
from gateway.calls.recorder import CallRecorder
from gateway.engines.interface import HistoryMessage, HistoryToolCall, WordEnd
from gateway.history.call_log import Row, rows_beside_turns, rows_of_turns
from gateway.history.live_events import CallEvents
from gateway.session import Speaker, Turn, Voicemail, VoiceSession
from gateway.text.redaction import redact, spoken_numbers
from gateway.text.turn_taking import is_asking

_MOST_TOOL_CALLS: Final = 20
"""Tool calls in the history of a new engine session, the latest ones: a result may be long."""
_MOST_OPERATOR_TEXTS: Final = 5
_SAME_WORDS: Final = 0.8
PIN_REMOVED: Final = "[PIN removed]"
_SHORTEST_PIN: Final = 4
_SLOWEST_MARK: Final = 60.0
"""Seconds after which a mark that was not echoed is lost."""
_BETWEEN_SENTENCES: Final = 2.0
"""Seconds in which an answer that the engine has not completed is expected to go on."""
_EXCERPT: Final = 300
"""Characters that the call log keeps of a function's arguments, and of its result."""
_EXCERPT_MARGIN: Final = 100  # longer than a spoken number
_LONGEST_REDACTED: Final = 10_000
"""Characters, some ten minutes of speech. Longer texts take a while and are redacted when the call is over."""


def loop_clock() -> Callable[[], datetime]:
    """The time of day, moved on by the event loop's clock: in a replay, pauses are as long as in the recorded call."""
    loop = asyncio.get_running_loop()
    began, began_at = datetime.now(UTC), loop.time()
    return lambda: began + timedelta(seconds=loop.time() - began_at)


@dataclass(frozen=True)
class CallRecords:
    """Where a live call is written down: its turns and events in the call log, its frames in a recording."""

    events: CallEvents
    recorder: CallRecorder

    def set_off_record(self, off: bool) -> None:
        """From the next turn on nothing that is said may outlive the call, or everything may again."""
        self.events.set_off_record(off)
        if off:
            self.recorder.discard()  # it holds the words by now, and a recording with a gap can't be replayed

    def retract(self, session: VoiceSession, rows: Sequence[Row]) -> None:
        """Delete the session's retracted turns; `rows` are those that remain."""
        self.recorder.discard()
        self.events.retract(session, rows)


class Transcript:
    """Collects the turns of one call in the order spoken. A resumed call continues after the session's turns."""

    __slots__ = (  # used for each frame
        "_answer _answer_at _asides _audible_since _ended_at _hidden _number _records _sent_at _session _spoken_over "
        "_by_operator _operator_words _tool_calls _unplayed _was_redacted answer_due_since now played_until playout "
        "turns"
    ).split()

    def __init__(
        self,
        session: VoiceSession,
        playout: Playout,
        records: CallRecords,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.turns = list(session.turns)
        self.now = now
        """The time of new turns."""
        self.playout = playout
        self._session = session
        self._records = records
        records.set_off_record(session.off_record)
        # Every earlier answer became a turn, so none had a higher number.
        self._number = len(self.turns)
        self._ended_at: dict[str, datetime] = {}
        """When turns of the caller ended whose text is still to come."""
        self._tool_calls: list[tuple[int, HistoryToolCall]] = []
        self._hidden: set[str] = set()
        self._answer: AgentUtterance | None = None
        self._answer_at: datetime | None = None
        self._was_redacted = False
        """Whether the agent's last text was changed: then the positions of its words are wrong."""
        self._operator_words: list[list[str]] = []
        """For each text of an operator, the words that the agent has not said yet."""
        self._by_operator = False
        """Whether the current answer is an operator's."""
        self._asides: list[Turn] = []
        """What the caller said during the answer without ending it."""
        self._spoken_over: AgentUtterance | None = None
        """The answer during which the caller began to speak."""
        self._unplayed: list[tuple[int, AgentUtterance, Turn]] = []
        """Answers with their numbers and turns that the next turn followed before the caller had heard all of them."""
        self._audible_since = self._sent_at = 0.0
        self.answer_due_since: float | None = None
        """When the caller finished a turn that the agent has not begun to answer, or the agent was to say something."""
        self.played_until = 0.0
        """When the carrier has played what was sent, on the loop's clock; estimated by its length."""

    # From the call

    def hide(self, text: str) -> None:
        """The numbers in this text are a PIN: remove them from all later turns. The agent may repeat them."""
        self._hidden |= {number.digits for number in spoken_numbers(text) if len(number.digits) >= _SHORTEST_PIN}

    def is_audible(self, now: float) -> bool:
        """Whether the caller still hears an answer, by the carrier's marks; without marks by its length."""
        if self.playout.is_pending:
            return now < self.played_until + _SLOWEST_MARK
        if not self.answer_is_complete:
            return now < self.played_until + _BETWEEN_SENTENCES
        return now < self.played_until and not self.playout.is_played_out

    def is_asking(self, now: float) -> bool:
        """Whether the caller hears a question, or has just heard one."""
        return self._answer is not None and is_asking(*self._answer.split_at(self._heard_bytes(self._answer, now)))

    @property
    def answer_is_complete(self) -> bool:
        """Whether the engine has sent all of its last answer."""
        return self._answer is None or self._answer.done

    def spoken_over(self, *, answer_goes_on: bool) -> None:
        """The caller speaks, and the answer is played as far as the engine sends it."""
        self._spoken_over = self._answer
        if self._answer is not None and not self._answer.done:
            self._answer.stopped = not answer_goes_on

    def caller_finished(self, turn: str, at: datetime) -> None:
        """The caller's turn of this name is over. Its text may come later than the answer to it."""
        if turn not in self._ended_at:
            if self._answer is None or self._answer is not self._spoken_over:  # else its text decides about the answer
                self._end_answer()
                self._records.events.turn_ended()
            self._ended_at[turn] = at

    def had_no_words(self, turn: str) -> None:
        """No text will come for this turn."""
        self._ended_at.pop(turn, None)

    @property
    def awaits_text(self) -> bool:
        """Whether a turn of the caller is over whose text is still to come."""
        return bool(self._ended_at)

    def is_answered(self, turn: str) -> bool:
        """Whether the agent has begun to answer a turn whose text is still to come."""
        ended_at = self._ended_at.get(turn)
        has_begun = self._answer is not None and self._answer is not self._spoken_over
        return ended_at is not None and (has_begun or any(one.at > ended_at for one in self.turns))

    def caller_said(self, text: str, at: datetime, turn: str = "", *, aside: bool = False) -> Turn:
        """
        The text of a turn of the caller. That of one that is answered goes before the answer.

        `aside`: the answer that is being spoken goes on after it.
        """
        text = self._redacted(text)
        is_late = self.is_answered(turn)
        at = self._ended_at.pop(turn, at) if is_late else at
        self._ended_at.pop(turn, None)
        said = Turn(Speaker.CALLER, text, at, kept=not self._session.off_record)
        if aside and not is_late and self._open_turn and self._answer is not None and not self._answer.stopped:
            self._asides.append(said)
        else:
            if not is_late:
                self._end_answer()
            later = (number for number, one in enumerate(self.turns) if one.at > at) if is_late else ()
            self.turns.insert(next(iter(later), len(self.turns)), said)
        self._records.events.caller_said(text, at, is_late=is_late)
        return said

    def agent_said(self, text: str, at: datetime, *, before_answer: bool = False) -> bool:
        """`before_answer`: the answer is still to come. Returns whether an operator had the agent say it."""
        by_operator = self._takes_operator_words(text)
        if by_operator is not self._by_operator and self._answer_at is not None:
            self._end_answer()  # a turn is either the agent's own or the operator's
        self._by_operator = by_operator
        original, text = text, self._redacted(text)
        self._was_redacted = text != original
        answer = self._open_answer()
        answer.said(text)
        self._answer_at = self._answer_at or at
        self._records.events.agent_said(self._number, text, at, by_operator=by_operator, before_answer=before_answer)
        return by_operator

    def operator_says(self, text: str) -> None:
        """The agent will say these words of an operator, as a whole or sentence by sentence."""
        self._operator_words = [*self._operator_words, _words(text)][-_MOST_OPERATOR_TEXTS:]

    def _takes_operator_words(self, text: str) -> bool:
        """Whether an operator had the agent say this text. Engines change a word or two, and refuse some texts."""
        given = _words(text) if self._operator_words else []
        for place, due in enumerate(self._operator_words if given else []):
            if difflib.SequenceMatcher(None, due[: len(given)], given).ratio() >= _SAME_WORDS:
                left = due[len(given) :]
                self._operator_words[place : place + 1] = [left] if left else []
                return True
        return False

    def words_timed(self, ends: Sequence[WordEnd]) -> None:
        """Where words of the text that the agent began last end in its audio."""
        if self._answer is not None and not self._was_redacted:
            self._answer.words_timed(ends)

    def tool_called(self, call: HistoryToolCall) -> None:
        """Keep a tool call for the history of a new engine session. It is not stored."""
        self._tool_calls = [*self._tool_calls, (len(self.turns), call)][-_MOST_TOOL_CALLS:]

    def agent_audio(self, size: int, now: float) -> None:
        """`size` bytes of the current answer are about to be sent, at `now` on the loop's clock."""
        answer = self._answer or self._open_answer()
        if answer.sent == 0:
            self._audible_since = now
        answer.sent += size
        self.answer_due_since = None
        self._sent_at = now
        begins = self.played_until if self.played_until > now else now
        self.played_until = begins + size / BYTES_PER_SECOND

    @property
    def has_word_times(self) -> bool:
        """Whether the voice reports where the words of the current text end."""
        return self._answer is not None and self._answer.has_word_times

    def word_ends(self, size: int) -> set[int]:
        """Where words end within the next `size` bytes of the current answer, as far as the voice reports it."""
        return self._answer.word_ends(size) if self._answer is not None else set()

    def agent_audio_done(self) -> None:
        if self._answer is not None and not self._answer.stopped:
            self._answer.done = True

    def interrupted(self, now: float) -> int | None:
        """Barge-in: what was not played by now never will be. Returns its milliseconds, None if the answer was over."""
        self.played_until = min(self.played_until, now)
        self._cut_unplayed()
        answer = self._answer
        if answer is None:
            return None
        # Without any mark from the carrier, assume that it played what the engine had finished.
        assumed = answer.done and not self.playout.marks_work
        is_played_out = not answer.done and self._is_played_out(answer, now)
        answer.done |= is_played_out
        has_text, place = self._answer_at is not None, len(self.turns)
        heard = answer.sent if is_played_out else self._heard_bytes(answer, now)
        self._close_answer(None if assumed else heard)
        if assumed or (has_text and self.turns[place].heard):
            return None
        played = self.playout.played(now) - answer.start if self.playout.marks_work else self._heard_bytes(answer, now)
        return (answer.sent - min(max(played, 0), answer.sent)) * 1000 // BYTES_PER_SECOND

    def go_off_record(self, off: bool) -> None:
        """From the next turn on nothing is kept, or everything is again."""
        self._cut_unplayed()  # later it could not be logged
        self._close_answer()
        self._session.off_record = off
        self._records.set_off_record(off)

    def retract(self, turns: Sequence[Turn]) -> None:
        """Delete these turns everywhere, as the caller asked."""
        self._session.taken_back += [turn.name for turn in turns]
        self.turns = [turn for turn in self.turns if not any(turn is retracted for retracted in turns)]
        self._tool_calls.clear()  # results may quote what was said
        self._records.retract(self._session, self.log_rows)

    @property
    def voicemail(self) -> Voicemail:
        return self._session.voicemail

    def voicemail_reached(self) -> None:
        """A mailbox answered. What it said are not the caller's words, and nothing is learned from them."""
        if self._session.voicemail is Voicemail.NONE:
            self._session.voicemail = Voicemail.REACHED
            self._records.events.set_voicemail(Voicemail.REACHED)
        if greeting := [turn for turn in self.turns if turn.speaker is Speaker.CALLER]:
            self.retract(greeting)

    def voicemail_left(self) -> None:
        self._session.voicemail = Voicemail.LEFT
        self._records.events.set_voicemail(Voicemail.LEFT)

    def finish(self, now: float) -> list[Turn]:
        """The call is over: all turns that may be kept."""
        self._cut_unplayed()
        if self._answer is not None and self._is_known_unheard(self._answer):
            self._close_answer(self._heard_bytes(self._answer, now))
        else:
            self._end_answer()
        return [turn for turn in self.turns if turn.kept]

    # What was said

    @property
    def has_audio(self) -> bool:
        """Whether audio of an unfinished answer was sent; its text may come later."""
        return self._answer is not None and self._answer.sent > 0

    @property
    def so_far(self) -> list[Turn]:
        """All turns, with the answer that is being spoken."""
        return [*self.turns, *self._open_turn, *self._asides]

    @property
    def _open_turn(self) -> list[Turn]:
        if self._answer is None or not self._answer.pieces or self._answer_at is None:
            return []
        return [self._agent_turn(self._answer.text, self._answer_at)]

    def answer_before(self, turn: str) -> str:
        """The agent's last words before this turn of the caller, or so far."""
        ended_at = self._ended_at.get(turn)
        agent = (one for one in reversed(self.so_far) if one.speaker is Speaker.AGENT)
        return next((one.text for one in agent if ended_at is None or one.at <= ended_at), "")

    @property
    def history(self) -> list[HistoryMessage | HistoryToolCall]:
        """The conversation for a new engine session: what was heard, and tool calls in their places."""
        items: list[tuple[float, HistoryMessage | HistoryToolCall]] = [
            (place - 0.5, call) for place, call in self._tool_calls
        ]
        for place, turn in enumerate(self.so_far):
            if turn.text:
                is_caller = turn.speaker is Speaker.CALLER
                items.append((place, HistoryMessage("user" if is_caller else "assistant", turn.text)))
        return [item for _, item in sorted(items, key=lambda item: item[0])]

    @property
    def log_rows(self) -> list[Row]:
        """The rows of the call log for everything so far that may be kept."""
        is_open = bool(self._open_turn) and not self._session.off_record
        kept = [turn for turn in [*self.turns, *self._open_turn] if turn.kept]
        rows = rows_of_turns(kept, open_answer=self._number if is_open else None)
        asides = rows_of_turns([turn for turn in self._asides if turn.kept])
        return [*rows, *asides, *rows_beside_turns(self._session)]

    def excerpt(self, text: str) -> str:
        """The beginning of a function's arguments or result, without secrets."""
        shown = self._redacted(text[: _EXCERPT + _EXCERPT_MARGIN])
        if len(text) > _EXCERPT + _EXCERPT_MARGIN:
            shown = shown[:-_EXCERPT_MARGIN]  # half of a number is not recognised as a secret
        return shown[:_EXCERPT]

    def _redacted(self, text: str) -> str:
        """The text without secrets and PINs that were given in this call."""
        if len(text) > _LONGEST_REDACTED:
            return text
        for number in reversed(spoken_numbers(text) if self._hidden else []):
            if number.digits in self._hidden:
                text = f"{text[: number.start]}{PIN_REMOVED}{text[number.end :]}"
        return redact(text)

    # The answer that is being spoken

    def _open_answer(self) -> AgentUtterance:
        if self._answer is None:
            self._answer = AgentUtterance(start=self.playout.sent)
        return self._answer

    def _heard_bytes(self, answer: AgentUtterance, now: float) -> int:
        if self.playout.marks_work:
            return self.playout.confirmed - answer.start
        return int((now - self._audible_since) * BYTES_PER_SECOND) if answer.sent else 0

    def _is_played_out(self, answer: AgentUtterance, now: float) -> bool:
        """Whether all audio was played although the engine has not reported the end; it may never do so."""
        if not answer.sent or not answer.pieces_have_sound:
            return False
        if not self.playout.marks_work:
            return (now - self._audible_since) * BYTES_PER_SECOND >= answer.sent
        # The last piece has no mark yet.
        left = self.playout.sent - max(self.playout.confirmed, answer.start)
        return left < MARK_BYTES and (now - self._sent_at) * BYTES_PER_SECOND > left

    def _is_known_unheard(self, answer: AgentUtterance) -> bool:
        """Whether marks show that some of it was not played. Without marks it counts as played."""
        if not self.playout.marks_work or not answer.sent:
            return False
        heard = self.playout.confirmed - answer.start
        # The last piece has no mark before the engine reports the end of the answer.
        unmarked = 0 if answer.done or heard <= 0 else MARK_BYTES - 1
        return answer.sent - heard > unmarked

    def _end_answer(self) -> None:
        """The caller's turn follows. The carrier may still have some of the answer to play."""
        answer, number, place = self._answer, self._number, len(self.turns)
        self._close_answer(answer.sent if answer is not None and answer.stopped else None)
        if answer is not None and len(self.turns) > place and self.playout.confirmed - answer.start < answer.sent:
            self._unplayed.append((number, answer, self.turns[place]))

    def _cut_unplayed(self) -> None:
        """What was not played by now of earlier answers never will be."""
        unplayed, self._unplayed = self._unplayed, []
        for number, answer, turn in unplayed if self.playout.marks_work else ():
            heard, unheard = answer.split_at(min(self.playout.confirmed - answer.start, answer.sent))
            if unheard == turn.unheard or not any(turn is kept for kept in self.turns):
                continue
            self.turns = [replace(one, text=heard, unheard=unheard) if one is turn else one for one in self.turns]
            self._records.events.cut_off(number, heard, unheard)

    def _close_answer(self, heard_bytes: int | None = None) -> None:
        """Make the answer a turn: all of it, or what was heard."""
        answer, self._answer = self._answer, None
        at, self._answer_at = self._answer_at, None
        if answer is None or at is None:
            return
        heard, unheard = (answer.text, "") if heard_bytes is None else answer.split_at(heard_bytes)
        self.turns.append(self._agent_turn(heard, at, unheard))
        self._by_operator = False
        self.turns += self._asides
        self._asides = []
        if unheard:
            self._records.events.cut_off(self._number, heard, unheard)
        self._number += 1

    def _agent_turn(self, text: str, at: datetime, unheard: str = "") -> Turn:
        kept = not self._session.off_record
        return Turn(Speaker.AGENT, text, at, unheard, kept=kept, by_operator=self._by_operator)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
