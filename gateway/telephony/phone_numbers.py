"""Phone numbers: caller ids and how far carriers vouch for them, who may call, and what may be dialled."""

import enum
import functools
import re
import unicodedata
from collections.abc import Iterable
from typing import Final

import phonenumbers

from gateway.errors import NumberNotAllowed, SettingsError

ANONYMOUS: Final = ""
"""A withheld, unknown or incomplete number. Nothing is remembered about such callers."""

# The keypad spellings of ANONYMOUS, RESTRICTED, BLOCKED, UNKNOWN and UNAVAILABLE. They look like numbers but are shared
# by all callers who hide theirs (Twilio help, "Why am I getting calls from these strange numbers").
_KEYPAD_WORDS: Final = frozenset({"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"})

# No letters: phonenumbers would map them to keypad digits and turn a word into a real number.
_WRITTEN: Final = re.compile(r"\+[\d\s().-]+")
_SEARCHED: Final = re.compile(r"\+?(?:[\s()./\u2010-\u2015-]*\d){3,}\s*", re.ASCII)
_MAX_EXTENSION: Final = 6
"""A search for up to this many digits may be for the end of a number, and so begin with zeros."""

# No character that could end an XML attribute or element: the address goes into TwiML.
_SIP_ADDRESS: Final = re.compile(r"sips?:[\w.!~*+$%=-]+@[\w.-]+(:\d{1,5})?(;[\w.=-]+)*", re.ASCII)

_COSTLY_TYPES: Final = frozenset(
    {
        phonenumbers.PhoneNumberType.PREMIUM_RATE,
        phonenumbers.PhoneNumberType.SHARED_COST,
        phonenumbers.PhoneNumberType.PERSONAL_NUMBER,  # forwards anywhere, at the price of a premium-rate number
    }
)
# Satellite networks (+870, +881, and +882, +883 shared with others), personal numbers (+878), disaster relief (+888),
# and premium rate (+979): country codes without a country (ITU-T E.164, list of assigned country codes).
_COSTLY_CODES: Final = frozenset({"+870", "+878", "+881", "+882", "+883", "+888", "+979"})
# Premium-rate ranges that phonenumbers takes for ordinary or unknown ones: local 976 numbers in North America,
# televoting in Spain, directory enquiries in Austria and Germany.
_COSTLY_RANGES: Final = re.compile(r"\+1\d{3}976|\+34905|\+4[39]118\d{2,3}$")
_MAX_EXTRA_DIGITS: Final = 4


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


def searched_digits(text: str) -> str:
    """The digits of a number, or of a part of one, in any spelling; empty if the text is something else."""
    text = unicodedata.normalize("NFKC", text).strip().lower().removeprefix("tel:").replace("(0)", "")
    if not _SEARCHED.fullmatch(text):
        return ""
    digits = re.sub(r"\D", "", text)
    # The prefix of international calls, or of calls to another area. The stored number has neither.
    return digits.lstrip("0") if len(digits) > _MAX_EXTENSION else digits


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


class DialingRules:
    """
    OUTBOUND_ALLOWED: prefixes of the numbers that may be dialled and transferred to, * for all.

    Without any, the country of the agent's own number. `known` are targets that the settings name. Expensive numbers
    (premium rate, satellite) always need a prefix that reaches into their range: a country code or * is not enough.
    """

    def __init__(self, allowed: Iterable[str] = (), known: Iterable[str] = ()) -> None:
        self.anywhere = "*" in allowed
        self._prefixes = tuple(_prefix(entry) for entry in allowed if entry != "*")
        self._known: frozenset[str] = frozenset()
        self.set_known(known)

    def set_known(self, targets: Iterable[str]) -> None:
        """Replace `known`. Raises SettingsError as `check_known` does."""
        known = frozenset(targets)
        self.check_known(known)
        self._known = known

    def check_known(self, targets: Iterable[str]) -> None:
        """Raise SettingsError for an expensive number among targets that the settings name."""
        for target in targets:
            try:
                self._check_price(_dialled(target))
            except NumberNotAllowed as error:
                raise SettingsError(f"transfer_to: {target} is {error}") from None

    def check(self, target: str, own: str) -> None:
        """Raise NumberNotAllowed unless the agent with the number `own` may dial this number or SIP address."""
        number = _dialled(target)
        if number is None:
            return
        self._check_price(number)
        if _is_sip(target) or self.anywhere or target in self._known or number.startswith(self._prefixes):
            return
        if self._prefixes or not own or _country(number) != _country(own):
            raise NumberNotAllowed("a number that is not allowed; add its prefix to OUTBOUND_ALLOWED")

    def _check_price(self, number: str | None) -> None:
        if number and _is_costly(number) and not any(_names_range(prefix, number) for prefix in self._prefixes):
            raise NumberNotAllowed("a premium-rate or satellite number; add its prefix to OUTBOUND_ALLOWED")


def _is_sip(target: str) -> bool:
    return target.startswith(("sip:", "sips:"))


def _dialled(target: str) -> str | None:
    """The telephone number of a target. A SIP provider may route +1… in an address to the telephone network."""
    return e164(target.partition(":")[2].partition("@")[0]) if _is_sip(target) else target


def _prefix(entry: str) -> str:
    prefix = re.sub(r"[\s().-]", "", entry)
    if not re.fullmatch(r"\+[1-9]\d{0,14}", prefix):
        raise SettingsError(f"OUTBOUND_ALLOWED: {entry!r} is not a prefix; write it like +1 or +1202, or * for all")
    return prefix


def _country(number: str) -> str | None:
    """The country, more exact than its code: +1 is shared by 25 countries."""
    parsed = phonenumbers.parse(number, None)
    main = phonenumbers.region_code_for_country_code(parsed.country_code or 0)
    return phonenumbers.region_code_for_number(parsed) or main


def _is_costly(number: str) -> bool:
    """A premium-rate number stays one with more digits at its end: networks ignore them."""
    code = f"+{phonenumbers.parse(number, None).country_code}"
    if code in _COSTLY_CODES or _COSTLY_RANGES.match(number):
        return True
    for length in range(len(number), max(len(number) - _MAX_EXTRA_DIGITS, len(code) + 4), -1):
        kind = phonenumbers.number_type(phonenumbers.parse(number[:length], None))
        if kind != phonenumbers.PhoneNumberType.UNKNOWN:
            return kind in _COSTLY_TYPES
    return False


@functools.lru_cache(maxsize=256)
def _names_range(prefix: str, number: str) -> bool:
    """
    Whether a prefix reaches into the range of this costly number: only costly numbers start with it.

    +447 does not, since mobile numbers start with it too; +4470 does. Numbers with any two digits after the prefix are
    a sample that distinguishes the ranges of all countries.
    """
    code = f"+{phonenumbers.parse(number, None).country_code}"
    if not number.startswith(prefix) or len(prefix) < len(code) + (code not in _COSTLY_CODES):
        return False
    rest = number[len(prefix) + 2 :]
    sample = (f"{prefix}{digits:02}{rest}" for digits in range(100))
    return not rest or not any(_is_ordinary(other) for other in sample)


def _is_ordinary(number: str) -> bool:
    kind = phonenumbers.number_type(phonenumbers.parse(number, None))
    return kind != phonenumbers.PhoneNumberType.UNKNOWN and not _is_costly(number)
