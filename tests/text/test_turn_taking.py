import pytest

from gateway.text.turn_taking import asks_for_dictation, is_asking, is_backchannel, lost_connection_text, silence_texts


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


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Mm-hm."),
        ("en", "Mhm, mhm."),
        ("en", "Uh-huh, okay."),
        ("en", "Yeah, yeah, that's right."),
        ("en", "Oh wow, really?"),
        ("en", "Hmm… I see."),
        ("de", "Ja, genau."),
        ("de", "Ach so, alles klar."),
        ("de", "Hm, ja, verstehe."),
        ("es", "Vale, vale."),
        ("es", "Ajá, sí, claro."),
        ("fr", "D’accord."),
        ("fr", "Ah oui, très bien."),
        ("it", "Mm-hm, okay."),
        ("en", "Sure thing."),
        ("en", "Ooh, nice, that makes sense."),
        ("de", "Alles gut, ja."),
        ("es", "Ya, ya, entiendo."),
        ("fr", "Ah bon ?"),
    ],
)
def test_backchannels_are_recognised(language, text):
    assert is_backchannel(text, language)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Okay, stop."),
        ("en", "No."),
        ("en", "Yes, but what about Friday?"),
        ("en", "Right, so I need two."),
        ("en", "Hello?"),
        ("en", "Wait."),
        ("en", "I see my doctor on Monday."),
        ("en", "Him."),
        ("en", ""),
        ("en", "…"),
        ("de", "Ja, aber am Freitag nicht."),
        ("de", "Nein, genau das nicht."),
        ("de", "Moment."),
        ("es", "Sí, pero mañana."),
        ("es", "Ya no."),
        ("fr", "D'accord, mais pas demain."),
        ("fr", "Non."),
        ("en", "Yes, please."),
        ("en", "Fine, cancel it."),
        ("de", "Genau um drei."),
        ("es", "Ya basta."),
        ("en", "okay " * 7),
    ],
)
def test_words_that_want_an_answer_are_no_backchannels(language, text):
    assert not is_backchannel(text, language)


@pytest.mark.parametrize(
    ("heard", "rest", "asking"),
    [
        ("Would you like", "the window seat? It is free.", True),
        ("Would you like the window seat?", "It is free. And quiet.", True),
        ("Would you like the window seat? It", "is free. And quiet.", True),
        ("Would you like the window seat? It is free. And", "quiet.", False),
        ("We have a window seat. It", "is free. Would you like it?", False),
        ("", "Is that you? Good.", True),
        ("Your order", "", False),
        ("", "", False),
    ],
)
def test_question_is_where_the_caller_is(heard, rest, asking):
    assert is_asking(heard, rest) is asking


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Sure. What is the best phone number to reach you?"),
        ("en", "Could you spell your last name for me?"),
        ("en", "Please read me the sixteen digits on the card."),
        ("en", "And your e-mail address?"),
        ("en", "Thanks. I'll need your booking reference number. Take your time."),
        ("de", "Wie lautet Ihre Kundennummer?"),
        ("de", "Buchstabieren Sie bitte Ihren Nachnamen."),
        ("es", "¿Me da su número de teléfono?"),
        ("es", "Dígame su correo electrónico, por favor."),
        ("fr", "Pouvez-vous épeler votre nom ?"),
        ("fr", "Quel est votre code postal ?"),
        ("fr", "Pouvez-vous l'épeler ?"),
        ("de", "Unter welcher Telefonnummer erreiche ich Sie?"),
        ("it", "What is your order number?"),
    ],
)
def test_agent_asks_for_something_that_is_dictated(language, text):
    assert asks_for_dictation(text, language)


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Your order number is 4711."),
        ("en", "What day suits you?"),
        ("en", "I have sent you an e-mail. Anything else?"),
        ("en", "Is that number still right?"),
        ("en", ""),
        ("de", "Ihre Kundennummer habe ich notiert. Sonst noch etwas?"),
        ("es", "Su número es el siete. ¿Algo más?"),
        ("fr", "Votre numéro est le sept. Autre chose ?"),
    ],
)
def test_agent_asks_for_nothing_that_is_dictated(language, text):
    assert not asks_for_dictation(text, language)
