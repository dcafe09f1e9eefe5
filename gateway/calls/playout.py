"""
How much of the agent's speech the caller has heard, by the carrier's marks. No clock, no socket: times are given.

Positions count all bytes sent on the stream. The carrier echoes a mark when everything sent before it has been played,
and also when a clear has flushed it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.audio import BYTES_PER_SECOND
from gateway.engines.interface import WordEnd

MARK_BYTES: Final = 3200
"""Audio between two marks: 400 ms, about one word. This is how exactly playout is known where words have no times."""

_BYTES_PER_CHARACTER: Final = 530
"""Speech at 15 characters a second, to estimate the length of a sentence whose audio has not all arrived."""


class Playout:
    """The carrier's queue, as far as marks show it."""

    __slots__ = (  # used for each frame
        "_count _drained _known_at _marked _pending confirmed marks_work sent"
    ).split()

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.marks_work = False
        """Whether the carrier has ever echoed a mark. Without echoes playout is unknown."""
        self._pending: dict[str, int] = {}
        self._marked = 0
        self._count = 0
        self._drained = 0
        """Up to here nothing is queued any more."""
        self._known_at = (0, 0.0)
        """A position, and when the carrier was there."""

    def audio_sent(self, size: int, now: float) -> bool:
        """Returns whether a mark is due."""
        if self.sent == self._drained:
            self._known_at = (self.sent, now)
        self.sent += size
        return self.sent - self._marked >= MARK_BYTES

    @property
    def is_pending(self) -> bool:
        """Whether the carrier has not yet played everything up to the last mark."""
        return bool(self._pending)

    @property
    def is_played_out(self) -> bool:
        """Whether the carrier is known to have played everything."""
        return self.marks_work and self.confirmed >= self.sent

    @property
    def unmarked(self) -> bool:
        """Whether audio was sent after the last mark."""
        return self.sent > self._marked

    def next_mark(self) -> str:
        """The name of the mark to send now."""
        self._count += 1
        name = f"m{self._count}"
        self._pending[name] = self._marked = self.sent
        return name

    def mark_reached(self, name: str, now: float) -> bool:
        """Process an echo. Returns False if it proves nothing: unknown, or flushed by a clear."""
        position = self._pending.pop(name, None)
        if position is None:
            return False
        self.marks_work = True
        self.confirmed = self._drained = max(self.confirmed, position)
        self._known_at = (self.confirmed, now)
        return True

    def played(self, now: float) -> int:
        """What is confirmed, and what a carrier plays in the time since; never beyond a mark that is still to come."""
        position, at = self._known_at
        limit = next(iter(self._pending.values()), self.sent)
        return max(self.confirmed, min(position + round((now - at) * BYTES_PER_SECOND), limit))

    def cleared(self) -> None:
        """Everything queued was dropped. Its marks are still echoed, and prove nothing."""
        self._pending.clear()
        self._marked = self._drained = self.sent


@dataclass
class SpokenPiece:
    """A text of an answer."""

    offset: int
    """Bytes of the answer that were sent before the text arrived."""
    text: str
    words: list[WordEnd] = field(default_factory=list)
    """Where its words end, from voices that report it."""

    def heard_characters(self, heard_bytes: int, end: int) -> int:
        """How much of the text was played, if its audio reaches to `end`. A word that was interrupted is unheard."""
        heard, size = heard_bytes - self.offset, max(end - self.offset, 1)
        if self.words and heard < size:
            return max((word.characters for word in self.words if word.audio_bytes <= heard), default=0)
        return _word_boundary(self.text, heard / size)


@dataclass(slots=True)
class AgentUtterance:
    """One answer while it is spoken: pieces of text, and the audio between them."""

    start: int
    """Position of its first byte in the stream."""
    pieces: list[SpokenPiece] = field(default_factory=list)
    sent: int = 0
    done: bool = False
    stopped: bool = False
    """Whether the engine has stopped sending it before its end, because the caller began to speak."""

    def said(self, text: str) -> None:
        self.pieces.append(SpokenPiece(self.sent, text))

    def words_timed(self, ends: Sequence[WordEnd]) -> None:
        if self.pieces:
            self.pieces[-1].words += ends

    @property
    def has_word_times(self) -> bool:
        """Whether it is known where words of the last text end."""
        return bool(self.pieces) and bool(self.pieces[-1].words)

    def word_ends(self, size: int) -> set[int]:
        """Where words of the last text end within the next `size` bytes of audio."""
        if not self.has_word_times:
            return set()
        at = self.sent - self.pieces[-1].offset
        return {word.audio_bytes - at for word in self.pieces[-1].words if 0 < word.audio_bytes - at <= size}

    @property
    def text(self) -> str:
        return " ".join(piece.text for piece in self.pieces)

    @property
    def pieces_have_sound(self) -> bool:
        """Whether audio was sent between any two pieces. Pieces that arrive together may lack their audio."""
        offsets = [piece.offset for piece in self.pieces]
        return len(set(offsets)) == len(offsets)

    def split_at(self, heard_bytes: int) -> tuple[str, str]:
        """The heard text and the rest. A word that was interrupted counts as unheard."""
        heard, unheard = [], []
        for piece, end in self._spans():
            cut = piece.heard_characters(heard_bytes, end)
            heard.append(piece.text[:cut])
            unheard.append(piece.text[cut:])
        return _joined(heard), _joined(unheard)

    def _spans(self) -> list[tuple[SpokenPiece, int]]:
        """
        Each piece with the end of its audio.

        Usually text arrives when its audio begins. If audio came first (a greeting), or pieces came together, the
        positions mean nothing and the text is spread over all audio.
        """
        if not self.pieces:
            return []
        if self.pieces[0].offset > 0 or not self.pieces_have_sound:
            return [(SpokenPiece(0, self.text), self._end(0, self.text))]
        ends = [*(piece.offset for piece in self.pieces[1:]), self._end(self.pieces[-1].offset, self.pieces[-1].text)]
        return list(zip(self.pieces, ends, strict=True))

    def _end(self, start: int, text: str) -> int:
        return self.sent if self.done else max(self.sent, start + len(text) * _BYTES_PER_CHARACTER)


def _word_boundary(text: str, share: float) -> int:
    if share >= 1:
        return len(text)
    return text.rfind(" ", 0, int(max(share, 0) * len(text)) + 1) + 1


def _joined(parts: list[str]) -> str:
    return " ".join(part.strip() for part in parts if part.strip())
