"""
When a caller has begun to speak, pauses, goes on, and has finished. Frames in, moments out; no clock.

How long a silence ends a turn depends on what was said so far and on how this caller pauses: a complete sentence is
answered soon, one that hangs in the air is waited for.
"""

import enum
import math
import re
from typing import Final

FRAME_SECONDS: Final = 0.032

_BEGINS_AT: Final = 0.5
_GOES_ON_AT: Final = 0.4  # likelihood of speech; lower, so that soft endings are not cut
_FRAMES_TO_BEGIN: Final = 3
"""About 0.1 s of likely speech: an agent that speaks falls silent within 0.2 s."""
_FRAMES_TO_GO_ON: Final = 2
_PAUSE_FRAMES: Final = 5
"""After 0.16 s of silence it is worth finding out what was said."""

COMPLETE: Final = 0.35
OPEN: Final = 0.50
DICTATING: Final = 0.75
HANGING: Final = 1.00
"""Silence after which a turn is over, in seconds, by how its text ends."""
_LONGEST_HABIT: Final = 0.60
_HABIT_FACTOR: Final = 1.1

_HANGING_WORDS: Final = frozenset(
    "a an and are as at because but by for from her his i if in is it's like my no, of on or our so than that the "
    "their then to uh um er was we well, were what when where which who will with would your".split()
)
_LAST_WORD: Final = re.compile(r"([\w',-]+)[^\w]*$")
_ENDS_IN_DIGITS: Final = re.compile(r"(\d[\d -]*|\b(zero|one|two|three|four|five|six|seven|eight|nine))[.,]?$", re.I)


class TurnBoundary(enum.Enum):
    """What a frame has brought."""

    BEGAN = enum.auto()
    PAUSED = enum.auto()
    """Long enough to look at the text; the caller may go on."""
    WENT_ON = enum.auto()


class TurnDetector:
    """One caller's turns, by the likelihood of speech in each frame."""

    def __init__(self) -> None:
        self.speaking = False
        self.silence = 0.0
        """Since the caller was last heard in this turn, in seconds."""
        self.voiced_frames = 0
        """Frames with speech in this turn."""
        self._run = 0
        self._habit = 0.0
        self._between = math.inf
        """Since the caller was last heard, in the turn before."""

    def hear(self, probability: float) -> TurnBoundary | None:
        return self._in_turn(probability) if self.speaking else self._between_turns(probability)

    def over(self) -> None:
        """This turn is complete."""
        self.speaking = False
        self._between = self.silence
        self.silence, self.voiced_frames, self._run = 0.0, 0, 0

    def patience(self, text: str) -> float:
        """How long a silence means that a turn with this text is complete."""
        return max(wait_after(text), min(self._habit * _HABIT_FACTOR, _LONGEST_HABIT))

    def _between_turns(self, probability: float) -> TurnBoundary | None:
        self._run = self._run + 1 if probability >= _BEGINS_AT else max(0, self._run - 1)
        self._between += FRAME_SECONDS
        if self._run < _FRAMES_TO_BEGIN:
            return None
        pause = self._between - self._run * FRAME_SECONDS
        if pause < _LONGEST_HABIT:  # the caller had not finished: more patience from now on
            self._habit = max(pause, self._habit)
        self.speaking, self.silence = True, 0.0
        self.voiced_frames, self._run = self._run, 0
        return TurnBoundary.BEGAN

    def _in_turn(self, probability: float) -> TurnBoundary | None:
        self._run = self._run + 1 if probability >= _GOES_ON_AT else 0
        if not self._run or (self._run < _FRAMES_TO_GO_ON and self.silence):  # a click in a pause is no speech
            self.silence += FRAME_SECONDS
            return TurnBoundary.PAUSED if round(self.silence / FRAME_SECONDS) == _PAUSE_FRAMES else None
        self.voiced_frames += 1
        pause, self.silence = self.silence, 0.0
        if pause < _PAUSE_FRAMES * FRAME_SECONDS:
            return None
        self._habit = max(pause, self._habit * 0.9)
        return TurnBoundary.WENT_ON


def wait_after(text: str) -> float:
    """The silence that ends a turn with this text, for a caller of whom nothing is known."""
    if _ENDS_IN_DIGITS.search(text):
        return DICTATING
    last = _LAST_WORD.search(text.lower())
    if last is None:
        return OPEN
    if last[1] in _HANGING_WORDS or text.rstrip().endswith((",", "-", "…", "...")):
        return HANGING
    return COMPLETE if text.rstrip().endswith((".", "?", "!")) else OPEN
