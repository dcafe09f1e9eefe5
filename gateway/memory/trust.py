"""
How far a caller is trusted with what is remembered under their number.

A number can be forged, so it proves little by itself. What does prove something (the network's attestation, the
allow-list, a PIN) is mapped to a tier by `[agents.NAME.memory.trust]`; only what the tier allows may be told.
"""

import enum
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Protocol

from gateway.errors import SettingsError
from gateway.settings import Secret
from gateway.telephony.attestation import Attestation

if TYPE_CHECKING:  # the loader needs stores; who only reads settings does not
    from gateway.memory.loader import MemoryLoader

MOST_TRIES: Final = 3
KEY_PAUSE: Final = 10.0
"""Seconds between two keys after which the number begins anew: a key hit by chance must not spoil the next try."""


class TrustLevel(enum.IntEnum):
    """What may be told. Each tier has all of those below it; its text is the word used in settings and receipts."""

    NONE = 0
    NAME = 1
    """The caller's name, and nothing else."""
    SUMMARIES = 2
    """Notes of earlier calls too."""
    EVERYTHING = 3
    """Also facts, state and pinned topics."""

    def __str__(self) -> str:
        return self.name.lower()


class MemoryChange(enum.Enum):
    """A change of the memory that the agent of a live call may use."""

    LEVEL_RAISED = enum.auto()
    """More of the same memory may be used."""
    CALLER_CHANGED = enum.auto()
    """A tool has identified the caller: the memory of another identifier applies."""
    SPEAKER_CHANGED = enum.auto()
    """Another person has the phone. Kept state is not theirs."""
    CONTENT_CHANGED = enum.auto()
    """Other facts and past calls apply to the person who speaks."""
    REVOKED = enum.auto()
    """No memory may be used for the rest of the call."""


class MemoryAccess:
    """
    Whose memory the agent of one call may use now, and at which level.

    Observers get every change, after it has taken effect, in the order in which they subscribed. The object belongs
    to the call, not to its media stream: a resumed call keeps its level.
    """

    def __init__(self, level: TrustLevel = TrustLevel.EVERYTHING, *, caller: str = "") -> None:
        self.level = level
        self.caller = caller
        """The identifier under which the memory is kept; empty: nothing is read or kept."""
        self.person = ""
        """The name of the person who speaks, if several people share a number and this one has given a name."""
        self.locked = False
        """Set when the memory is another person's, or was erased at the caller's request."""
        self.memory: MemoryLoader | None = None
        """What is being loaded for `caller`; None without memory."""
        self._source: MemorySource = NoMemory()
        self._observers: list[Callable[[MemoryChange], None]] = []

    def allows(self, level: TrustLevel) -> bool:
        return self.level >= level and not (self.locked and level)

    def subscribe(self, observer: Callable[[MemoryChange], None]) -> None:
        self._observers.append(observer)

    def open(self, source: "MemorySource") -> None:
        """Start to load the memory of `caller`."""
        self._source = source
        self.memory = source.load(self.caller)

    @property
    def can_erase(self) -> bool:
        return self._source.can_erase

    async def erase(self) -> None:
        """Delete all that is stored about `caller`. Raises StoreError."""
        await self._source.erase(self.caller)

    def close(self) -> None:
        """Stop loading and drop all observers: the media stream has ended."""
        self._observers.clear()
        if self.memory is not None:
            self.memory.cancel()
            self.memory = None

    # Changes

    def raise_level(self, level: TrustLevel) -> None:
        self.level = max(self.level, level)
        self._notify(MemoryChange.LEVEL_RAISED)

    def change_caller(self, caller: str) -> None:
        self.caller = caller
        if self.memory is not None:
            self.memory.cancel()
        self.memory = self._source.load(caller)
        self._notify(MemoryChange.CALLER_CHANGED)

    def change_speaker(self) -> None:
        """Another person speaks; `name_speaker` follows."""
        self._notify(MemoryChange.SPEAKER_CHANGED)

    def name_speaker(self, name: str, *, locked: bool) -> None:
        """The person who speaks has given a name. `locked`: the memory of that name is closed in this call."""
        self.person = name
        if self.memory is not None and self.memory.person_is(name):
            self.locked = locked
            self._notify(MemoryChange.CONTENT_CHANGED)

    def revoke(self) -> None:
        self.locked = True
        self._notify(MemoryChange.REVOKED)

    def _notify(self, change: MemoryChange) -> None:
        for observer in list(self._observers):
            observer(change)


class MemorySource(Protocol):
    """The memory that an agent has of its callers."""

    @property
    def can_erase(self) -> bool: ...

    def load(self, caller: str) -> "MemoryLoader | None":
        """Start to load a caller's memory. None if there is none, or if the call may not use it."""

    async def erase(self, caller: str) -> None:
        """Delete everything about a caller. Raises StoreError."""


class NoMemory:
    """The MemorySource of a gateway without memory."""

    can_erase = False

    def load(self, caller: str) -> None: ...

    async def erase(self, caller: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustPolicy:
    """`[agents.NAME.memory.trust]`. Without it every number is believed, unless its attestation has failed."""

    attested: TrustLevel = TrustLevel.EVERYTHING
    partly_attested: TrustLevel = TrustLevel.EVERYTHING
    unattested: TrustLevel = TrustLevel.EVERYTHING
    """Also for a carrier that has only let the call into the network."""
    failed: TrustLevel = TrustLevel.NONE
    withheld: TrustLevel = TrustLevel.NONE
    allow_listed: TrustLevel = TrustLevel.NONE
    """At least this for the numbers in ALLOWED_CALLERS; a * there lists nobody."""
    with_pin: TrustLevel = TrustLevel.EVERYTHING
    """At least this once the PIN was given."""
    pin: Secret | None = None

    def level(
        self, attestation: Attestation, *, withheld: bool = False, allow_listed: bool = False, pin_given: bool = False
    ) -> TrustLevel:
        """The tier in force. Being on the list proves nothing for a number that is forged or not there."""
        tier = self.withheld if withheld else self._attested(attestation)
        if allow_listed and not withheld and attestation is not Attestation.FAILED:
            tier = max(tier, self.allow_listed)
        return max(tier, self.with_pin) if pin_given else tier

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


_NUMBER_BESIDE_PIN: Final = dict.fromkeys(("attested", "partly_attested", "unattested"), TrustLevel.NAME)


def read_trust(table: Any, where: str) -> TrustPolicy:
    """
    The policy in a table; `where` names it for a person. Raises SettingsError, which never quotes the PIN.

    With a PIN, a number alone opens no more than the name, unless the table says so.
    """
    known = {field.name for field in fields(TrustPolicy)}
    if not isinstance(table, dict):
        raise SettingsError(f"{where} must be a table")
    if unknown := sorted(set(table) - known):
        raise SettingsError(f"{where}: unknown key {unknown[0]}; known are {', '.join(sorted(known))}")
    given: dict[str, Any] = {
        key: (_pin if key == "pin" else _level)(value, f"{where}.{key}") for key, value in table.items()
    }
    if "pin" in given:
        return TrustPolicy(**_NUMBER_BESIDE_PIN | given)
    if "with_pin" in given:
        raise SettingsError(f"{where}.with_pin needs a pin")
    return TrustPolicy(**given)


def _level(value: Any, where: str) -> TrustLevel:
    words = {str(tier): tier for tier in TrustLevel}
    if not isinstance(value, str) or value not in words:
        raise SettingsError(f"{where} must be one of {', '.join(words)}")
    return words[value]


def _pin(value: Any, where: str) -> Secret:
    if not isinstance(value, str) or not re.fullmatch(r"[0-9]{4,12}", value):
        raise SettingsError(f"{where} must be 4 to 12 digits in quotes")
    return Secret(value)


# The PIN


class PinResult(enum.Enum):
    """What came of a try."""

    RIGHT = enum.auto()
    WRONG = enum.auto()
    LOCKED = enum.auto()
    """Wrong, and the last try in this call."""


class PinVerifier:
    """One call's PIN, by keypad or by voice. Once it was given, or tried too often, nothing more is a try."""

    def __init__(self, pin: Secret, *, tries: int = MOST_TRIES) -> None:
        self.given = False
        self.tries_left = tries
        self._pin = pin
        self._keys = ""
        self._pressed_at = 0.0

    def pressed(self, key: str, now: float) -> PinResult | None:
        """A key: # ends the number, as its last digit does; * begins anew. None while it is not complete."""
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
        What the caller said, and what the agent had said before it. None where that is no try.

        A number is one if either of them calls it a PIN, and it has the PIN's length: a shorter or longer one was
        misheard.
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


# Spoken digits: English, German, Spanish and French at once, as no word means one digit here and another there

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
    """The digits of a number that is spoken first thing, as "four double seven" or "forty seven eleven"."""
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
