"""The embedding model: how it multiplies on which processor. What it finds is tested in test_search."""

from pathlib import Path

import numpy as np
import pytest

from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.minilm import MiniLM, packaged_model

TEXTS = (
    "When is my appointment?",
    "The caller prefers a text message.",
    "My order number is four seven two nine one six.",
    "She said that the dog of her neighbour barked all night, and that nobody had slept.",
)


def test_int8_products_give_the_same_vectors():
    exact, fast = (MiniLM(packaged_model(), int8=int8) for int8 in (False, True))
    for text in TEXTS:
        cosine = np.frombuffer(fast.embed(text), "<f4") @ np.frombuffer(exact.embed(text), "<f4")
        assert cosine > 0.98


def test_all_products_with_weights_are_int8():
    """The graph of scripts/make_int8_graph; each of its nodes has an operator's name."""
    graph = packaged_model().read_bytes(), minilm._INT8_GRAPH.read_bytes()
    assert [content.count(b"DynamicQuantizeMatMul") for content in graph] == [0, 36]


def test_other_model_file_is_refused(tmp_path: Path):
    (tmp_path / "model.onnx").write_bytes(b"another")
    with pytest.raises(ValueError, match="not the file it should be"):
        MiniLM(tmp_path / "model.onnx", int8=True)


@pytest.mark.parametrize(
    "machine, flags, exact",
    [
        ("x86_64", "flags : avx2 avx512f avx512_vnni", True),
        ("x86_64", "flags : avx2 avx_vnni", True),
        ("x86_64", "flags : avx2 fma", False),
        ("aarch64", "Features : asimd", True),
    ],
)
def test_int8_only_where_it_is_exact(monkeypatch, tmp_path: Path, machine: str, flags: str, exact: bool):
    monkeypatch.setattr("platform.machine", lambda: machine)
    (tmp_path / "cpuinfo").write_text(flags)
    assert minilm.multiplies_int8(tmp_path / "cpuinfo") is exact


def test_unknown_processor_takes_no_risk(monkeypatch, tmp_path: Path):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert minilm.multiplies_int8(tmp_path / "missing") is False


# The tokenizer

MOST = 128


@pytest.fixture(scope="module")
def tokens():
    return minilm.WordPiece()


def numbers(tokens, text, most=MOST):
    return [number for _, number in tokens.encode(text, most)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [101, 102]),
        ("Hello, world!", [101, 7592, 1010, 2088, 999, 102]),
        ("unaffable", [101, 14477, 20961, 3468, 102]),
        ("Café naïve", [101, 7668, 15743, 102]),
        ("日本", [101, 1864, 1876, 102]),
        ("don't", [101, 2123, 1005, 1056, 102]),
        ("2023-05-08", [101, 16798, 2509, 1011, 5709, 1011, 5511, 102]),
        ("a\u200bb\0 \u2029 c", [101, 11113, 1039, 102]),
        ("\U0001f92f", [101, 100, 102]),
        ("x" * 101, [101, 100, 102]),
    ],
)
def test_numbers_are_those_of_bert(tokens, text, expected):
    assert numbers(tokens, text) == expected


def test_pieces_know_their_word(tokens):
    assert tokens.encode("unaffable!", MOST) == [
        ("", 101),
        ("unaffable", 14477),
        ("unaffable", 20961),
        ("unaffable", 3468),
        ("!", 999),
        ("", 102),
    ]


def test_long_text_is_cut(tokens):
    assert numbers(tokens, "hello " * 1000, 5) == [101, 7592, 7592, 7592, 102]
