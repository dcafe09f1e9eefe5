"""
A soft sound or a short phrase while the agent thinks. No clock, no socket: times are given.

The sound is sent in small pieces, so that little is queued at the carrier when it has to stop. It is not part of an
answer and not counted in `Playout`. A phrase is said by the engine and comes back from it like an answer; `takes` and
`saying` separate the two.
"""

import enum
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from gateway.agents import FillerSettings
from gateway.audio import BYTES_PER_SECOND, FRAME_BYTES, seconds_of

QUEUED_SECONDS: Final = 0.25
"""The most audio queued at the carrier: more than two ticks, too little to notice."""
LONGEST_SECONDS: Final = 20.0
"""After this time the sound would annoy."""


NO_FILLER: Final = FillerSettings(after=math.inf)


class _State(enum.Enum):
    QUIET = enum.auto()
    WAITING = enum.auto()  # the caller has finished, the answer has not begun
    PLAYING = enum.auto()  # the sound plays, the answer has not begun
    SAYING = enum.auto()  # what the engine says next is our phrase
    OVER = enum.auto()


# Compared for every frame: a module global is found faster than a member of the class.
_QUIET, _WAITING, _PLAYING, _SAYING, _OVER = _State


class Filler:
    """
    Fills the time between the caller's turn and the answer, if it is longer than `after`.

    Phrases are used in turn, one for each turn of the caller. Without phrases the sound is repeated. `stop` is called
    once each time the sound has begun, before anything else may play.
    """

    def __init__(
        self,
        after: float,
        sound: bytes | None,
        phrases: Sequence[str],
        *,
        play: Callable[[bytes], None],
        say: Callable[[str], None],
        stop: Callable[[], None],
        longest: float = LONGEST_SECONDS,
    ) -> None:
        self._after = after
        self._sound = sound or b""
        self._phrases = itertools.cycle(phrases)
        self._play = play
        self._say = say
        self._stop = stop
        self._longest = longest
        self._state = _QUIET
        self._due = 0.0
        self._played = 0
        self._queued_until = self._ends = 0.0
        self._unsaid = ""

    # From the call

    def caller_finished(self, now: float) -> None:
        if self._state is _QUIET:
            self._state = _WAITING
            self._due = now + self._after

    def caller_speaks(self) -> None:
        """Stop what is playing, and do not wait for a phrase that has not arrived."""
        self._unsaid = ""
        self.stop_playing()

    def stop_playing(self) -> None:
        """The answer begins: stop what is playing. Cheap, may be repeated; not to be called while `saying`."""
        was_playing = self._state is _PLAYING
        if self._state is not _OVER:
            self._state = _QUIET
        if was_playing:
            self._stop()

    def call_over(self) -> None:
        self.stop_playing()
        self._state = _OVER

    def tick(self, now: float) -> None:
        """Called several times a second."""
        if self._state is _WAITING and now >= self._due:
            if phrase := next(self._phrases, ""):
                self._state = _SAYING
                self._unsaid = phrase
                self._say(phrase)
            elif self._sound:
                self._state = _PLAYING
                self._played = 0
                self._queued_until, self._ends = now, now + self._longest
        if self._state is _PLAYING:  # stay slightly ahead of playout; a carrier that has run dry continues from now
            self._queued_until = max(self._queued_until, now)
            wanted = min(now + QUEUED_SECONDS, self._ends) - self._queued_until
            frames = int(wanted * BYTES_PER_SECOND / FRAME_BYTES)
            if frames > 0:
                size, start = frames * FRAME_BYTES, self._played % len(self._sound)
                self._played += size
                self._queued_until += seconds_of(size)
                self._play((self._sound[start:] + self._sound * (size // len(self._sound) + 1))[:size])

    # From the engine

    @property
    def saying(self) -> bool:
        """Whether the engine's audio is our phrase, and not part of an answer."""
        return self._state is _SAYING

    def takes(self, text: str) -> bool:
        """The agent says this text. Returns whether it is our phrase, or the next sentence of it."""
        if not self._unsaid.startswith(text):
            if self.saying:
                self._state = _QUIET  # the answer came first, or follows
            return False
        self._unsaid = self._unsaid.removeprefix(text).lstrip()
        if self._state is not _OVER:
            self._state = _SAYING
        return True

    def phrase_over(self) -> None:
        """The agent has finished an utterance, or the engine has refused our phrase."""
        if self.saying:
            self._state = _QUIET
