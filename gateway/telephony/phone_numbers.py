"""Phone numbers: caller ids and how far carriers vouch for them, transfer targets, and ALLOWED_CALLERS."""

import enum
import re
from typing import Final

import phonenumbers

from gateway.errors import SettingsError

ANONYMOUS: Final = ""
"""A withheld, unknown or incomplete number. Nothing is remembered about such callers."""

# The keypad spellings of ANONYMOUS, RESTRICTED, BLOCKED, UNKNOWN and UNAVAILABLE. They look like numbers but are shared
# by all callers who hide theirs (Twilio help, "Why am I getting calls from these strange numbers").
_KEYPAD_WORDS: Final = frozenset({"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"})

# No letters: phonenumbers would map them to keypad digits and turn a word into a real number.
_WRITTEN: Final = re.compile(r"\+[\d\s().-]+")

# No character that could end an XML attribute or element: the address goes into TwiML.
_SIP_ADDRESS: Final = re.compile(r"sips?:[\w.!~*+$%=-]+@[\w.-]+(:\d{1,5})?(;[\w.=-]+)*", re.ASCII)


def caller_id(claimed: str | None) -> str:
    """The caller as an E.164 number, or ANONYMOUS if it is withheld or unusable."""
    number = e164(claimed or "")
    return ANONYMOUS if number is None or number in _KEYPAD_WORDS else number


def e164(text: str) -> str | None:
    """A number with country code, in E.164; None if it is not a possible number."""
    text = text.strip()
    if not _WRITTEN.fullmatch(text) or text in _KEYPAD_WORDS:
        return None
    try:
        number = phonenumbers.parse(text, None)
    except phonenumbers.NumberParseException:
        return None
    # `is_possible_number` would accept a local number without area code.
    if phonenumbers.is_possible_number_with_reason(number) != phonenumbers.ValidationResult.IS_POSSIBLE:
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def readable(text: str) -> str:
    """An E.164 number in readable form, +1 202-555-0143; anything else unchanged."""
    if e164(text) != text:
        return text
    return phonenumbers.format_number(phonenumbers.parse(text, None), phonenumbers.PhoneNumberFormat.INTERNATIONAL)


def transfer_target(text: str) -> str | None:
    """A number in E.164 or a SIP address; None if the text is neither."""
    text = text.strip()
    return text if _SIP_ADDRESS.fullmatch(text) else e164(text)


class Attestation(enum.StrEnum):
    """
    How far the originating carrier vouches for the caller's number (STIR/SHAKEN).

    Read from the carrier's own webhook fields only: a SIP header may claim one too, but the calling party writes that.
    """

    FULL = "full"
    """Level A: the originating carrier knows its customer and the customer's right to the number."""
    PARTIAL = "partial"
    """Level B: it knows its customer, but not the right to the number. Or level A that was relayed."""
    GATEWAY = "gateway"
    """Level C: it only passed the call into the network."""
    FAILED = "failed"
    """The call claimed a level, but its signature was invalid."""
    NONE = "none"
    """No attestation. Normal for international and SIP calls."""

    @classmethod
    def of_level(cls, letter: object) -> "Attestation":
        levels = {"A": cls.FULL, "B": cls.PARTIAL, "C": cls.GATEWAY}
        return levels.get(letter.upper(), cls.NONE) if isinstance(letter, str) else cls.NONE


class AllowList:
    """ALLOWED_CALLERS."""

    def __init__(self, entries: frozenset[str]) -> None:
        self.anyone = "*" in entries
        numbers = {entry: e164(entry) for entry in entries - {"*"}}
        for entry, number in numbers.items():
            if number is None:
                raise SettingsError(f"ALLOWED_CALLERS: {entry!r} is not an E.164 number; write it like +12025550143")
        self._numbers = frozenset(numbers.values())

    def __bool__(self) -> bool:
        return self.anyone or bool(self._numbers)

    def lists(self, caller: str) -> bool:
        """Whether this number is listed explicitly; a * does not count."""
        return caller in self._numbers

    def admits(self, caller: str) -> bool:
        """Whether this caller (as returned by `caller_id`) may call."""
        return self.anyone or caller in self._numbers
