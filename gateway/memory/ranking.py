"""
Which documents of a scope fit a question best, by words and by meaning. Arithmetic only.

Both measures are absolute, so that they can be added: the share of the question's words that a document has, weighed
by how rare they are in the scope, and the cosine of the two vectors. How old a document is does not count.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

NEAR: Final = 0.35
"""A document that shares no word is found all the same if it is this near; of a hundred unrelated ones, one is."""

_MEANING: Final = 1.5  # what nearness counts against words
_CALL: Final = 0.4  # what the best document of a call lends to the others of it: an answer rarely stands alone
_NEIGHBOUR: Final = 0.1  # the same for the two that were stored before and after
_K1: Final = 1.2  # BM25's usual saturation, and a gentle preference for short documents
_B: Final = 0.4


def rarity(documents: int, having: int) -> float:
    """BM25's weight of a word that `having` of so many documents have."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def coverage(sizes: Mapping[int, int], places: Iterable[Sequence[int]]) -> dict[int, float]:
    """
    For each document that has any of the words, what share of them it has: about 1 where it has them all.

    It is BM25. `places` holds for each word the documents that have it; a word counts once in a document, however
    often it stands there.
    """
    average = max(sum(sizes.values()) / len(sizes), 1) if sizes else 1
    scores: dict[int, float] = {}
    total = 0.0
    for having in places:
        weight = rarity(len(sizes), len(having))
        total += weight
        for key in having:
            gain = weight * (1 + _K1) / (1 + _K1 * (1 - _B + _B * sizes[key] / average))
            scores[key] = scores.get(key, 0) + gain
    return {key: score / total for key, score in scores.items()}


def fused(words: float, nearness: float) -> float:
    return words + _MEANING * nearness


def lifted(scores: Sequence[float], calls: Sequence[Hashable]) -> list[float]:
    """
    `scores` of documents in the order of storing, raised where others of the same call score high.

    What answers a question is often told in several sentences of one call, and only one of them has its words.
    """
    best: dict[Hashable, float] = {}
    for score, call in zip(scores, calls, strict=True):
        best[call] = max(best.get(call, score), score)
    beside = [0.0] * len(scores)
    for left, right in pairwise(range(len(scores))):
        if calls[left] == calls[right]:
            beside[left] = max(beside[left], scores[right])
            beside[right] = max(beside[right], scores[left])
    return [
        score + _CALL * best[call] + _NEIGHBOUR * near for score, call, near in zip(scores, calls, beside, strict=True)
    ]
