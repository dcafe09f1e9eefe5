"""
Whether two names mean the same topic: by their words, in English, and by their vectors where there is a model.

In doubt two topics are kept apart, unless all distinctive words of one name are in the other.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gateway.memory.embeddings.vectors import Vectors

SAME_WORDS: Final = 0.6
"""The share of common words from which two names mean the same topic."""
LIKE: Final = 0.75
"""The cosine from which two names with a common word mean the same. Kitchen and bathroom renovation have 0.70."""
ALIKE: Final = 0.85
"""The same for names without a common word."""

# Words for the same kind of matter, on one line each; the first word stands for all.
_KINDS: Final = {
    word: line.split()[0]
    for line in (
        "sale sell selling sold seller",
        "purchase buy buying bought buyer",
        "renovation renovate renovating remodel remodeling remodelling refurbishment",
        "repair repairing fix fixing fixed",
        "booking book reservation reserve",
        "trip travel traveling travelling journey holiday vacation flight",
        "delivery deliver shipment shipping",
        "quote offer estimate",
        "claim",
        "order",
        "refund reimbursement",
        "move moving relocation",
        "contract agreement lease",
        "complaint dispute",
        "loan mortgage",
        "invoice bill",
        "wedding",
        "party celebration",
        "installation install installing",
        "application apply applying",
        "subscription",
        "warranty",
        "payment",
        "project",
        "case",
        "ticket",
    )
    for word in line.split()
}
_KIND_WORDS: Final = frozenset(_KINDS.values())
_FILLERS: Final = frozenset(
    """a about an and at by caller client customer for from getting her his in into issue its matter my new of on or our
    question request situation the their thing to topic with""".split()
)


@dataclass(frozen=True)
class TopicName:
    """A topic's name prepared for comparison. `meaning` is its vector of length 1, or empty."""

    text: str
    meaning: bytes = b""

    @cached_property
    def words(self) -> frozenset[str]:
        found = (_singular(word) for word in re.findall(r"[^\W_]+", self.text.casefold()))
        return frozenset(_KINDS.get(word, word) for word in found if word not in _FILLERS)

    @cached_property
    def kinds(self) -> frozenset[str]:
        return self.words & _KIND_WORDS

    @cached_property
    def codes(self) -> frozenset[str]:
        return frozenset(word for word in self.words if any(character.isdigit() for character in word))

    @cached_property
    def vector(self) -> "Vectors":
        import numpy as np  # slow to import, and not needed without vectors

        return np.frombuffer(self.meaning, "<f4")

    def is_same(self, other: "TopicName") -> bool:
        if self.words == other.words:
            return bool(self.words) or self.text.casefold() == other.text.casefold()
        if self.codes and other.codes and not self.codes & other.codes:
            return False
        needed = self._needed(other)
        return not needed or self._similarity(other) >= needed

    def _needed(self, other: "TopicName") -> float:
        """The cosine from which they are the same; 0 if the words suffice."""
        shared = (self.words & other.words) - self.kinds
        kinds_differ = bool(self.kinds and other.kinds and not self.kinds & other.kinds)
        if not shared or kinds_differ:
            return ALIKE
        own, others = self.words - self.kinds, other.words - other.kinds
        overlap = len(self.words & other.words) / len(self.words | other.words)
        return 0.0 if own <= others or others <= own or overlap >= SAME_WORDS else LIKE

    def _similarity(self, other: "TopicName") -> float:
        if not self.meaning or len(self.meaning) != len(other.meaning):
            return 0.0
        return float(self.vector @ other.vector)


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]
