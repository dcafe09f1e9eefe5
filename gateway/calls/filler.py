"""
Something soft to hear while the agent thinks: a sound, or a short phrase. No clock, no socket: times are given.

The sound is sent a little at a time, so that hardly any is queued at the carrier when it has to stop. It is no part of
an answer and is not counted in `Playback`. A phrase is said by the engine and comes back from it like an answer:
`takes` and `saying` tell the two apart.
"""

import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Final

from gateway.audio import BYTES_PER_SECOND, FRAME_BYTES, seconds_of

QUEUED_SECONDS: Final = 0.25
"""The most of the sound that waits at the carrier: more than two ticks, less than anybody notices."""
LONGEST_SECONDS: Final = 20.0
"""After so long the sound itself would be a nuisance."""


class _State(enum.Enum):
    QUIET = enum.auto()
    WAITING = enum.auto()  # the caller has finished, and nothing was spoken yet
    PLAYING = enum.auto()  # the sound was begun, and nothing was spoken yet
    SAYING = enum.auto()  # what the engine says next is our phrase
    OVER = enum.auto()


# Asked for with every frame: to find one in its class takes longer than to compare it.
_QUIET, _WAITING, _PLAYING, _SAYING, _OVER = _State


class Filler:
    """
    Fills the time between the caller's turn and the answer, if it is longer than `after`.

    Phrases are taken in turn, one for each turn of the caller. Where there are none the sound is repeated. `stop` is
    called once for each time the sound was begun, and before anything else may sound.
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

    # What happens in the call

    def caller_finished(self, now: float) -> None:
        if self._state is _QUIET:
            self._state = _WAITING
            self._due = now + self._after

    def caller_speaks(self) -> None:
        """The caller speaks: what was playing stops, and a phrase that has not come yet will not come."""
        self._unsaid = ""
        self._hush()

    def agent_speaks(self) -> None:
        """The answer is about to sound. Cheap, and safe to repeat; not to be called while `saying`."""
        self._hush()

    def call_over(self) -> None:
        self._hush()
        self._state = _OVER

    def tick(self, now: float) -> None:
        """Called several times a second."""
        if self._state is _WAITING and now >= self._due:
            self._begin(now)
        if self._state is _PLAYING:
            self._call_events(now)

    # What the engine makes of a phrase

    @property
    def saying(self) -> bool:
        """Whether the sound that comes from the engine is our phrase, and no part of an answer."""
        return self._state is _SAYING

    def takes(self, text: str) -> bool:
        """The agent says this text. Whether it is our phrase, or the next sentence of it."""
        if not self._unsaid.startswith(text):
            if self.saying:
                self._state = _QUIET  # the answer came first, or follows
            return False
        self._unsaid = self._unsaid.removeprefix(text).lstrip()
        if self._state is not _OVER:
            self._state = _SAYING
        return True

    def phrase_over(self) -> None:
        """The agent has finished an utterance, or refused to say what it was told to."""
        if self.saying:
            self._state = _QUIET

    # Itself

    def _begin(self, now: float) -> None:
        if phrase := next(self._phrases, ""):
            self._state = _SAYING
            self._unsaid = phrase
            self._say(phrase)
        elif self._sound:
            self._state = _PLAYING
            self._played = 0
            self._queued_until, self._ends = now, now + self._longest

    def _call_events(self, now: float) -> None:
        """Stay a little ahead of what is played. A carrier that has run dry goes on from now: it never catches up."""
        self._queued_until = max(self._queued_until, now)
        wanted = min(now + QUEUED_SECONDS, self._ends) - self._queued_until
        frames = int(wanted * BYTES_PER_SECOND / FRAME_BYTES)
        if frames > 0:
            stretch = self._next_stretch(frames * FRAME_BYTES)
            self._queued_until += seconds_of(len(stretch))
            self._play(stretch)

    def _next_stretch(self, size: int) -> bytes:
        start = self._played % len(self._sound)
        self._played += size
        return (self._sound[start:] + self._sound * (size // len(self._sound) + 1))[:size]

    def _hush(self) -> None:
        was_playing = self._state is _PLAYING
        if self._state is not _OVER:
            self._state = _QUIET
        if was_playing:
            self._stop()
