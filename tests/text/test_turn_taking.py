import pytest

from gateway.text.turn_taking import silence_texts


@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
def test_every_language_has_a_question_and_a_goodbye(language):
    texts = silence_texts(language)
    assert texts["ask"].endswith("?") and texts["goodbye"].endswith(".")
    assert len({silence_texts(other)["ask"] for other in ("en", "de", "es", "fr")}) == 4


def test_unknown_language_is_treated_as_english():
    assert silence_texts("nl")["ask"] == "Are you still there?"
    assert silence_texts("de-AT")["ask"] == "Sind Sie noch da?"
