"""Word error rate: the share of spoken words that were recognized wrongly, missed or added."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.text.redaction import spoken_numbers


@dataclass(frozen=True)
class WordError:
    """Errors and reference words of any number of sentences."""

    errors: int
    words: int

    @property
    def share(self) -> float:
        return self.errors / self.words if self.words else 0.0

    def __add__(self, other: "WordError") -> "WordError":
        return WordError(self.errors + other.errors, self.words + other.words)

    def __str__(self) -> str:
        return f"{self.share:.1%} ({self.errors} of {self.words} words)"


def word_error(said: str, heard: str) -> WordError:
    """Ignores case, punctuation, and whether numbers are written as digits."""
    reference = normalised(said)
    return WordError(_distance(reference, normalised(heard)), len(reference))


def normalised(text: str) -> list[str]:
    """The words of a text; a number becomes its single digits."""
    spelled, at = "", 0
    for number in spoken_numbers(text):
        spelled += f"{text[at : number.start]} {' '.join(number.digits)} "
        at = number.end
    joined = re.sub(r"\bgood[- ]bye\b", "goodbye", (spelled + text[at:]).lower())
    return re.findall(r"[a-z]+(?:'[a-z]+)?|\d", joined.replace("’", "'"))


def _distance(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Levenshtein distance in words."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(reference, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(before + (word != other), row[place] + 1, row[place - 1] + 1)
    return row[-1]
