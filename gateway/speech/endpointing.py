"""
Detects the start and the end of a caller's turns. Speech probabilities in, boundaries out; no clock.

How much silence ends a turn depends on its text and on how this caller pauses: a complete sentence is answered soon, an
incomplete one later.
"""

import enum
import math
import re
from typing import Final

FRAME_SECONDS: Final = 0.032

_START_PROBABILITY: Final = 0.5
_RESUME_PROBABILITY: Final = 0.4  # lower, so that soft endings are not cut off
_START_FRAMES: Final = 3
"""About 0.1 s of probable speech: the agent stops speaking within 0.2 s."""
_RESUME_FRAMES: Final = 2
_PAUSE_FRAMES: Final = 5
"""After 0.16 s of silence transcription begins."""

COMPLETE: Final = 0.35
OPEN: Final = 0.50
CLAUSE: Final = 0.75
DICTATING: Final = 0.90
INCOMPLETE: Final = 1.00
"""
Silence that ends a turn, in seconds, by how its text ends.

Measured with human recordings, as are the words below (python -m scripts.speech_bench turns). A model that listens to
intonation (Smart Turn 3.2) cut callers off more often by itself, and about as often together with these rules.
"""
ASKED: Final = 1.50
ASKED_DICTATING: Final = 2.00
"""The same after a question for a number, a spelling or an address: for other answers, and for those that may go on."""
DICTATION: Final = "dictation"
_PATIENCE: Final = {"short": 0.8, "long": 1.8}
"""By how much an agent's `patience` changes them."""
_MAX_HABIT: Final = 0.60
_HABIT_FACTOR: Final = 1.1

_OPEN_ENDED_WORDS: Final = frozenset(
    "a although am an and are as at because between but by dash dot during every for from he'd he'll he's her his "
    "hyphen i i'd i'll i'm i've if in into is it's its let's like my no, nor of on onto or our per she'd she'll "
    "she's slash so than that that's the their then there's they'd they'll they're they've to toward towards uh "
    "um er underscore unless until upon very via was we we'd we'll we're we've well, were what when where whether "
    "which who whose will with without would you'd you'll you're you've your".split()
)
_LAST_WORD: Final = re.compile(r"([\w',-]+)[^\w]*$")
_ENDS_IN_DIGITS: Final = re.compile(r"(\d[\d -]*|\b(zero|one|two|three|four|five|six|seven|eight|nine))[.,]?$", re.I)
_ENDS_IN_LETTERS: Final = re.compile(r"(^|\b[a-z]\b[\W_]+(\w+\W+)?)[a-z]\W*$", re.I)
"""A letter alone, or one of several in the last three words: a caller who spells."""
_CLAUSE: Final = re.compile(
    r"(^|[.?!] )(after|although|because|before|if|once|since|to|unless|until|when|while)\b[^,?!.]*\.?$", re.I
)
"""A sentence that is a subordinate clause so far: "If I come on Monday.\""""


class TurnBoundary(enum.Enum):
    STARTED = enum.auto()
    PAUSED = enum.auto()
    """Long enough to transcribe the turn so far; the caller may go on."""
    RESUMED = enum.auto()


class TurnDetector:
    """The turns of one caller, from the speech probability of each frame."""

    def __init__(self) -> None:
        self.speaking = False
        self.silence = 0.0
        """Since the last speech in this turn, in seconds."""
        self.voiced_frames = 0
        """Frames with speech in this turn."""
        self._run = 0
        self._habit = 0.0
        """The longest recent pause within a turn."""
        self.patience = "normal"
        self._between = math.inf
        """Since the last speech of the previous turn."""

    def feed(self, probability: float) -> TurnBoundary | None:
        return self._in_turn(probability) if self.speaking else self._between_turns(probability)

    def end_turn(self) -> None:
        self.speaking = False
        self._between = self.silence
        self.silence, self.voiced_frames, self._run = 0.0, 0, 0

    def required_silence(self, text: str) -> float:
        """The silence after which a turn of this caller with this text is complete."""
        silence = silence_after(text)
        if self.patience != DICTATION:
            silence *= _PATIENCE.get(self.patience, 1.0)
        else:  # how many digits there are is not certain enough to end it sooner
            silence = ASKED_DICTATING if silence >= DICTATING else ASKED
        return max(silence, min(self._habit * _HABIT_FACTOR, _MAX_HABIT))

    def _between_turns(self, probability: float) -> TurnBoundary | None:
        self._run = self._run + 1 if probability >= _START_PROBABILITY else max(0, self._run - 1)
        self._between += FRAME_SECONDS
        if self._run < _START_FRAMES:
            return None
        pause = self._between - self._run * FRAME_SECONDS
        if pause < _MAX_HABIT:  # the caller had not finished: wait longer from now on
            self._habit = max(pause, self._habit)
        self.speaking, self.silence = True, 0.0
        self.voiced_frames, self._run = self._run, 0
        return TurnBoundary.STARTED

    def _in_turn(self, probability: float) -> TurnBoundary | None:
        self._run = self._run + 1 if probability >= _RESUME_PROBABILITY else 0
        if not self._run or (self._run < _RESUME_FRAMES and self.silence):  # a click in a pause is not speech
            self.silence += FRAME_SECONDS
            return TurnBoundary.PAUSED if round(self.silence / FRAME_SECONDS) == _PAUSE_FRAMES else None
        self.voiced_frames += 1
        pause, self.silence = self.silence, 0.0
        if pause < _PAUSE_FRAMES * FRAME_SECONDS:
            return None
        self._habit = max(pause, self._habit * 0.9)
        return TurnBoundary.RESUMED


def silence_after(text: str) -> float:
    """The silence that ends a turn with this text, for a caller with unknown habits."""
    if _ENDS_IN_DIGITS.search(text):
        return DICTATING
    last = _LAST_WORD.search(text.lower())
    if last is None:
        return OPEN
    if last[1] in _OPEN_ENDED_WORDS or text.rstrip().endswith((",", "-", "…", "...")):
        return INCOMPLETE
    if _ENDS_IN_LETTERS.search(text):
        return DICTATING
    if _CLAUSE.search(text):
        return CLAUSE
    return COMPLETE if text.rstrip().endswith((".", "?", "!")) else OPEN
