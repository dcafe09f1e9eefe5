"""
Arithmetic with the vectors of texts: how near a question is to stored documents.

A vector is stored as 384 little-endian float32 of length 1. Importing this module takes a while (numpy): import it only
where vectors are used, and never on the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_DIMENSIONS: Final = 384
_COMMON_SHARE: Final = 0.5  # how much of the mean of all vectors of a scope is subtracted
_FEW_VECTORS: Final = 10  # about as many have a mean that is their subject, not a common background

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class QueryEmbedding:
    """An embedded query: its words in order, each with the sum of the vectors of its pieces."""

    words: tuple[str, ...]
    vectors: Vectors

    def pooled(self, weigh: Callable[[str], float]) -> Vectors:
        """One vector of length 1, the weighted sum of the words. The markers around the text are the word ''."""
        weights = np.array([weigh(word) for word in self.words], np.float32)
        return normalised(weights @ self.vectors)


class VectorSpace:
    """The vectors of some documents. A document has one for each part of its text."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        """`stored` holds, for each document, its vectors concatenated."""
        counts = [len(vectors) // (4 * _DIMENSIONS) for vectors in stored]
        self._firsts = np.cumsum([0, *counts[:-1]])
        every = np.frombuffer(b"".join(stored), "<f4").reshape(-1, _DIMENSIONS)
        share = _COMMON_SHARE * len(every) / (len(every) + _FEW_VECTORS)
        self._common = every.mean(axis=0) * np.float32(share)
        self._vectors = normalised(every - self._common)

    def nearest(self, question: Vectors) -> list[tuple[float, int]]:
        """
        For each document, the cosine between the question and its nearest part, and the number of that part.

        What all documents have in common, such as a caller's name in every fact, does not distinguish them: half of it
        is subtracted on both sides.
        """
        cosines = self._vectors @ normalised(question - self._common)
        if len(self._firsts) == len(cosines):
            return [(cosine, 0) for cosine in cosines.tolist()]
        each = np.split(cosines, self._firsts[1:])
        return [(float(own.max()), int(own.argmax())) for own in each]

    def like(self, document: int, *, part: int | None = None) -> list[float]:
        """For each document, the largest cosine between its parts and those of one of them, or a given part of it."""
        bounds = [*self._firsts, len(self._vectors)]
        parts = self._vectors[bounds[document] : bounds[document + 1]]
        cosines = self._vectors @ (parts if part is None else parts[part : part + 1]).T
        nearest: list[float] = np.maximum.reduceat(cosines.max(axis=1), self._firsts).tolist()
        return nearest


def normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    unit: Vectors = vectors / np.maximum(lengths, np.float32(1e-9))
    return unit
