from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.stores import ranking

SIZES = {1: 40, 2: 40, 3: 40, 4: 40}


def test_document_of_usual_size_with_all_words_is_covered():
    assert ranking.coverage(SIZES, {}, [[1, 2], [1]]) == {1: pytest.approx(1), 2: pytest.approx(0.365, abs=0.001)}


def test_rare_word_weighs_more():
    covered = ranking.coverage(SIZES, {}, [[1, 2, 3], [4]])
    assert covered[4] > covered[1] == covered[2] == covered[3]


def test_word_without_a_match_lowers_all():
    assert ranking.coverage(SIZES, {}, [[1], []])[1] < ranking.coverage(SIZES, {}, [[1]])[1]


def test_shorter_document_is_preferred():
    covered = ranking.coverage({1: 20, 2: 60}, {}, [[1, 2]])
    assert covered[1] > covered[2]


def test_nothing_covers_nothing():
    assert ranking.coverage({}, {}, []) == {}
    assert ranking.coverage(SIZES, {}, []) == {}
    assert ranking.coverage(SIZES, {}, [[], []]) == {}


def test_neighbour_is_covered_in_part():
    covered = ranking.coverage(SIZES, {1: [2], 2: [1, 3], 3: [2]}, [[1, 2]])
    assert covered == {1: pytest.approx(1), 2: pytest.approx(1), 3: pytest.approx(0.4)}


def test_document_without_vectors_is_as_near_as_its_words_suggest():
    scores = [ranking.fused(words, None, meaning=2) for words in (1, 0.5, 0)]
    assert scores == [ranking.fused(1, 0.6, meaning=2), 1.1, 0]


def test_call_of_a_strong_match_is_lifted():
    first, second, other = ranking.lifted([1.0, 0.1, 0.2], ["a", "a", "b"], long=[False] * 3)
    assert first > second > other


def test_long_document_is_lifted_more():
    _, short, long = ranking.lifted([1.0, 0.1, 0.1], ["a", "a", "a"], long=[False, False, True])
    assert 1 > long > short > 0.1


@given(st.lists(st.tuples(st.floats(-1, 3), st.floats(-1, 3), st.sampled_from("ab")), max_size=20))
def test_one_call_changes_nothing_for_another(documents):
    calls, long = [call for _, _, call in documents], [False] * len(documents)
    before = ranking.lifted([first for first, _, _ in documents], calls, long=long)
    after = ranking.lifted([first if call == "a" else second for first, second, call in documents], calls, long=long)
    assert [score for score, call in zip(before, calls, strict=True) if call == "a"] == [
        score for score, call in zip(after, calls, strict=True) if call == "a"
    ]


def test_age_counts_by_its_half_life():
    assert [ranking.freshness(days, 30) for days in (0, 30, 60)] == [1, 0.5, 0.25]
    assert ranking.freshness(1000, 0) == 1


# Dates


@pytest.mark.parametrize(
    ("question", "date"),
    [
        ("What did she buy on May 8th, 2023?", (2023, 5, 8)),
        ("What did she buy on 8 May?", (0, 5, 8)),
        ("Where was it on December 1,2023 taken?", (2023, 12, 1)),
        ("What happened in the second week of November?", (0, 11, 0)),
        ("Which flights in 2022?", (2022, 0, 0)),
        ("2023-05-08, what then?", (2023, 5, 8)),
        ("Was war am 8. März 2023?", (2023, 3, 8)),
        ("¿Qué pasó el 5 de mayo de 2024?", (2024, 5, 5)),
        ("Et le 3 février 2022 ?", (2022, 2, 3)),
    ],
)
def test_date_in_a_question_is_read(question, date):
    assert ranking.asked_date(question) == ranking.AskedDate(*date)


@pytest.mark.parametrize("question", ["May I ask who calls?", "Did she march?", "Flat 12, 30 euros", "On 31-31-31?"])
def test_question_without_a_date_has_none(question):
    assert ranking.asked_date(question) is None


def test_nearer_day_fits_better():
    asked = ranking.AskedDate(2023, 5, 8)
    fits = [asked.fit(date(2023, 5, day)) for day in (8, 9, 20)]
    assert fits == sorted(fits, reverse=True)
    assert ranking.AskedDate(0, 1, 1).fit(date(2022, 12, 31)) == pytest.approx(fits[1])


def test_month_fits_until_shortly_after_it():
    days = [date(2023, 5, 31), date(2023, 6, 9), date(2023, 6, 10), date(2022, 5, 31)]
    assert [ranking.AskedDate(2023, 5, 0).fit(day) for day in days] == [0.5, 0.2, 0, 0]
    assert [ranking.AskedDate(0, 5, 0).fit(day) for day in days] == [0.5, 0.2, 0, 0.5]
    assert ranking.AskedDate(0, 12, 0).fit(date(2023, 1, 2)) == 0.2


def test_impossible_day_fits_nothing_well():
    assert 0 < ranking.AskedDate(2023, 2, 31).fit(date(2023, 3, 3)) <= 0.8
