"""
Fuzz targets: the redaction of transcripts, and the text for the voice.

The first bytes of an input choose what is checked. The rest is text: ASCII, and words that the rules know for the bytes
above it.
"""

import zlib

from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact, redact_lines
from gateway.text.spoken_text import SpokenText, load_rules, spoken
from tests.fuzz.data import Choices, in_time

MAX_SECONDS = 0.5
"""CPU time for one text. A pattern that backtracks without limit needs far more for 2000 characters."""

WORDS = (
    *"zero one two twelve twenty five six nine oh double triple null eins zwei fünf zwanzig dreimal ein elf".split(),
    *"cero uno dos veinte treinta once doble deux trois quatre vingt soixante dix quatre-vingt-dix une".split(),
    *("my PIN is", "pin", "PIN code", "the code is", "verification code", "what is the code", "code", "CVV", "CVC"),
    *("security code", "password", "password is", "my password for the bank is", "is my password", "passcode", "clave"),
    *("mot de passe", "Passwort lautet", "contraseña", "social security number", "ssn", "card", "Karte", "tarjeta"),
    *("api key", "access token is", "bearer", "eyJhbGci.", "sk-proj-", "AKIA", "ghp_", "xox", "AIza"),
    *("-----BEGIN PRIVATE KEY-----", "IBAN", "DE", "GB", "D E", "account", "order number", "tan", "mTAN", "SMS code"),
    *("uh", "um", "and", "no wait", "sorry", "i mean", "dash", "moment", "ähm", "strich", "espere", "pardon", "…", "–"),
    *("[card number removed]", "[pin removed]", "[", "]", "\x1e", "\n", "４", "７", "１", "𝟒", "②", "é", "İ", "ı", "ß"),
    *("4111", "1111", "4111 1111 1111 1111", "123-45-6789", "4711", "0", "12", "+49", "2026", "3.14", "10:30"),
    *("\u200b", "\u00a0", "\ud800", "give me", "is", "was", "the", "it's", "number", "on the back of", "zwei mal die"),
)
HARMLESS = "hello there nice weather today thank you goodbye maybe later the garden was green and quiet".split()
INTERJECTIONS = ("mhm", "okay", "go on", "yes")
LANGUAGES = ("en", "de", "es", "fr")
HIGHEST_TEXT = 0x80


def fuzz_redaction(data: bytes) -> None:
    choices = Choices(data)
    checks = (_check_any, _check_card, _check_iban, _check_pin, _check_lines, _check_harmless)
    choices.one_of(checks)(choices, zlib.crc32(data))


def _check_any(choices: Choices, seed: int) -> None:
    text = _text(choices)
    cleaned = _in_time(text)
    assert redact(cleaned) == cleaned, "redacted again, it changes"


def _check_card(choices: Choices, seed: int) -> None:
    card = _card(seed)
    size = choices.one_of((16, 4, 4, 2, 1))
    written = _grouped(card, size, choices.one_of((" ", "-", ", ", " uh ", ". ")))
    before, after = _text(choices, stop="|"), _text(choices)
    link = "here: " if size == 1 else ""  # "double" before a single digit makes another number
    cleaned = _in_time(f"{before} {link}{written} {after}")
    assert not _shows(cleaned, card), "a card number is left"


def _check_iban(choices: Choices, seed: int) -> None:
    account = f"{seed:018}"
    check = 98 - int(account + "131400") % 97  # DE00
    iban = f"DE{check:02}{account}"
    written = _grouped(iban, choices.one_of((22, 4)), choices.one_of((" ", "-")))
    before, after = _text(choices, stop="|"), _text(choices)
    cleaned = _in_time(f"{before} {written} {after}")
    assert not _shows(cleaned, iban), "an IBAN is left"


def _check_pin(choices: Choices, seed: int) -> None:
    pin = f"{seed % 9000 + 1000}"
    phrase = choices.one_of(("My PIN is", "the CVV is", "My password is", "Meine PIN lautet", "the access code is"))
    before, after = _text(choices, stop="|"), _text(choices)
    if pin in before or pin in after:
        return
    cleaned = _in_time(f"{before}. {phrase} {pin}. {after}")
    assert pin not in cleaned, "a PIN is left"


def _check_lines(choices: Choices, seed: int) -> None:
    card, half = _card(seed), choices.byte() % 14 + 2
    interjection = choices.one_of(INTERJECTIONS)
    before, after = _text(choices, stop="|"), _text(choices)
    lines = [
        *(SpokenLine("caller", line) for line in (*before.split("\n"), card[:half])),
        SpokenLine("agent", interjection),
        SpokenLine("caller", f"{card[half:]} {after}"),
    ]
    cleaned = redact_lines(lines)
    assert [line.speaker for line in cleaned] == [line.speaker for line in lines]
    assert not _shows("".join(line.text for line in cleaned if line.speaker == "caller"), card), "a card is left"


def _check_harmless(choices: Choices, seed: int) -> None:
    words = []
    while choices:
        words.append(choices.one_of(HARMLESS) + choices.one_of((" ", " ", ", ", ". ", "\n", "? ", "")))
    text = "".join(words)
    assert _in_time(text) == text, "text without secrets was changed"


def fuzz_spoken_text(data: bytes) -> None:
    choices = Choices(data)
    rules, size = load_rules(choices.one_of(LANGUAGES)), choices.byte() % 32 + 1
    text = _text(choices)
    whole = in_time(lambda: spoken(text, rules), MAX_SECONDS)
    streamed = SpokenText(rules)
    parts = [streamed.feed(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join([*parts, streamed.finish()]) == whole, "the chunks change the result"


def _in_time(text: str) -> str:
    return in_time(lambda: redact(text), MAX_SECONDS)


def _text(choices: Choices, stop: str = "") -> str:
    parts = []
    while choices:
        byte = choices.byte()
        if byte < HIGHEST_TEXT:
            if chr(byte) == stop:
                break
            parts.append(chr(byte))
        else:
            parts.append(f"{WORDS[(byte - HIGHEST_TEXT) % len(WORDS)]} ")
    return "".join(parts)


def _card(seed: int) -> str:
    """A Visa number with a valid check digit."""
    digits = f"4{seed:014}"
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[::2])
    return f"{digits}{-(doubled + sum(map(int, digits[1::2]))) % 10}"


def _grouped(text: str, size: int, separator: str) -> str:
    return separator.join(text[start : start + size] for start in range(0, len(text), size))


def _shows(text: str, number: str) -> bool:
    """Whether a text has more of a number than its first digits."""
    return number[-10:] in "".join(filter(str.isdigit, text))
