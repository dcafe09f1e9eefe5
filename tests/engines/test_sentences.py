import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.sentences import SentenceSplitter


def cut(text, size=1):
    sentences = SentenceSplitter()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [sentence for piece in pieces for sentence in sentences.feed(piece)] + sentences.finish()


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("Hello. How are you?", ["Hello.", "How are you?"]),
        ("Wait... what? Oh!", ["Wait...", "what?", "Oh!"]),
        ("Dr. Smith is at 3.5 miles. Go.", ["Dr. Smith is at 3.5 miles.", "Go."]),
        ('He said "yes." Then he left.', ['He said "yes."', "Then he left."]),
        ("It is at 3 p.m. on Friday.", ["It is at 3 p.m. on Friday."]),
        ("One line\nAnother line", ["One line", "Another line"]),
        ("", []),
    ],
)
def test_text_is_split_at_sentence_ends(text, sentences):
    assert cut(text) == sentences
    assert cut(text, size=1000) == sentences


def test_sentence_is_returned_before_the_next_is_complete():
    assert SentenceSplitter().feed("Hello there. I was just thin") == ["Hello there."]


def test_long_sentence_is_split_at_a_comma():
    text = "and then we went on " * 8 + "to the end, and " + "so on and so on " * 4
    assert cut(text)[0].endswith("the end,")


@given(st.text(alphabet="ab .!?,\n", max_size=400), st.integers(1, 40))
def test_no_word_is_lost(text, size):
    assert "".join(" ".join(cut(text, size)).split()) == "".join(text.split())
