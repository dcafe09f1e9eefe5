"""
Scores the documents of a scope against a question, by words, meaning and time. Arithmetic only.

The measures are absolute, so that they can be added: the share of the question's words that a document contains,
weighted by their rarity in the scope, the cosine of the two vectors, and how well its day fits a date in the question.
"""

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final

from gateway.text.plain_text import without_accents


@dataclass(frozen=True, slots=True)
class RankingOptions:
    """What differs between stores."""

    half_life_days: int = 30
    """The age at which a document counts half as recent; 0: age does not count."""
    meaning: float = 1.5
    """The weight of nearness relative to words."""
    near: float = 0.35
    """The cosine from which a document matches without a common word; one unrelated one in a hundred reaches it."""


MEMORY: Final = RankingOptions()
LIKE_BEST: Final = 0.23
"""The weight of a document's cosine with the best one: an answer may need several documents."""
RECENT: Final = 0.015
"""What the newest document gains over a very old one: it decides between matches that are about as good."""

_UNREAD: Final = 0.6  # the cosine that a document without vectors is taken to have, if it contains all words
_UNRELATED: Final = 0.5  # a close match has about four times as much, which is worth two half-lives
_NEIGHBOUR: Final = 0.4  # the weight of a word in the document before or after, of the same call
_CALL: Final = 0.23  # the share of a call's best score in those of its documents: an answer is rarely one sentence
_OVERVIEW: Final = 0.5  # the same for a long document, such as a summary: it is about the whole call
_K1: Final = 1.2  # BM25's usual saturation, and a slight preference for short documents
_B: Final = 0.4


def rarity(documents: int, having: int) -> float:
    """BM25's weight of a word that `having` out of `documents` contain."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def coverage(
    sizes: Mapping[int, int], beside: Mapping[int, Iterable[int]], places: Iterable[Sequence[int]]
) -> dict[int, float]:
    """
    For each document that contains or neighbours any of the words, their weighted share: about 1 for all of them.

    This is BM25. `places` holds, for each word, the documents that contain it; repetitions in a document do not count.
    `beside` holds the neighbours of each document.
    """
    average = max(sum(sizes.values()) / len(sizes), 1) if sizes else 1
    scores: dict[int, float] = {}
    total = 0.0
    for having in places:
        weight = rarity(len(sizes), len(having))
        total += weight
        gains = {key: weight * (1 + _K1) / (1 + _K1 * (1 - _B + _B * sizes[key] / average)) for key in having}
        reached: dict[int, float] = {}
        for key, gain in gains.items():
            for neighbour in beside.get(key, ()):
                reached[neighbour] = max(reached.get(neighbour, 0), _NEIGHBOUR * gain)
        for key, gain in (reached | gains).items():
            scores[key] = scores.get(key, 0) + gain
    return {key: score / total for key, score in scores.items()}


def fused(words: float, nearness: float | None, *, meaning: float) -> float:
    """The score by words and by meaning; without vectors, a document is as near as its words suggest."""
    return words + meaning * (_UNREAD * words if nearness is None else nearness)


def related(words: float, nearness: float | None, *, meaning: float) -> float:
    """The score of a document that may be useful, though not asked for: an unrelated one has the least, not nothing."""
    return _UNRELATED + max(fused(words, nearness, meaning=meaning), 0)


def lifted(scores: Sequence[float], calls: Sequence[Hashable], *, long: Sequence[bool]) -> list[float]:
    """
    The scores of documents, each partly replaced by the best one of its call.

    The answer to a question is often spread over several sentences of one call, and only one of them has its words.
    """
    best: dict[Hashable, float] = {}
    for score, call in zip(scores, calls, strict=True):
        best[call] = max(best.get(call, score), score)
    shares = [_OVERVIEW if is_long else _CALL for is_long in long]
    return [score + share * (best[call] - score) for score, call, share in zip(scores, calls, shares, strict=True)]


def freshness(days: float, half_life_days: float) -> float:
    """1 for the newest document, and half as much after each half-life; without one, age does not count."""
    return 0.5 ** (days / half_life_days) if half_life_days else 1.0


# Dates

# English, German, Spanish and French, without accents.
_MONTHS: Final = (
    "jan(?:uary|uar|vier)?|enero feb(?:ruary|ruar|rero)?|fevrier mar(?:ch|zo|s)?|marz apr(?:il)?|avril|abril "
    "may|mai|mayo june?|juni|juin|junio july?|juli|juillet|julio aug(?:ust)?|aout|agosto "
    "sep(?:t|tember|tembre|tiembre)? oct(?:ober|obre|ubre)?|okt(?:ober)? nov(?:ember|embre|iembre)? "
    "dec(?:ember|embre)?|dez(?:ember)?|dic(?:iembre)?"
).split()
_YEAR: Final = r"(?P<year>(?:19|20)\d\d)\b"
_DATES: Final = (
    re.compile(rf"\b{_YEAR}-(?P<month>\d\d)(?:-(?P<day>\d\d))?\b"),
    re.compile(
        rf"(?P<lead>\b(?:in|im|en|of|by|last|this|since|during|until|early|late|seit|desde|depuis|letzten) )?"
        rf"(?:\b(?P<before>\d\d?)(?:st|nd|rd|th|er|\.)?(?: of| de)? )?\b(?P<name>{'|'.join(_MONTHS)})\b\.?"
        rf"(?: (?P<after>\d\d?)(?:st|nd|rd|th)?\b)?(?:,? ?(?:of |del? )?{_YEAR})?"
    ),
    re.compile(rf"\b{_YEAR}"),
)


@dataclass(frozen=True, slots=True)
class AskedDate:
    """A date in a question. What it leaves out is 0."""

    year: int
    month: int
    day: int

    def fit(self, at: date) -> float:
        """What a document of that day gains. Calls of the first days after a month often speak of that month."""
        if not self.month:
            return 0.15 if at.year == self.year else 0.0
        if self.day:
            years = (self.year,) if self.year else (at.year - 1, at.year, at.year + 1)
            days = (abs(at.toordinal() - date(year, self.month, 1).toordinal() - self.day + 1) for year in years)
            return 0.8 * math.exp(-min(days) / 4)
        months = 12 * (at.year - self.year) + at.month - self.month if self.year else (at.month - self.month) % 12
        return 0.5 if months == 0 else 0.2 if months == 1 and at.day <= 9 else 0.0


def asked_date(question: str) -> AskedDate | None:
    """The first date in a question. A month alone counts after a preposition only: "may" is also a verb."""
    text = without_accents(question.lower())
    for found in (found for pattern in _DATES for found in pattern.finditer(text)):
        parts = found.groupdict()
        year, month = int(parts["year"] or 0), int(parts.get("month") or 0)
        day = int(parts.get("day") or parts.get("before") or parts.get("after") or 0)
        if name := parts.get("name"):
            month = next(number for number, names in enumerate(_MONTHS, 1) if re.fullmatch(names, name))
        if month <= 12 and day <= 31 and (year or day or parts["lead"]):
            return AskedDate(year, month, day)
    return None
