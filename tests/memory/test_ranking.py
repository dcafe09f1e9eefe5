import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory import ranking

SIZES = {1: 40, 2: 40, 3: 40, 4: 40}


def test_document_of_usual_size_with_all_words_is_covered():
    assert ranking.coverage(SIZES, [[1, 2], [1]]) == {1: pytest.approx(1), 2: pytest.approx(0.365, abs=0.001)}


def test_rare_word_weighs_more():
    covered = ranking.coverage(SIZES, [[1, 2, 3], [4]])
    assert covered[4] > covered[1] == covered[2] == covered[3]


def test_word_without_a_match_lowers_all():
    assert ranking.coverage(SIZES, [[1], []])[1] < ranking.coverage(SIZES, [[1]])[1]


def test_shorter_document_is_preferred():
    covered = ranking.coverage({1: 20, 2: 60}, [[1, 2]])
    assert covered[1] > covered[2]


def test_nothing_covers_nothing():
    assert ranking.coverage({}, []) == {}
    assert ranking.coverage(SIZES, []) == {}
    assert ranking.coverage(SIZES, [[], []]) == {}


def test_call_of_a_strong_match_is_lifted():
    first, second, other = ranking.lifted([1.0, 0.1, 0.2], ["a", "a", "b"])
    assert first > second > other


def test_neighbour_of_a_strong_match_is_lifted_more():
    _, beside, away = ranking.lifted([1.0, 0.0, 0.0], ["a", "a", "a"])
    assert beside > away > 0


def test_neighbours_of_another_call_change_nothing():
    scores = [0.2, 0.9, 0.4]
    lifted = ranking.lifted(scores, [1, 2, 3])
    assert lifted == pytest.approx([score * 1.4 for score in scores])


@given(st.lists(st.tuples(st.floats(-1, 3), st.floats(-1, 3), st.sampled_from("ab")), max_size=20))
def test_one_call_changes_nothing_for_another(documents):
    calls = [call for _, _, call in documents]
    before = ranking.lifted([first for first, _, _ in documents], calls)
    after = ranking.lifted([first if call == "a" else second for first, second, call in documents], calls)
    assert [score for score, call in zip(before, calls, strict=True) if call == "a"] == [
        score for score, call in zip(after, calls, strict=True) if call == "a"
    ]
