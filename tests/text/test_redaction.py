import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.text import redaction
from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact, redact_lines

# Published test numbers of the networks.
CARDS = ["4111111111111111", "5555555555554444", "2223003122003222", "378282246310005", "6011111111111117"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def caller(*texts):
    return [SpokenLine("caller", text) for text in texts]


@pytest.mark.parametrize("number", [*CARDS, "30569309025904", "3530111333300000", "6200000000000005", "4222222222222"])
def test_card_number_is_removed(number):
    assert redact(f"It is {number}, thanks.") == "It is [card number removed], thanks."


@pytest.mark.parametrize(
    "spoken",
    [
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "4-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1",
        "four one one one, one one one one, one one one one, one one one one",
        "Four triple one, double one double one, uh, one one one one, 1111",
        "forty-one eleven, eleven eleven, eleven eleven, eleven eleven",
        "five five oh oh, oh oh oh oh, oh oh oh oh, oh oh oh four",
    ],
)
def test_spoken_card_number_is_removed(spoken):
    assert redact(f"The number is {spoken}.") == "The number is [card number removed]."


def test_expiry_goes_with_card():
    assert redact("4111 1111 1111 1111 12 27 123 please") == "[card number removed] please"


def test_misheard_card_number_is_removed():
    """One digit wrong: the check digit fails, but it was called a card."""
    assert redact("my card is 4111 1111 1111 1112") == "my card is [card number removed]"
    assert redact("it says 4111 1111 1111 1112") == "it says 4111 1111 1111 1112"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("my password is swordfish and I can't log in", "my password is [password removed] and I can't log in"),
        ("the password for the wifi is Blue Horse 99.", "the password for the wifi is [password removed]."),
        ("hunter2 is my password", "[password removed] is my password"),
        ("password: hunter2", "password: [password removed]"),
        ("the PIN is 4 4 2 1", "the PIN is [pin removed]"),
        ("my pin number is, uh, double four two one", "my pin number is, uh, [pin removed]"),
        ("4421 is my pin", "[pin removed] is my pin"),
        ("passcode 902210 if you need it", "passcode [pin removed] if you need it"),
        ("the CVV is 123", "the CVV is [security code removed]"),
        ("security code on the back is one two three", "security code on the back is [security code removed]"),
    ],
)
def test_spoken_secret_is_removed(said, kept):
    assert redact(said) == kept


@pytest.mark.parametrize(
    "key",
    [
        "sk-ant-api03-AbCdEfGhIjKlMnOp",
        "sk_live_abcdefghijklmnop1234",
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
        "xoxb-123456789012-abcdefghij",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "d41d8cd98f00b204e9800998ecf8427e",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY0",
    ],
)
def test_key_is_removed(key):
    assert redact(f"use {key} for it") == "use [key removed] for it"


def test_key_is_removed_by_its_name():
    assert redact("Authorization: Bearer abcdefghijklmnop1234==") == "Authorization: Bearer [key removed]"
    assert redact("the API key is abc123def.") == "the API key is [key removed]."


@pytest.mark.parametrize(
    "spoken", ["123-45-6789", "123 45 6789", "one two three, four five, six seven eight nine", "123456789"]
)
def test_social_security_number_is_removed(spoken):
    assert redact(f"my social is {spoken}") == "my social is [social security number removed]"


@pytest.mark.parametrize(
    "line",
    [
        "call me at 202 555 0147 or +1 202 555 0148",
        "call two oh two five five five oh one four seven",
        "from abroad it is +44 20 7946 0958 extension 12",
        "202-555-0147, 202-555-0148",
        "the order is 12345678, the reference A12-9987",
        "order number 112-1234567-1234567",
        "on March 14, 2026 at 10:30, or on 03/15/2026",
        "that makes $1,234.50, one hundred twenty three dollars",
        "nine thirty on the twenty first works",
        "my password is not working",
        "the password is on the label",
        "I forgot my password, this is my password problem",
        "is the pin required? there are 2 pins",
        "the session is 123e4567-e89b-12d3-a456-426614174000",
        "the card ending in 1111",
        "account number 123456789",
        "I want to discuss internationalization-and-localization matters",
    ],
)
def test_harmless_line_stays(line):
    assert redact(line) == line


def test_card_over_two_turns_is_removed():
    lines = caller("four one one one, one one one one", "one one one one one one one one, that's it")
    assert redact_lines(lines) == caller("[card number removed]", "[card number removed], that's it")


def test_card_over_an_interjection_is_removed():
    first, second = caller("It's 4111 1111", "1111 1111 okay?")
    agent = SpokenLine("agent", "Go on.")
    kept = [line.text for line in redact_lines([first, agent, second])]
    assert kept == ["It's [card number removed]", "Go on.", "[card number removed] okay?"]


def test_answer_to_a_question_is_removed():
    question = SpokenLine("agent", "Could you tell me your PIN?")
    assert redact_lines([question, *caller("Sure, four four two one.")])[1].text == "Sure, [pin removed]."


@pytest.mark.parametrize(
    ("answer", "kept"),
    [("Swordfish.", "[password removed]."), ("It's blue horse", "It's [password removed]")]
    + [(harmless, harmless) for harmless in ("I don't know.", "No.", "Sorry, what?", "Hold on.")],
)
def test_password_in_next_turn_is_removed(answer, kept):
    assert redact_lines(caller("my password is", answer))[1].text == kept


def test_speakers_are_kept_apart():
    lines = [*caller("4111 1111"), SpokenLine("agent", "1111 1111")]
    assert redact_lines(lines) == lines


def test_no_lines_stay_no_lines():
    assert redact_lines([]) == []


@given(st.sampled_from(CARDS), st.integers())
def test_any_mix_of_digits_and_words_is_removed(number, seed):
    dice = random.Random(seed)
    spoken = "".join(dice.choice([digit, f" {WORDS[int(digit)]} ", f" {digit}-"]) for digit in number)
    assert redact(spoken).strip(" -") == "[card number removed]"


SPEECH = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            "password pin cvv is my the card social four double oh twenty , . 4111 1111 123 [ ] \x1e".split()
        ),
        st.integers(0, 10**17).map(str),
    ),
    max_size=25,
).map(" ".join)


@given(SPEECH)
def test_redaction_is_idempotent(text):
    assert redact(redact(text)) == redact(text)


@given(st.lists(st.builds(SpokenLine, st.sampled_from(["caller", "agent"]), SPEECH), max_size=6))
def test_lines_keep_number_and_speakers(lines):
    assert [line.speaker for line in redact_lines(lines)] == [line.speaker for line in lines]


# Other languages, IBANs, one-time codes


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Meine PIN ist vier sieben eins eins.", "Meine PIN ist [pin removed]."),
        ("Meine PIN ist zwei mal die drei, äh, vierundachtzig.", "Meine PIN ist [pin removed]."),
        ("Mi PIN es doble cinco, tres, uno.", "Mi PIN es [pin removed]."),
        ("Mon code secret est le vingt-trois quatre-vingt-douze.", "Mon code secret est le [pin removed]."),
        ("Das Passwort lautet Sonnenblume7.", "Das Passwort lautet [password removed]."),
        ("La contraseña es Girasol.", "La contraseña es [password removed]."),
        ("Le mot de passe, c'est Tournesol31.", "Le mot de passe, c'est [password removed]."),
        ("Die Kartenprüfnummer ist drei null neun.", "Die Kartenprüfnummer ist [security code removed]."),
        ("The verification code is 4 9 1 1 2 0.", "The verification code is [code removed]."),
        ("El código de verificación es 449 120.", "El código de verificación es [code removed]."),
        ("It's DE89 3704 0044 0532 0130 00, thanks.", "It's [account number removed], thanks."),
        ("Es ist GB82 WEST 1234 5698 7654 32 bitte", "Es ist [account number removed] bitte"),
        ("ｍｙ ＰＩＮ ｉｓ ４７１１", "my PIN is [pin removed]"),
        ("My card is four two four two, no wait, " + "four two " * 6 + "okay", "My card is [card number removed] okay"),
        ("Meine Karte: " + "vier zwei " * 8 + "danke", "Meine Karte: [card number removed] danke"),
    ],
)
def test_secret_in_four_languages(said, kept):
    assert redact(said) == kept


@pytest.mark.parametrize(
    "said",
    [
        "Meine Bestellnummer ist 4471 9920 33.",
        "Mi teléfono es seis uno dos tres cuatro cinco seis siete ocho.",
        "J'habite au 125 rue de la Gare, le code postal est 75011.",
        "Wir sind um halb sieben da, einundzwanzig Personen.",
        "Son mil doscientos euros, el pedido es 88 120.",
        "Once we had 3 cats, seize the day.",
        "DE89 is the model, 3704 the size.",
        "Ich habe mein Passwort vergessen.",
    ],
)
def test_harmless_number_survives(said):
    assert redact(said) == said


@pytest.mark.parametrize(
    ("question", "answer", "kept"),
    [
        ("Wie lautet die TAN?", "Das ist die 718 204.", "Das ist die [code removed]."),
        ("Quel est le code reçu ?", "C'est le 83 40 17.", "C'est le [code removed]."),
        ("¿Cuál es el código?", "cuatro cuatro nueve uno", "[code removed]"),
        ("What is the code we sent you?", "five five double two", "[code removed]"),
        ("What is your order code?", "44 71 99", "44 71 99"),
        ("What is the best number for you?", "202 555 0143", "202 555 0143"),
    ],
)
def test_answer_to_a_question_for_a_code(question, answer, kept):
    lines = [SpokenLine("agent", question), SpokenLine("caller", answer)]
    assert redact_lines(lines)[1].text == kept


def test_code_after_a_pause():
    lines = [
        SpokenLine("agent", "What is the code we sent you?"),
        SpokenLine("caller", "One moment."),
        SpokenLine("agent", "Take your time."),
        SpokenLine("caller", "four nine double two one"),
    ]
    assert redact_lines(lines)[3].text == "[code removed]"


_PIECES = st.sampled_from(
    "zero Two fünf fuenf FUNF DREISSIG dreißig dreiẞig dix-sept zéro quatre vingt V\u0130ER s\u0131x \uff14 \u0664 un "
    "once double doppelte pin code my the is and GB82 x1 o' five-ish _six s\u0301ix".split()
)


@given(st.lists(_PIECES, max_size=6), st.text("aeinosxz \u0130\u0131'-_", max_size=12))
def test_words_that_begin_no_number_are_not_searched(pieces, tail):
    """The lookup skips the search for numbers only where it would find none."""
    text = redaction._normalised(f"{' '.join(pieces)} {tail}")
    if redaction._SECRET_RUN.search(text):
        assert redaction._DIGIT.search(text) or redaction._may_name_number(text)


# Found by scripts/fuzz


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("My PIN is 4711. 0151 234 567 890", "My PIN is [pin removed]"),
        ("I owe my 20 euro to DE89 3704 0044 0532 0130 00", "I owe my 20 euro to [account number removed]"),
        ("I owe my 20 euro to DE49 0000 0000 4194 7054 99", "I owe [account number removed]"),
        ("I owe my 20 efive D E D E ue mD E y 40 uh 0004 0646 4496 27", "I owe [account number removed]"),
        ("password is tiger b c d e f g h 4111 1111 1111 1111", "password is [password removed]"),
        (
            "password is tiger b c d e f g h DE89 3704 0044 0532 0130 00",
            "password is [password removed] [account number removed]",
        ),
    ],
    ids=[
        "PIN before a telephone number",
        "IBAN after words like one",
        "IBAN after words that pass its check",
        "card after words that pass that check",
        "card in a password",
        "IBAN in a password",
    ],
)
def test_secret_beside_another_number_is_removed(said, kept):
    assert redact(said) == kept


def test_long_run_of_dots_is_read_in_linear_time():
    began = time.thread_time()
    redact("1" + "." * 50_000)
    assert time.thread_time() - began < 10  # before: half a minute
