from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.chunking import parts, snippet

SENTENCES = [f"This is sentence number {number} of a longer text." for number in range(20)]


def test_short_text_is_one_part():
    assert parts("Two. Sentences.") == ["Two. Sentences."]
    assert parts("") == [""]


def test_long_text_is_taken_by_sentences():
    assert parts(" ".join(SENTENCES)) == SENTENCES


def test_lines_are_parts_too():
    lines = [f"- the item number {number} of a longer list" for number in range(20)]
    assert parts("\n".join(lines)) == lines


def test_scraps_go_with_what_follows():
    text = " ".join(["Dr. Smith called in the morning about it."] * 10)
    assert parts(text) == ["Dr. Smith called in the morning about it."] * 10


def test_endless_sentence_is_cut():
    assert [len(part) for part in parts("x" * 1200)] == [500, 500, 200]


@given(st.text(alphabet="ab. \n", max_size=2000))
def test_parts_stand_in_the_text(text):
    found = parts(text)
    assert found and all(part in text for part in found)
    place = 0
    for part in found:
        place = text.index(part, place) + len(part)


def test_snippet_begins_at_the_part():
    text = " ".join(SENTENCES)
    assert snippet(text, (), 7).startswith("This is sentence number 7 of")
    assert len(snippet(text, (), 7)) <= 500


def test_snippet_without_part_shows_the_words():
    text = " ".join(SENTENCES) + "\nThen a blue kettle."
    assert snippet(text, ("kettle",), None) == "Then a blue kettle."
