"""Measures the response time of each answer (`gateway/response_time.py`), stage by stage. No clock: times are given."""

import re
from collections.abc import Callable
from typing import Final

from gateway.metrics import TURN_STAGE_SECONDS, UNMEASURED_TURNS
from gateway.response_time import STAGES, CountedFrom, ResponseTime

_DIGITS: Final = 4  # a tenth of a millisecond
_QUIET: Final = 0.05
"""Seconds without a voiced frame that mark the end of speech. After less, the caller may still be speaking."""
_SLOWEST_START: Final = 1.0
"""The most seconds between the start of speech and the engine's report of it."""

# The engine's figures, each with the stage at its end.
_LEADS_TO: Final = {"stt": "transcript", "ttt": "first_audio", "tts": "first_audio"}


def observe(engine: str, turn: ResponseTime) -> None:
    """Add one turn to the metrics."""
    if turn.counted_from is not CountedFrom.VOICE:
        UNMEASURED_TURNS.labels(engine, turn.counted_from).inc()
        return
    for stage in STAGES:
        if (seconds := getattr(turn, stage)) is not None:
            TURN_STAGE_SECONDS.labels(stage, engine).observe(max(seconds, 0.0))  # a histogram's sum must not fall


class TurnLatencyTracker:
    """
    Measures one turn after another.

    `on_turn` gets each finished turn. `on_answer` is called when the first audio of an answer was sent, with its
    response time, or with None for a greeting. The first time of each stage counts. A turn needs a transcript, or an
    answer if its transcript comes later: a cough is not a turn.
    """

    def __init__(
        self,
        on_turn: Callable[[ResponseTime], None],
        *,
        on_answer: Callable[[ResponseTime | None], None] = lambda _: None,
    ) -> None:
        self.finished: list[ResponseTime] = []
        self._on_turn = on_turn
        self._on_answer = on_answer
        self._seen: dict[str, float] = {}
        self._reported: dict[str, float] = {}
        self._turn = ""
        """The name of the turn whose text is still to come."""
        self._voiced: float | None = None
        """The last voiced frame of the turn."""
        self._zero: tuple[float, CountedFrom] | None = None
        """Where the time begins, once an answer was measured."""
        self._unanswered: float | None = None
        """The last voiced frame of the previous turn, if that got no answer: some engines split a turn."""
        self._by_operator: bool | None = None
        """Whether an operator spoke first after the turn; None until something was said."""
        self._one_moment = ""
        """The words that are said before the answer because the language model is slow."""
        self._before_answer = False
        """Whether the agent's last text was such words."""
        self._started = self._ended = float("-inf")
        """When the engine reported the start of this turn, and the end of the previous one."""

    def caller_starts(self, at: float) -> None:
        """The caller began to speak. May be repeated."""
        self.finish_turn()
        if self._started <= self._ended:
            self._started = at

    def finish_turn(self) -> None:
        """The next turn begins, or the call is over. May be repeated."""
        is_turn = "transcript" in self._seen or (self._turn and "first_frame" in self._seen)
        turn = self._measured() if is_turn else None
        is_answered = "first_frame" in self._seen or self._by_operator
        self._unanswered = self._voiced if is_turn and not is_answered else None
        self._seen, self._reported, self._turn, self._voiced, self._zero = {}, {}, "", None, None
        self._by_operator, self._one_moment, self._before_answer = None, "", False
        if turn is not None:
            self.finished.append(turn)
            self._on_turn(turn)

    # Stages

    def speech_ended(self, at: float, voiced_at: float | None, turn: str = "") -> None:
        """The engine reports the end of a turn. `voiced_at`: the last voiced frame so far. `turn`: as in TurnEnded."""
        if turn and turn != self._turn and ("transcript" in self._seen or self._turn):
            self.finish_turn()
        if "transcript" not in self._seen and (not turn or turn != self._turn):
            self._turn = turn
            self._drop_other_audio()
            self._seen["speech_ended"] = at
            self._end_speech(at, voiced_at)

    def transcript(self, at: float, voiced_at: float | None, turn: str = "") -> None:
        """The turn's text. A second text without speech in between is a turn of its own."""
        if turn and turn != self._turn:
            return  # of an earlier turn
        if "transcript" in self._seen:
            self.finish_turn()
        self._drop_other_audio()
        self._seen["transcript"] = at
        if "speech_ended" not in self._seen:
            self._end_speech(at, voiced_at)

    def needs_no_answer(self, turn: str) -> None:
        """The turn had no words, or was a backchannel."""
        if turn == self._turn and "first_frame" not in self._seen:
            self._turn = ""

    def llm_request(self, at: float) -> None:
        self._seen.setdefault("llm_request", at)

    def first_token(self, at: float) -> None:
        if "llm_request" in self._seen:  # else it answers an earlier turn, since which the caller has gone on
            self._seen.setdefault("first_token", at)

    def one_moment(self, text: str) -> None:
        """The caller is about to hear these words, because the language model is slow."""
        self._one_moment = _words(text)

    def first_audio(self, at: float) -> None:
        if not self._by_operator and not self._before_answer:
            self._seen.setdefault("first_audio", at)

    def first_frame(self, at: float) -> None:
        if self._before_answer:
            pass
        elif self._by_operator:
            self._on_answer(None)
        elif "first_frame" not in self._seen:
            self._seen["first_frame"] = at
            self._on_answer(self._measured() if self._turn or "transcript" in self._seen else None)

    @property
    def awaits_answer(self) -> bool:
        """Whether what the agent has said until now only puts the answer off."""
        return bool(self._one_moment) and "first_frame" not in self._seen

    def precedes_answer(self, text: str) -> bool:
        """
        Whether this text of the agent, before or after its audio, is only the words of `one_moment` or some of them.

        The same words in the middle of an answer delay only the rest of it.
        """
        self._before_answer = self._by_operator is None and _words(text) in self._one_moment
        if self._before_answer:
            self._seen.pop("first_audio", None)
            self._seen.pop("first_frame", None)
        return self._before_answer

    def agent_said(self, *, by_operator: bool) -> None:
        """
        A text of the agent, before or after its audio.

        An operator's words are not an answer, and they delay the agent's own: a turn that is followed by them has no
        response time.
        """
        if self._by_operator is None:
            self._by_operator = by_operator
            if by_operator:
                self._seen.pop("first_audio", None)
                self._seen.pop("first_frame", None)

    def reported(self, *, stt: float | None = None, ttt: float | None = None, tts: float | None = None) -> None:
        """
        The engine's figures: audio to text, request to first token, first token to first audio.

        Reports repeat, even in silence, and do not name a turn. The last figure before its stage counts, else the
        first one after it.
        """
        for figure, seconds in (("stt", stt), ("ttt", ttt), ("tts", tts)):
            settled = figure in self._reported and _LEADS_TO[figure] in self._seen
            if seconds is not None and not settled:
                self._reported[figure] = seconds

    def _drop_other_audio(self) -> None:
        """Audio that came before the end of the turn does not answer it."""
        if self._zero is None:
            self._seen.pop("first_audio", None)
            self._seen.pop("first_frame", None)

    def _end_speech(self, at: float, voiced_at: float | None) -> None:
        """Take the last voiced frame if it belongs to this turn and silence follows it."""
        earliest = max(self._ended, self._started - _SLOWEST_START)
        belongs = voiced_at is not None and (earliest < voiced_at <= at - _QUIET or voiced_at == self._unanswered)
        self._voiced = voiced_at if belongs else None
        self._ended = at
        self._by_operator = None

    def _measured(self) -> ResponseTime:
        """From observed times, and those derived from the engine's figures."""
        at = dict(self._seen)
        for unseen, known, figure in (
            ("speech_ended", "transcript", "stt"),
            ("first_token", "first_audio", "tts"),
            ("llm_request", "first_token", "ttt"),
        ):
            if known in at and figure in self._reported:
                at.setdefault(unseen, at[known] - self._reported[figure])
        if self._zero is None and self._voiced is not None:
            self._zero = self._voiced, CountedFrom.VOICE
        elif self._zero is None:
            is_reported = "speech_ended" in at
            self._zero = (
                at["speech_ended" if is_reported else "transcript"],
                (CountedFrom.ENGINE if is_reported else CountedFrom.TRANSCRIPT),
            )
        zero, counted_from = self._zero
        if at.get("speech_ended", zero) <= zero:
            at.pop("speech_ended", None)
        if counted_from is CountedFrom.TRANSCRIPT:
            del at["transcript"]
        seconds = {stage: round(at[stage] - zero, _DIGITS) for stage in STAGES if stage in at}
        return ResponseTime(**seconds, counted_from=counted_from)


def _words(text: str) -> str:
    """The words alone, each between spaces: engines change the punctuation."""
    return "".join([" ", *(f"{word} " for word in re.findall(r"\w+", text.casefold()))])
