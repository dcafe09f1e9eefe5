"""What a voice says, put together from pieces: here the spaces, commas and full stops between them are settled."""

from enum import Enum
from typing import Final

_SPACES: Final = " \t"
_OPENING: Final = "([{\"'“‘«¿¡"
_CLOSING: Final = ")]}\"'”’»"
_PUNCTUATION: Final = ".,;:!?…。，；：！？、।؟"
_NO_SPACE_BEFORE: Final = ".,;:!?)]}"
_LONGEST_GAP: Final = 200
_REMEMBERED: Final = 8  # characters: a stop looks for punctuation behind a few quotes and brackets


class SentenceJoint(Enum):
    """What was between the last word and the next, beside white space."""

    REMOVED = ""
    COMMA = ","
    BREAK = "."
    """A full stop, but a comma where the sentence goes on."""


class SpokenJoiner:
    """Collects what is said. What stands before a word is settled when the word comes."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._end = ""
        # White space before the next word: exact, unless there is a joint.
        self._gap = ""
        self._joint: SentenceJoint | None = None

    @property
    def left(self) -> str:
        """The last character said, and a space if there is one now. Empty at the start of a line."""
        if not self._end or "\n" in self._gap:
            return ""
        return self._end[-1] + (" " if self._gap else "")

    def say(self, text: str) -> None:
        """Say this as it stands."""
        if self._joint is not None:
            text = self._joined(text, self._joint)
        body = text.rstrip(_SPACES)
        if body:
            self._said.append(self._gap + body)
            self._end = (self._end + self._gap + body)[-_REMEMBERED:]
            self._gap = ""
        self._gap = (self._gap + text[len(body) :])[:_LONGEST_GAP]

    def say_apart(self, word: str) -> None:
        """Say this with a space on both sides."""
        if self.left and self.left not in _OPENING and not self._gap:
            self._gap = " "
        self.say(word)
        self._gap, self._joint = " ", SentenceJoint.REMOVED

    def leave_out(self) -> None:
        """Something is left out here: its neighbours must not run together, and keep no more than one space."""
        self._joint = self._joint or SentenceJoint.REMOVED

    def pause(self, joint: SentenceJoint) -> None:
        if self.left and self._joint is not SentenceJoint.BREAK:
            self._gap, self._joint = " ", joint
        else:
            self.leave_out()

    def end_line(self, *, full_stop: bool) -> None:
        """The line ends; with a full stop, or as a paragraph, its last sentence does too."""
        if full_stop or "\n" in self._gap or self._joint is SentenceJoint.BREAK:
            self._stop()
        self._gap = (self._gap.strip(_SPACES) + "\n")[:_LONGEST_GAP]
        self._joint = None

    def begin_item(self) -> None:
        """A list item or the like starts on this line: what came before it is a sentence."""
        self._stop()
        self._gap = self._gap.replace(" ", "").replace("\t", "")
        self._joint = None

    def finish(self) -> None:
        """No word comes any more."""
        if self._joint is SentenceJoint.BREAK:
            self._stop()
        elif self._joint is None:
            self._said.append(self._gap)

    def take(self) -> str:
        """What was said since the last time."""
        said = "".join(self._said)
        self._said.clear()
        return said

    def _stop(self) -> None:
        sentence = self._end.rstrip(_CLOSING + _SPACES)
        if sentence and sentence[-1] not in _PUNCTUATION:
            self._said.append(".")
            self._end = (self._end + ".")[-_REMEMBERED:]

    def _joined(self, text: str, joint: SentenceJoint) -> str:
        """Settles the gap before a text and returns the rest of it; empty while only spaces have come."""
        words = text.lstrip(_SPACES)
        if words != text and not self._gap:
            self._gap = " "
        if not words:
            return ""
        if not self._end or words[0] in _NO_SPACE_BEFORE:
            self._gap = self._gap.strip(_SPACES)
        elif joint is not SentenceJoint.REMOVED and self._end[-1] not in _PUNCTUATION:
            self._gap = ", " if words[0].islower() else f"{joint.value} "
        elif not self._gap and self._end[-1].isalnum() and words[0].isalnum():
            self._gap = " "
        self._joint = None
        return words
