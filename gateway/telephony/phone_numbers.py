"""Telephone numbers: who a caller is, who must stay nameless, and where a call can be sent."""

import re
from typing import Final

import phonenumbers

from gateway.errors import SettingsError

ANONYMOUS: Final = ""
"""A caller whom nothing may be remembered of: withheld, unknown, or not a full telephone number."""

# The keypad spellings of ANONYMOUS, RESTRICTED, BLOCKED, UNKNOWN and UNAVAILABLE. They pass for numbers, and belong
# to everybody who hides theirs (Twilio, "Why am I getting calls from these strange numbers").
_KEYPAD_WORDS: Final = frozenset({"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"})

# Letters would be taken for the keys they stand on, and make a number of anybody's out of a word.
_WRITTEN: Final = re.compile(r"\+[\d\s().-]+")

# Nothing that could end an attribute or an element where a carrier wants the address in XML.
_SIP_ADDRESS: Final = re.compile(r"sips?:[\w.!~*+$%=-]+@[\w.-]+(:\d{1,5})?(;[\w.=-]+)*", re.ASCII)


def caller_id(claimed: str | None) -> str:
    """The caller as an E.164 number, or ANONYMOUS for every spelling of a withheld or unusable one."""
    number = e164(claimed or "")
    return ANONYMOUS if number is None or number in _KEYPAD_WORDS else number


def e164(text: str) -> str | None:
    """A full number written with its country code, in E.164; None if it can't be one."""
    text = text.strip()
    if not _WRITTEN.fullmatch(text) or text in _KEYPAD_WORDS:
        return None
    try:
        number = phonenumbers.parse(text, None)
    except phonenumbers.NumberParseException:
        return None
    # `is_possible_number` would let a local number pass, one without its area code.
    if phonenumbers.is_possible_number_with_reason(number) != phonenumbers.ValidationResult.IS_POSSIBLE:
        return None
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def readable(text: str) -> str:
    """A number in E.164 as a person reads it, +1 202-555-0143; anything else as it is."""
    if e164(text) != text:
        return text
    return phonenumbers.format_number(phonenumbers.parse(text, None), phonenumbers.PhoneNumberFormat.INTERNATIONAL)


def transfer_target(text: str) -> str | None:
    """Where a call can be sent: a number in E.164 or a SIP address; None if it is neither."""
    text = text.strip()
    return text if _SIP_ADDRESS.fullmatch(text) else e164(text)


class AllowList:
    """ALLOWED_CALLERS: who may speak to the agent."""

    def __init__(self, entries: frozenset[str]) -> None:
        self.anyone = "*" in entries
        self._numbers = frozenset(_entry(entry) for entry in entries - {"*"})

    def __bool__(self) -> bool:
        return self.anyone or bool(self._numbers)

    def lists(self, caller: str) -> bool:
        """Whether this very number is on the list; a * there lists nobody."""
        return caller in self._numbers

    def admits(self, caller: str) -> bool:
        """Whether this caller (as `caller_id` gave it) may call."""
        return self.anyone or caller in self._numbers


def _entry(text: str) -> str:
    number = e164(text)
    if number is None:
        raise SettingsError(f"ALLOWED_CALLERS: {text!r} is not an E.164 number; write it like +12025550143")
    return number
