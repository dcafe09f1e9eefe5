import re

from gateway.text.languages import any_of, spaced, words


def test_words_without_case_accents_and_apostrophes():
    assert words("D’accord, ÇA va?") == ["daccord", "ca", "va"]
    assert spaced("Mm-hm!") == "mm hm "


def test_phrases_have_options_and_choices():
    pattern = re.compile(any_of(["[that] (is|was) fine", "okay"]))
    assert all(pattern.fullmatch(spaced(text)) for text in ("That is fine.", "Was fine", "Okay"))
    assert not pattern.fullmatch(spaced("That fine"))
