"""
How two facts about one caller relate: a repeat, a correction, or a contradiction.

The rules, for English, are the tables below. In doubt both facts are kept: a duplicate does less harm than a loss.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Relation = Literal["repeat", "correction", "contradiction"]

SAME: Final = 0.6
"""The share of common words from which two facts are about the same thing."""


def _singular(word: str) -> str:
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]


# What a caller has one of: a new value replaces the old one.
_SLOTS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("name", r"(?:is called|is named|name is) (?P<value>.+)"),
        ("way to be called", r"(?:wants|likes|prefers) to be called (?P<value>.+)"),
        ("home", r"(?:lives|is living|is based) (?:in|at|on|near) (?P<value>(?-i:[A-Z\d]).+)"),
        ("address", r"(?:has (?:the )?)?(?:home )?address(?: is)? (?P<value>.+)"),
        ("employer", r"works (?:at|for) (?P<value>(?-i:[A-Z]).+)"),
        ("email", r"(?:(?:has|uses) )?(?:the )?e-?mail(?: address)?(?: is)? (?P<value>\S+@\S+)"),
        ("call back", r"(?:can be|is) (?:reached|called back|available) (?:on|at|under) (?P<value>\+?[\d ().-]{7,})"),
        *(
            (f"{kind} number", rf"(?:has )?(?:the )?{kind}(?: phone)? (?:number|id|code)(?: is)? (?P<value>.*\d.*)")
            for kind in ("phone", "telephone", "mobile", "cell", "work", "home", "office")
        ),
        *(
            (f"{kind} number", rf"(?:has )?(?:the )?{kind} (?:number|id|code)(?: is)? (?P<value>.*\d.*)")
            for kind in ("customer", "client", "account", "member", "membership", "loyalty", "policy", "contract")
        ),
    )
)
_SYNONYMS: Final = {"sms": "text", "message": "text", "mail": "email", "call": "phone", "telephone": "phone"}
# Alternatives: preferring one of a line excludes the others.
_CHOICES: Final = tuple(
    frozenset(choices.split())
    for choices in (
        "morning noon afternoon evening night",
        "monday tuesday wednesday thursday friday saturday sunday",
        "text email phone letter whatsapp",
        "cash card invoice transfer cheque",
        "window aisle",
        "small medium large",
        "english spanish french german italian portuguese chinese hindi arabic",
    )
)
_NUMBER_WORDS: Final = frozenset("one two three four five six seven eight nine ten eleven twelve".split())
_NEGATIVE: Final = re.compile(
    r"\b(?:not|no|never|nothing|without|cannot|dislikes?|hates?|avoids?|stopped|\w+n['’]t)\b", re.IGNORECASE
)
# Words that say how a caller relates to a thing, not which thing it is; the type of a fact says that too.
_FILLERS: Final = frozenset(
    _singular(word)
    for word in """a about an and any are as at avoid be been by can cannot caller could dislike do does for from get
    had has hate have he her his in is it its just like longer love may must need never no not nothing of on only or
    prefer require she should so still stopped t that the their them they this to use want was were when wish will with
    without would""".split()
)
_SPLIT_NUMBER: Final = re.compile(r"(?<=\d)[\s().-]+(?=\d)")


@dataclass(frozen=True, slots=True)
class StatementReading:
    """A fact prepared for comparison. `rest` are its words without numbers and choices."""

    text: str
    type: str
    slot: str
    """What the caller has one of, with `words` as its value; empty for other facts."""
    words: frozenset[str]
    numbers: frozenset[str]
    choices: tuple[frozenset[str], ...]
    rest: frozenset[str]
    is_negative: bool

    @classmethod
    def of(cls, text: str, type_: str) -> "StatementReading":
        slot, value = _slot(text)
        words = frozenset(_words(value)) if slot else frozenset(_words(text)) - _FILLERS
        numbers = frozenset(word for word in words if word in _NUMBER_WORDS or word[0].isdigit())
        choices = tuple(words & alternatives for alternatives in _CHOICES)
        rest = words.difference(numbers, *choices)
        return cls(text, type_, slot, words, numbers, choices, rest, bool(_NEGATIVE.search(text)))


def relation(old: StatementReading, new: StatementReading) -> Relation | None:
    """How `new` relates to `old`; None if both can be true."""
    if old.slot and new.slot:
        return _in_slots(old, new)
    if old.type != new.type:
        return None
    return _by_words(old, new)


def _in_slots(old: StatementReading, new: StatementReading) -> Relation | None:
    if old.slot != new.slot:
        return None
    # "Ana" after "Ana Diaz" is a repeat; "Ana Diaz" after "Ana" is new.
    return "repeat" if new.words <= old.words else "correction"


def _by_words(old: StatementReading, new: StatementReading) -> Relation | None:
    if old.is_negative == new.is_negative and _overlap(old.rest, new.rest) >= SAME:
        if not new.is_negative and any(map(_differ, old.choices, new.choices)):
            return "contradiction"
        if _differ(old.numbers, new.numbers):
            # A caller may have two orders.
            return None if new.type == "identifier" else "correction"
    if not old.words or _overlap(old.words, new.words) < SAME:
        return None
    return "repeat" if old.is_negative == new.is_negative else "contradiction"


def _differ(old: frozenset[str], new: frozenset[str]) -> bool:
    return bool(old and new) and not old & new


def _overlap(old: frozenset[str], new: frozenset[str]) -> float:
    return len(old & new) / len(old | new) if old or new else 1.0


def _slot(text: str) -> tuple[str, str]:
    """The slot that a fact fills, and its value; both empty if it fills none."""
    for name, pattern in _SLOTS:
        if match := pattern.fullmatch(text):
            return name, match["value"]
    return "", ""


def _words(text: str) -> list[str]:
    words = re.findall(r"[^\W_]+", _SPLIT_NUMBER.sub("", text).casefold())
    return [_worded(_singular(word)) for word in words]


def _worded(word: str) -> str:
    # Phone numbers come with and without the country code.
    return word[-10:] if word.isdigit() else _SYNONYMS.get(word, word)
