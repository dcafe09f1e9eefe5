import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text.plain_text import plain, singular, trimmed, unaccented


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("## **Bold** and `code`", "Bold and code"),
        ("1. [Ana](https://example.com)\n\u200bcalls", "Ana calls"),
        ("the [card number removed] stays", "the [card number removed] stays"),
    ],
)
def test_markup_is_taken_out(raw, text):
    assert plain(raw) == text


@given(st.text())
def test_plain_text_is_one_line(raw):
    assert len(plain(raw).splitlines()) <= 1


def test_text_is_cut_after_a_word():
    assert trimmed("one two three", 10) == "one two…"


@given(st.text(), st.integers(2, 50))
def test_trimmed_text_fits(text, limit):
    assert len(trimmed(text, limit)) <= limit


@pytest.mark.parametrize(
    "raw, plain_form", [("plain", "plain"), ("Müller", "Muller"), ("fiancé", "fiance"), ("ﬁ", "fi")]
)
def test_accents_are_removed(raw, plain_form):
    assert unaccented(raw) == plain_form


@pytest.mark.parametrize(
    ("word", "one"), [("sales", "sale"), ("parties", "party"), ("address", "address"), ("bus", "bus"), ("trip", "trip")]
)
def test_plural_ending_is_removed(word, one):
    assert singular(word) == one
