"""Joins pieces of speech: decides about the spaces, commas and full stops between them."""

from enum import Enum
from typing import Final

_SPACES: Final = " \t"
_OPENING: Final = "([{\"'“‘«¿¡"
_CLOSING: Final = ")]}\"'”’»"
_PUNCTUATION: Final = ".,;:!?…。，；：！？、।؟"
_NO_SPACE_BEFORE: Final = ".,;:!?)]}"
_LONGEST_GAP: Final = 200
_REMEMBERED: Final = 8  # characters; a full stop looks for punctuation before a few quotes and brackets


class SentenceJoint(Enum):
    """What was between the last word and the next, besides white space."""

    REMOVED = ""
    COMMA = ","
    BREAK = "."
    """A full stop, but a comma if the sentence goes on."""


class SpokenJoiner:
    """Collects spoken text. What goes before a word is decided when the word arrives."""

    def __init__(self) -> None:
        self._output: list[str] = []
        self._end = ""
        # White space before the next word: exact, unless there is a joint.
        self._gap = ""
        self._joint: SentenceJoint | None = None

    @property
    def left(self) -> str:
        """The last character, and a space if one follows it. Empty at the start of a line."""
        if not self._end or "\n" in self._gap:
            return ""
        return self._end[-1] + (" " if self._gap else "")

    def say(self, text: str) -> None:
        """Add text literally."""
        if self._joint is not None:
            text = self._joined(text, self._joint)
        body = text.rstrip(_SPACES)
        if body:
            self._output.append(self._gap + body)
            self._end = (self._end + self._gap + body)[-_REMEMBERED:]
            self._gap = ""
        self._gap = (self._gap + text[len(body) :])[:_LONGEST_GAP]

    def say_apart(self, word: str) -> None:
        """Add a word with a space on both sides."""
        if self.left and self.left not in _OPENING and not self._gap:
            self._gap = " "
        self.say(word)
        self._gap, self._joint = " ", SentenceJoint.REMOVED

    def leave_out(self) -> None:
        """Note an omission: its neighbours are separated by one space at most, and do not run together."""
        self._joint = self._joint or SentenceJoint.REMOVED

    def pause(self, joint: SentenceJoint) -> None:
        if self.left and self._joint is not SentenceJoint.BREAK:
            self._gap, self._joint = " ", joint
        else:
            self.leave_out()

    def end_line(self, *, full_stop: bool) -> None:
        """End the line. With `full_stop`, or at the end of a paragraph, end the sentence too."""
        if full_stop or "\n" in self._gap or self._joint is SentenceJoint.BREAK:
            self._stop()
        self._gap = (self._gap.strip(_SPACES) + "\n")[:_LONGEST_GAP]
        self._joint = None

    def begin_item(self) -> None:
        """Start a list item on this line: the text before it is a sentence."""
        self._stop()
        self._gap = self._gap.replace(" ", "").replace("\t", "")
        self._joint = None

    def finish(self) -> None:
        """End the text."""
        if self._joint is SentenceJoint.BREAK:
            self._stop()
        elif self._joint is None:
            self._output.append(self._gap)

    def take(self) -> str:
        """The text since the last call."""
        text = "".join(self._output)
        self._output.clear()
        return text

    def _stop(self) -> None:
        sentence = self._end.rstrip(_CLOSING + _SPACES)
        if sentence and sentence[-1] not in _PUNCTUATION:
            self._output.append(".")
            self._end = (self._end + ".")[-_REMEMBERED:]

    def _joined(self, text: str, joint: SentenceJoint) -> str:
        """Decide about the gap before a text. Returns the rest of the text; empty while it is only spaces."""
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
