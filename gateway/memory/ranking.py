"""
Scores the documents of a scope against a question, by words and by meaning. Arithmetic only.

Both measures are absolute, so that they can be added: the share of the question's words that a document contains,
weighted by their rarity in the scope, and the cosine of the two vectors. The age of a document does not count.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

NEAR: Final = 0.35
"""The cosine from which a document matches without a common word; one unrelated document in a hundred reaches it."""

_MEANING: Final = 1.5  # the weight of nearness relative to words
_CALL: Final = 0.4  # the share of a call's best score that its other documents get: an answer is rarely one sentence
_NEIGHBOUR: Final = 0.1  # the same for the documents stored directly before and after
_K1: Final = 1.2  # BM25's usual saturation, and a slight preference for short documents
_B: Final = 0.4


def rarity(documents: int, having: int) -> float:
    """BM25's weight of a word that `having` out of `documents` contain."""
    return math.log(1 + (documents - having + 0.5) / (having + 0.5))


def coverage(sizes: Mapping[int, int], places: Iterable[Sequence[int]]) -> dict[int, float]:
    """
    For each document that contains any of the words, the weighted share that it contains: about 1 for all of them.

    This is BM25. `places` holds, for each word, the documents that contain it; repetitions in a document do not count.
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
    The scores of documents in stored order, raised where others of the same call score high.

    The answer to a question is often spread over several sentences of one call, and only one of them has its words.
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
