"""
Caller identifiers, the keys of memory; and which of several people on one number is speaking.

A number is used as it is, in E.164. Any other identifier is prefixed with its source, so that it can never equal a
number.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final
from urllib.parse import quote

from pydantic import AfterValidator, BeforeValidator
from pydantic.dataclasses import dataclass

from gateway.telephony.phone_numbers import ANONYMOUS, caller_id
from gateway.text.person_names import NameMatch, PersonName, compare, resolve

MOST_CHARACTERS: Final = 200
"""Length limit of an identifier with its prefix; anything longer does not identify a person."""

LONG_SILENCE: Final = 20.0
"""After this many seconds without speech another person may have the phone; a setting overrides it."""

_SOURCES: Final = ("sip_header", "integration_attribute", "state")
# What systems send for an unknown customer. As an identifier it would merge all of them.
_UNKNOWN: Final = frozenset({"", *"0 none null nil nan n/a undefined unknown anonymous guest".split()})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class IdentifierSource:
    """Where an identifier comes from: sip_header, integration_attribute or state, and its name there."""

    kind: str
    name: str


USER_IDENTITY: Final = IdentifierSource("integration_attribute", "user_identity")
"""Identifiers of users that a website has authenticated."""


def _must(is_valid: Callable[[Any], bool], problem: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(f"must {problem}")
        return value

    return BeforeValidator(check)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list | tuple | frozenset) and all(isinstance(item, str) for item in value)


def _blacklist(value: tuple[str, ...]) -> tuple[str, ...]:
    if any("*" in entry.strip()[:-1] for entry in value):
        raise ValueError(': a * is allowed only at the end of an entry, like "+1202*"')
    entries = [_text(entry).casefold() for entry in value]
    return tuple(re.sub(r"[\s().-]", "", entry) if entry.startswith("+") else entry for entry in entries)


def _source(value: Any) -> IdentifierSource | None:
    if value is None or isinstance(value, IdentifierSource):
        return value
    kind, _, name = (part.strip() for part in value.partition(":")) if isinstance(value, str) else ("", "", "")
    if kind not in _SOURCES or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name):
        raise ValueError("must be like sip_header:X-Customer-Id, integration_attribute:NAME or state:NAME")
    return IdentifierSource(kind, name.lower() if kind == "sip_header" else name)


@dataclass(frozen=True, slots=True)
class RepeatCallerSettings:
    """`[agents.NAME.memory.repeat_caller]`."""

    analytics_enabled: Annotated[bool, _must(lambda value: isinstance(value, bool), "be true or false")] = False
    state_keys: Annotated[frozenset[str], _must(_is_list_of_texts, "be a list of names")] = frozenset()
    """What tools may store about a caller from call to call."""
    identifier_blacklist: Annotated[
        tuple[str, ...],
        AfterValidator(_blacklist),
        _must(
            lambda value: _is_list_of_texts(value) and all(map(str.strip, value)),
            "be a list of numbers and other identifiers in quotes",
        ),
    ] = ()
    """
    Callers that are never stored or read: identifiers, or prefixes that end in *. Digits after a + are a
    prefix even without *, since no number is the beginning of another; so is an entry that ends in a punctuation mark.
    """
    identifier_source: Annotated[IdentifierSource | None, BeforeValidator(_source)] = None
    """None: the caller's number, which is also used when the source has no value."""
    new_person_after: Annotated[
        float, _must(lambda value: type(value) in (int, float) and value > 0, "be a number of seconds")
    ] = LONG_SILENCE
    """Seconds without speech after which a new name belongs to another person."""

    @property
    def may_be_known_later(self) -> bool:
        """Whether tools may identify the caller during the call."""
        return self.identifier_source is not None and self.identifier_source.kind == "state"


def identifier(
    settings: RepeatCallerSettings,
    number: str,
    *,
    sip_headers: Mapping[str, str] = _NOTHING,
    attributes: Mapping[str, str] = _NOTHING,
    state: Mapping[str, Any] = _NOTHING,
    user_identity: str = "",
) -> str:
    """
    The key of this caller's memory; ANONYMOUS if nothing may be stored or read.

    `number` is in any spelling of a carrier, `sip_headers` have lower-case names, `attributes` are stream parameters
    and those of an outbound call. `state` may change during a call, and the result with it. `user_identity` is the id
    of a user that a website has authenticated; it is never taken for a number.
    """
    source = settings.identifier_source
    if user_identity:
        source, attributes, number = USER_IDENTITY, {USER_IDENTITY.name: user_identity}, ""
    if source is not None:
        places = {"sip_header": sip_headers, "integration_attribute": attributes, "state": state}
        given = _text(places[source.kind].get(source.name))
        found = f"{source.kind}:{source.name}:{quote(given, safe='@+')}"
        if given.casefold() not in _UNKNOWN and len(found) <= MOST_CHARACTERS:
            return ANONYMOUS if _is_listed(given, settings.identifier_blacklist) else found
    found = caller_id(number)
    return ANONYMOUS if _is_listed(found, settings.identifier_blacklist) else found


def is_identifier(text: str) -> bool:
    """Whether this is a memory key other than a number."""
    kind, *rest = text.split(":", 2)
    return kind in _SOURCES and len(rest) == 2


class SpeakerTracker:
    """
    Tracks which of the people on one number is speaking, by the names they give.

    Another person's name, or words like "this is his wife", at the beginning of a call or after a long silence mean
    that someone else speaks: the first person's memory is locked for the rest of the call. An unfamiliar name alone is
    taken for a misheard one, and during a conversation for a correction; after a silence, when the caller has given
    a name before, it is another person's.
    """

    def __init__(self, known_name: str = "", *, silence: float = LONG_SILENCE) -> None:
        self.name = known_name
        self.locked = False
        self._silence = silence
        self._may_be_another = True
        self._named_in_call = False
        self._heard_at: float | None = None

    def heard(self, now: float, name: str = "", *, relation: str = "") -> bool:
        """
        The caller has spoken and perhaps given a name, or their `relation` to the known person.

        Returns whether it is another person than before; `name` is theirs then.
        """
        if self._heard_at is not None and now - self._heard_at >= self._silence:
            self._may_be_another = True
        self._heard_at = now
        given = name or relation
        if not given:
            return False
        resolved = resolve(self.name, given, is_relative=bool(relation) or self._named_in_call)
        is_another = self._may_be_another and bool(self.name) and not same_person(self.name, resolved)
        self.locked |= is_another
        self.name = resolved if self._may_be_another else given
        self._may_be_another = False
        self._named_in_call = True
        return is_another


def same_person(known: str, given: str) -> bool:
    """Whether two names are one person's, as far as names can show; an empty name is anyone's."""
    if not known or not given:
        return True
    return compare(PersonName.parse(known), PersonName.parse(given)) is NameMatch.SAME


def only_person(names: Iterable[str]) -> str:
    """The one person that all of these names may belong to; empty for several people, or none."""
    given = list(dict.fromkeys(filter(None, names)))
    return given[0] if given and all(same_person(given[0], name) for name in given) else ""


def _text(value: object) -> str:
    """The identifier in normalized spelling; empty for a value that is no identifier."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return unicodedata.normalize("NFC", str(value)).strip()


def _is_listed(value: str, entries: Iterable[str]) -> bool:
    value = value.casefold()
    for entry in entries:
        is_prefix = not entry[-1].isalnum() or re.fullmatch(r"\+\d+", entry)
        if value == entry or is_prefix and value.startswith(entry.rstrip("*")):
            return True
    return False
