"""
How much of the agent's speech the caller has heard, by the carrier's marks. No clock, no socket.

Positions count all bytes ever sent on the stream. A mark stands at the position after which it was sent; its echo
says that everything before has been played, unless a clear flushed it.
"""

from dataclasses import dataclass, field
from typing import Final

MARK_BYTES: Final = 3200
"""Sound between two marks: 400 ms, about one word. What is heard is known this exactly."""

_BYTES_PER_CHARACTER: Final = 530
"""Speech at 15 characters a second; only to guess the length of a sentence whose sound is not all here yet."""


class Playout:
    """The carrier's queue, as we know it."""

    def __init__(self) -> None:
        self.sent = 0
        self.confirmed = 0
        self.marks_work = False
        """Whether the carrier has ever echoed a mark. One that never does tells us nothing about what was heard."""
        self._pending: dict[str, int] = {}
        self._marked = 0
        self._count = 0

    def audio_sent(self, size: int) -> None:
        self.sent += size

    def mark_due(self) -> bool:
        return self.sent - self._marked >= MARK_BYTES

    @property
    def unmarked(self) -> bool:
        """Whether sound was sent after the last mark."""
        return self.sent > self._marked

    def next_mark(self) -> str:
        """The name of a mark to send now."""
        self._count += 1
        name = f"m{self._count}"
        self._pending[name] = self._marked = self.sent
        return name

    def mark_reached(self, name: str) -> bool:
        """Take an echo. False if it says nothing: unknown, or flushed by a clear."""
        position = self._pending.pop(name, None)
        if position is None:
            return False
        self.marks_work = True
        self.confirmed = max(self.confirmed, position)
        return True

    def cleared(self) -> None:
        """Everything queued was dropped. Its marks are echoed all the same, and prove nothing."""
        self._pending.clear()
        self._marked = self.sent


@dataclass
class AgentUtterance:
    """One answer of the agent as it is being spoken: pieces of text, and the sound between them."""

    start: int
    """Position of its first sound in the stream."""
    pieces: list[tuple[int, str]] = field(default_factory=list)
    """Text, with how many bytes of this answer had been sent when it came."""
    sent: int = 0
    done: bool = False

    def said(self, text: str) -> None:
        self.pieces.append((self.sent, text))

    @property
    def text(self) -> str:
        return " ".join(text for _, text in self.pieces)

    @property
    def pieces_have_sound(self) -> bool:
        """Whether there was sound between any two of them. Of those that came together, one may have none yet."""
        offsets = [offset for offset, _ in self.pieces]
        return len(set(offsets)) == len(offsets)

    def split_at(self, heard_bytes: int) -> tuple[str, str]:
        """The text up to what was heard, and the rest. A word that was begun counts as unheard."""
        heard, unheard = [], []
        for start, end, text in self._spans():
            cut = _word_boundary(text, (heard_bytes - start) / max(end - start, 1))
            heard.append(text[:cut])
            unheard.append(text[cut:])
        return _joined(heard), _joined(unheard)

    def _spans(self) -> list[tuple[int, int, str]]:
        """
        Each piece with the sound that belongs to it.

        Usually text comes when its sound begins. Where sound came first (a greeting), or pieces came together, text
        can't be told apart by position and is spread over the whole.
        """
        if not self.pieces:
            return []
        starts = [offset for offset, _ in self.pieces]
        if starts[0] > 0 or not self.pieces_have_sound:
            return [(0, self._end(0, self.text), self.text)]
        ends = [*starts[1:], self._end(starts[-1], self.pieces[-1][1])]
        return [(start, end, text) for (start, text), end in zip(self.pieces, ends, strict=True)]

    def _end(self, start: int, text: str) -> int:
        return self.sent if self.done else max(self.sent, start + len(text) * _BYTES_PER_CHARACTER)


def _word_boundary(text: str, share: float) -> int:
    if share >= 1:
        return len(text)
    return text.rfind(" ", 0, int(max(share, 0) * len(text)) + 1) + 1


def _joined(parts: list[str]) -> str:
    return " ".join(part.strip() for part in parts if part.strip())
