"""
Trust levels: how much of the memory of a number its caller gets, and the PIN that proves more.

A number can be forged, so it proves little. `[agents.NAME.memory.trust]` maps the network's attestation, the allow
list and a PIN to a level; the agent may use only what the level allows.
"""

import enum
import hmac
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from gateway.errors import SettingsError
from gateway.settings import Secret, read_table
from gateway.telephony.phone_numbers import Attestation

MOST_TRIES: Final = 3
KEY_PAUSE: Final = 10.0
"""After a pause of this many seconds between two keys the PIN starts over: a stray key must not spoil an attempt."""


class TrustLevel(enum.IntEnum):
    """How much the agent may use. Each level includes those below; its text is used in settings and receipts."""

    NONE = 0
    NAME = 1
    """The caller's name only."""
    SUMMARIES = 2
    """Also summaries of earlier calls."""
    EVERYTHING = 3
    """Also facts, state and pinned topics."""

    def __str__(self) -> str:
        return self.name.lower()


def _level(value: Any) -> TrustLevel:
    words = {str(level): level for level in TrustLevel}
    if isinstance(value, TrustLevel):
        return value
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"must be one of {', '.join(words)}")
    return words[value]


def _pin(value: Any) -> Secret | None:
    if value is None or isinstance(value, Secret):
        return value
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4,12}", value):
        raise ValueError("must be 4 to 12 digits in quotes")
    return Secret(value)


Level = Annotated[TrustLevel, BeforeValidator(_level)]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))
class TrustPolicy:
    """`[agents.NAME.memory.trust]`. By default every number is trusted, unless its attestation has failed."""

    attested: Level = TrustLevel.EVERYTHING
    partly_attested: Level = TrustLevel.EVERYTHING
    unattested: Level = TrustLevel.EVERYTHING
    """Also for gateway attestation (level C)."""
    failed: Level = TrustLevel.NONE
    withheld: Level = TrustLevel.NONE
    allow_listed: Level = TrustLevel.NONE
    """The lowest level for numbers in ALLOWED_CALLERS; a * there lists no number."""
    with_pin: Level = TrustLevel.EVERYTHING
    """The lowest level after the right PIN."""
    pin: Annotated[Secret | None, BeforeValidator(_pin)] = None

    def level(
        self, attestation: Attestation, *, withheld: bool = False, allow_listed: bool = False, pin_given: bool = False
    ) -> TrustLevel:
        """The level of a call. The allow list proves nothing for a forged or withheld number."""
        level = self.withheld if withheld else self._attested(attestation)
        if allow_listed and not withheld and attestation is not Attestation.FAILED:
            level = max(level, self.allow_listed)
        return max(level, self.with_pin) if pin_given else level

    def _attested(self, attestation: Attestation) -> TrustLevel:
        match attestation:
            case Attestation.FULL:
                return self.attested
            case Attestation.PARTIAL:
                return self.partly_attested
            case Attestation.GATEWAY | Attestation.NONE:
                return self.unattested
            case Attestation.FAILED:
                return self.failed


_LEVELS_BESIDE_PIN: Final = dict.fromkeys(("attested", "partly_attested", "unattested"), TrustLevel.NAME)


def read_trust(table: Any, where: str) -> TrustPolicy:
    """
    Read the policy from a table; `where` names it in errors. Raises SettingsError, which never quotes the PIN.

    With a PIN, a number alone gives no more than the name, unless the table says so.
    """
    if isinstance(table, dict) and "pin" in table:
        return read_table(TrustPolicy, {**_LEVELS_BESIDE_PIN, **table}, where)
    if isinstance(table, dict) and "with_pin" in table:
        raise SettingsError(f"{where}.with_pin needs a pin")
    return read_table(TrustPolicy, table, where)


# The PIN


class PinResult(enum.Enum):
    """The result of an attempt."""

    RIGHT = enum.auto()
    WRONG = enum.auto()
    LOCKED = enum.auto()
    """Wrong, and it was the last attempt of this call."""


class PinVerifier:
    """Checks the PIN of one call, by keypad or by voice. Ends with the right PIN or after too many attempts."""

    def __init__(self, pin: Secret, *, tries: int = MOST_TRIES) -> None:
        self.given = False
        self.tries_left = tries
        self._pin = pin
        self._keys = ""
        self._pressed_at = 0.0

    def pressed(self, key: str, now: float) -> PinResult | None:
        """Process a key: # and the last digit complete the PIN, * starts over. None while it is incomplete."""
        if now - self._pressed_at > KEY_PAUSE or key == "*":
            self._keys = ""
        self._pressed_at = now
        if re.fullmatch("[0-9]", key):
            self._keys += key
        if not self._keys or key != "#" and len(self._keys) < self._length:
            return None
        tried, self._keys = self._keys, ""
        return self._try(tried)

    def heard(self, text: str, *, question: str = "") -> PinResult | None:
        """
        Look for an attempt in the caller's answer to the agent's `question`. None if it contains no attempt.

        A number is an attempt if either of them calls it a PIN and it has the PIN's length. A shorter or longer one
        was misheard.
        """
        words = _words(text)
        if named := next((place for place, word in enumerate(words, 1) if word in _PIN), 0):
            numbers = [spoken_digits(words[named:]), spoken_digits(words)]
        else:
            numbers = [spoken_digits(words)] if _PIN.intersection(_words(question)) else []
        tried = next((number for number in numbers if len(number) == self._length), "")
        return self._try(tried) if tried else None

    @property
    def _length(self) -> int:
        return len(self._pin.reveal())

    def _try(self, tried: str) -> PinResult | None:
        if self.given or not self.tries_left:
            return None
        if hmac.compare_digest(tried.encode(), self._pin.reveal().encode()):
            self.given = True
            return PinResult.RIGHT
        self.tries_left -= 1
        return PinResult.WRONG if self.tries_left else PinResult.LOCKED


# Spoken digits: English, German, Spanish and French together, since no word means different digits in two of them

_PIN: Final = frozenset("pin pins pincode passcode geheimzahl geheimnummer clave código contraseña".split())
_LINKS: Final = frozenset(
    "is it its code number the my uh um er and so yes okay"
    " ist lautet die mein meine nummer zahl äh ähm ja es la mi número sí est cest le mon euh oui".split()
)
_DIGITS: Final = {
    word: str(digit)
    for digit, words in enumerate(
        (
            "zero oh o nought null cero zéro",
            "one eins uno un",
            "two zwei zwo dos deux",
            "three drei tres trois",
            "four vier cuatro quatre",
            "five fünf cinco cinq",
            "six sechs seis",
            "seven sieben siete sept",
            "eight acht ocho huit",
            "nine niner neun nueve neuf",
            "ten zehn diez dix",
            "eleven elf once onze",
            "twelve zwölf doce douze",
            "thirteen dreizehn trece treize",
            "fourteen vierzehn catorce quatorze",
            "fifteen fünfzehn quince quinze",
            "sixteen sechzehn dieciséis seize",
            "seventeen siebzehn diecisiete",
            "eighteen achtzehn dieciocho",
            "nineteen neunzehn diecinueve",
        )
    )
    for word in words.split()
}
_TENS: Final = {
    word: str(tens) for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
_REPEATS: Final = {"double": 2, "doppel": 2, "doble": 2, "triple": 3, "treble": 3, "dreifach": 3}


def spoken_digits(words: Iterable[str]) -> str:
    """The digits of the number at the beginning of these words, like "four double seven" or "forty seven eleven"."""
    digits, repeat, in_tens = "", 1, False
    for word in words:
        digit = word if re.fullmatch("[0-9]+", word) else _DIGITS.get(word)
        if word in _REPEATS:
            repeat = _REPEATS[word]
        elif word in _TENS:
            digits, in_tens = f"{digits}{_TENS[word]}0", True
        elif digit is not None:
            joins = in_tens and len(digit) == 1 and digit != "0"
            digits = (digits[:-1] if joins else digits) + digit * repeat
            repeat, in_tens = 1, False
        elif word not in _LINKS:
            break
    return digits


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", re.sub("['’]", "", text.casefold()))
