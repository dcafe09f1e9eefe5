import pytest

from gateway.text.turn_taking import lost_connection_text, silence_texts


@pytest.mark.parametrize("language", ["en", "de", "es", "fr"])
def test_every_language_has_a_question_and_a_goodbye(language):
    texts = silence_texts(language)
    assert texts["ask"].endswith("?") and texts["goodbye"].endswith(".")
    assert len({silence_texts(other)["ask"] for other in ("en", "de", "es", "fr")}) == 4


def test_unknown_language_is_treated_as_english():
    assert silence_texts("nl")["ask"] == "Are you still there?"
    assert silence_texts("de-AT")["ask"] == "Sind Sie noch da?"


def test_every_language_excuses_a_lost_connection():
    assert len({lost_connection_text(language) for language in ("en", "de", "es", "fr")}) == 4
    assert lost_connection_text("nl") == "Sorry, I lost you for a second."
