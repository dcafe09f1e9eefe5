import numpy as np
import pytest

from gateway.memory.embeddings.vectors import QueryEmbedding, SignIndex, VectorSpace, normalised


def test_nearest_part_of_each_document_counts():
    def stored(*axes):
        return b"".join(np.eye(1, 384, axis, dtype="<f4").tobytes() for axis in axes)

    space = VectorSpace([stored(0, 1, 2), stored(3), stored(4, 1)])
    nearest = space.nearest(np.eye(1, 384, 2, dtype=np.float32)[0])
    assert [part for _, part in nearest][0] == 2
    assert max(range(3), key=lambda document: nearest[document][0]) == 0


def test_one_document_is_as_near_as_it_is():
    """What a few vectors have in common is what they are about: little is taken off."""
    one = np.eye(1, 384, 0, dtype="<f4")
    between = np.array([1, 1, *[0] * 382], np.float32) / np.float32(np.sqrt(2))
    ((cosine, _),) = VectorSpace([one.tobytes()]).nearest(between)
    assert cosine == pytest.approx(0.68, abs=0.03)


def test_words_add_to_a_query_by_their_weight():
    query = QueryEmbedding(("", "dog", "the"), np.eye(3, 384, dtype=np.float32))
    pooled = query.pooled(lambda word: {"dog": 3.0, "the": 4.0}.get(word, 0.0))
    assert pooled[:4] == pytest.approx([0, 0.6, 0.8, 0])


def test_vector_of_nothing_stays_nothing():
    assert not normalised(np.zeros((2, 384), np.float32)).any()


def test_most_signs_in_common_are_nearest():
    def signs(positive):
        return (((1 << positive) - 1) << (384 - positive)).to_bytes(48, "big")

    index = SignIndex()
    assert index.nearest(signs(0), 3) == []
    index.update([(7, signs(100) + signs(300)), (8, signs(110))])
    index.update([(9, signs(380))])
    assert index.nearest(signs(112), 5) == [8, 7, 9]
    assert index.nearest(signs(384), 2) == [9, 7]
    index.update([(7, signs(384)), (9, b"")])
    assert index.nearest(signs(384), 5) == [7, 8]
