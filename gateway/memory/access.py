"""
How much of a caller's memory a live call may use: trust levels, the PIN that proves more, and whose memory it is.

A number can be forged, so it proves little. `[agents.NAME.memory.trust]` maps the network's attestation, the allow
list and a PIN to a level; the agent may use only what the level allows.
"""

import enum
import hmac
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, Final, Protocol

from pydantic import BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from gateway.errors import SettingsError
from gateway.memory.loader import MemoryLoader
from gateway.session import TrustLevel
from gateway.settings import Secret, read_table
from gateway.telephony.phone_numbers import Attestation
from gateway.text.redaction import REPEATS, TENS, digits_of

KEY_PAUSE: Final = 10.0
"""After a pause of this many seconds between two keys the PIN starts over: a stray key must not spoil an attempt."""


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


def _names(value: Any) -> Any:
    if not isinstance(value, list | tuple | frozenset) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of names in quotes")
    return frozenset(value)


Level = Annotated[TrustLevel, BeforeValidator(_level)]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(arbitrary_types_allowed=True))
class TrustPolicy:
    """`[agents.NAME.memory.trust]`. By default attested and listed numbers are trusted, and failed ones are not."""

    attested: Level = TrustLevel.EVERYTHING
    partly_attested: Level = TrustLevel.SUMMARIES
    unattested: Level = TrustLevel.SUMMARIES
    """Also for gateway attestation (level C)."""
    failed: Level = TrustLevel.NONE
    withheld: Level = TrustLevel.NONE
    allow_listed: Level = TrustLevel.EVERYTHING
    """The lowest level for numbers in ALLOWED_CALLERS; a * there lists no number."""
    with_pin: Level = TrustLevel.EVERYTHING
    """The lowest level after the right PIN."""
    pin: Annotated[Secret | None, BeforeValidator(_pin)] = None
    trusted_trunks: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    """Twilio SIP domains and Telnyx connection ids whose SIP headers identify callers."""

    def level(
        self,
        attestation: Attestation,
        *,
        withheld: bool = False,
        allow_listed: bool = False,
        trunk: str | None = None,
    ) -> TrustLevel:
        """
        The level of a call. The allow list proves nothing for a forged or withheld number.

        `trunk`: the caller is identified by a SIP header that came over this trunk. Anyone can write such a header,
        so that what vouches for the number does not vouch for the identifier.
        """
        attested = {
            Attestation.FULL: self.attested,
            Attestation.PARTIAL: self.partly_attested,
            Attestation.FAILED: self.failed,
        }
        level = self.withheld if withheld else attested.get(attestation, self.unattested)
        if allow_listed and not withheld and attestation is not Attestation.FAILED:
            level = max(level, self.allow_listed)
        if trunk is not None:
            level = self.attested if trunk in self.trusted_trunks else min(level, self.unattested)
        return level


def read_trust(table: Any, where: str) -> TrustPolicy:
    """
    Read the policy from a table; `where` names it in errors. Raises SettingsError, which never quotes the PIN.

    With a PIN, a number alone gives no more than the name, unless the table says so.
    """
    if isinstance(table, dict) and "pin" in table:
        by_number = dict.fromkeys(("attested", "partly_attested", "unattested", "allow_listed"), TrustLevel.NAME)
        return read_table(TrustPolicy, {**by_number, **table}, where)
    if isinstance(table, dict) and "with_pin" in table:
        raise SettingsError(f"{where}.with_pin needs a pin")
    return read_table(TrustPolicy, table, where)


# The PIN


class PinResult(enum.Enum):
    """The result of an attempt."""

    RIGHT = enum.auto()
    WRONG = enum.auto()
    LOCKED = enum.auto()
    """No attempt is accepted for now, not even the right PIN."""


class PinEntry:
    """Collects the keys of a PIN."""

    def __init__(self) -> None:
        self._keys = ""
        self._pressed_at = 0.0

    def pressed(self, key: str, now: float, length: int = 0) -> str:
        """Process a key: # and the digit that reaches `length` complete the PIN, * starts over. Returns its digits."""
        if now - self._pressed_at > KEY_PAUSE or key == "*":
            self._keys = ""
        self._pressed_at = now
        if re.fullmatch("[0-9]", key):
            self._keys = (self._keys + key)[:_TOO_MANY_DIGITS]
        return self.complete(1 if key == "#" else length)

    def complete(self, length: int) -> str:
        """The digits pressed so far, if they are as many as the PIN has; it then starts over."""
        if not length or len(self._keys) < length:
            return ""
        tried, self._keys = self._keys, ""
        return tried


def spoken_pin(text: str, *, question: str = "", length: int = 0) -> str:
    """
    The PIN in the caller's answer to the agent's `question`; empty if it contains none.

    A number is a PIN if either of them calls it so, and it has `length` digits, or 4 to 12. A shorter or longer one was
    misheard.
    """
    digits = f"[0-9]{{{length}}}" if length else _PIN_DIGITS
    return next((number for number in _spoken_pins(text, question) if re.fullmatch(digits, number)), "")


def check_common_pin(pin: Secret | None, tried: str) -> PinResult | None:
    """The result of an attempt at the PIN of all callers; None without one."""
    if pin is None:
        return None
    return PinResult.RIGHT if hmac.compare_digest(tried.encode(), pin.reveal().encode()) else PinResult.WRONG


def _spoken_pins(text: str, question: str) -> list[str]:
    """Numbers in the caller's answer to a question that may be a PIN, since one of the two calls them so."""
    words = _words(text)
    if named := next((place for place, word in enumerate(words, 1) if word in _PIN), 0):
        return [_spoken_digits(words[named:]), _spoken_digits(words)]
    return [_spoken_digits(words)] if _PIN.intersection(_words(question)) else []


_PIN_DIGITS: Final = "[0-9]{4,12}"
_TOO_MANY_DIGITS: Final = 13
_PIN: Final = frozenset("pin pins pincode passcode geheimzahl geheimnummer clave código contraseña".split())
_LINKS: Final = frozenset(
    "is it its code number the my uh um er and so yes okay"
    " ist lautet die mein meine nummer zahl äh ähm ja es la mi número sí est cest le mon euh oui"
    " to as be auf in zu als soll a al en por será à pour par sera comme sur".split()
)


def _spoken_digits(words: Iterable[str]) -> str:
    """The digits of the number at the beginning of these words, like "four double seven" or "forty seven eleven"."""
    digits, repeat, in_tens = "", 1, False
    for word in words:
        if word in REPEATS:
            repeat = REPEATS[word]
        elif re.fullmatch("[0-9]+", digit := digits_of(word)):
            joins = in_tens and len(digit) == 1 and digit != "0"
            digits = (digits[:-1] if joins else digits) + digit * repeat
            repeat, in_tens = 1, word in TENS
        elif word not in _LINKS and word not in _PIN:
            break
    return digits


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", re.sub("['’]", "", text.casefold()))


# The access of a live call


class AccessChange(enum.Enum):
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
        self.proven = False
        """Whether the network attests the number (level A), or the caller gave the PIN: enough to erase everything."""
        self.locked = False
        """Set when the memory is another person's, or was erased at the caller's request."""
        self.memory: MemoryLoader | None = None
        """What is being loaded for `caller`; None without memory."""
        self._source: MemorySource = NoMemory()
        self._observers: list[Callable[[AccessChange], None]] = []

    def allows(self, level: TrustLevel) -> bool:
        return self.level >= level and not (self.locked and level)

    def subscribe(self, observer: Callable[[AccessChange], None]) -> None:
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

    async def pin_length(self) -> int:
        """How many digits the caller's own PIN has; 0 without one. Raises StoreError."""
        return await self._source.pin_length(self.caller)

    async def check_pin(self, tried: str) -> "PinResult | None":
        """The result of an attempt at the caller's PIN or, without one, the agent's. None without either."""
        return await self._source.check_pin(self.caller, tried)

    async def set_pin(self, pin: str) -> None:
        """Store the caller's own PIN. Raises StoreError."""
        await self._source.set_pin(self.caller, pin)

    def close(self) -> None:
        """Stop loading and drop all observers: the media stream has ended."""
        self._observers.clear()
        if self.memory is not None:
            self.memory.cancel()
            self.memory = None

    # Changes

    def raise_level(self, level: TrustLevel) -> None:
        """The caller gave the PIN."""
        self.proven = True
        self.level = max(self.level, level)
        if self.memory is None:  # the lower level did not allow it
            self.memory = self._source.load(self.caller)
        self._notify(AccessChange.LEVEL_RAISED)

    def change_caller(self, caller: str) -> None:
        self.caller = caller
        if self.memory is not None:
            self.memory.cancel()
        self.memory = self._source.load(caller)
        self._notify(AccessChange.CALLER_CHANGED)

    def change_speaker(self) -> None:
        """Another person speaks; `name_speaker` follows."""
        self._notify(AccessChange.SPEAKER_CHANGED)

    def name_speaker(self, name: str, *, locked: bool) -> None:
        """The person who speaks has given a name. `locked`: the memory of that name is closed in this call."""
        self.person = name
        if self.memory is not None and self.memory.person_is(name):
            self.locked = locked
            self._notify(AccessChange.CONTENT_CHANGED)

    def revoke(self) -> None:
        self.locked = True
        self._notify(AccessChange.REVOKED)

    def _notify(self, change: AccessChange) -> None:
        for observer in list(self._observers):
            observer(change)


class MemorySource(Protocol):
    """The memory that an agent has of its callers."""

    @property
    def can_erase(self) -> bool: ...

    def load(self, caller: str) -> MemoryLoader | None:
        """Start to load a caller's memory. None for a caller without memory, or if the call may not use it."""

    async def erase(self, caller: str) -> None:
        """Delete everything about a caller. Raises StoreError."""

    async def pin_length(self, caller: str) -> int:
        """How many digits a caller's own PIN has; 0 without one. Raises StoreError."""

    async def check_pin(self, caller: str, tried: str) -> PinResult | None:
        """Check and count an attempt at the caller's PIN or, without one, the agent's. Raises StoreError."""

    async def set_pin(self, caller: str, pin: str) -> None:
        """Store a caller's PIN. Raises StoreError."""


@dataclass(frozen=True, config=ConfigDict(arbitrary_types_allowed=True))
class NoMemory:
    """The MemorySource of a gateway without memory. The PIN of all callers counts all the same."""

    pin: Secret | None = None

    can_erase: ClassVar[bool] = False

    def load(self, caller: str) -> None: ...

    async def erase(self, caller: str) -> None: ...

    async def pin_length(self, caller: str) -> int:
        return 0

    async def check_pin(self, caller: str, tried: str) -> PinResult | None:
        return check_common_pin(self.pin, tried)

    async def set_pin(self, caller: str, pin: str) -> None: ...
