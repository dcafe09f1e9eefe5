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
    """The graph of scripts/make_int8_graph; an operator's name stands in each of its nodes."""
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
