"""
How two facts about one caller relate: a repeat, a refinement, a correction, or a contradiction.

A fact is read as a claim: whose it is, what is claimed, its value, whether it is denied, and whether it holds for a
time only. Two claims about the same thing with different values exclude each other. The vocabulary is the table
`claims` of each language; a fact is compared with the words of all of them. In doubt both facts are kept.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from gateway.text.languages import LANGUAGES, load_language

Relation = Literal["repeat", "refinement", "correction", "contradiction"]

SAME: Final = 0.6
"""The share of common words from which two facts are about the same thing."""

HALF: Final = 0.5
"""The same where all of at least two words are common."""

_SPLIT_NUMBER: Final = re.compile(r"(?<=\d)[\s().-]+(?=\d)")
_ENDINGS: Final = "erinnen innen erin euse eurs eur iere ier ers er ing ies es ed en in s e n a o y".split()
_LEAST_STEM: Final = 4
_PHONE_DIGITS: Final = 10


class _Vocabulary:
    """The words of all languages."""

    def __init__(self) -> None:
        tables: list[dict[str, Any]] = [(load_language(language) or {})["claims"] for language in LANGUAGES]

        def words(name: str) -> Iterator[str]:
            return (word for table in tables for word in table[name].split())

        def groups(name: str) -> Iterator[tuple[str, str]]:
            return ((word, group) for table in tables for group, words in table[name].items() for word in words.split())

        def any_of(name: str) -> re.Pattern[str]:
            return re.compile(rf"\b(?:{'|'.join(table[name] for table in tables)})\b")

        self.attributes = [(name, re.compile(rule)) for table in tables for name, rule in table["attributes"]]
        self.fillers = frozenset(words("fillers"))
        self.synonyms = dict(groups("synonyms"))
        self.choices = {_stem(word): category for word, category in groups("choices")}
        """The category of each word that excludes the others of its category."""
        self.several = frozenset(map(_stem, words("several")))
        """What a caller can have several of: a second value does not replace the first."""
        self.people = frozenset(map(_stem, words("people")))
        self.negative, self.temporary, self.comparison = map(any_of, ("negative", "temporary", "comparison"))


_vocabulary: Final = lru_cache(maxsize=1)(_Vocabulary)


@dataclass(frozen=True, slots=True)
class StatementReading:
    """A fact prepared for comparison."""

    text: str
    attribute: str
    """What is claimed, if it is a known attribute, with `words` as its value; else empty."""
    words: tuple[str, ...]
    """The words that carry meaning, in their order."""
    joined: frozenset[tuple[str, str]]
    """Pairs of words with nothing in between: a "dog sitter" is not a dog."""
    is_negative: bool
    is_temporary: bool

    @classmethod
    def of(cls, text: str, type_: str) -> "StatementReading":
        vocabulary = _vocabulary()
        whole = _normalised(text)
        shortened = vocabulary.comparison.split(whole)[0].strip() or whole
        attribute, value = _attribute(shortened)
        read = [_word(word) for word in re.findall(r"[^\W_]+", value)]
        words = tuple(dict.fromkeys(word for word in read if word))
        joined = frozenset((one, two) for one, two in zip(read, read[1:], strict=False) if one and two)
        is_temporary = type_ != "commitment" and bool(vocabulary.temporary.search(whole))
        return cls(text, attribute, words, joined, bool(vocabulary.negative.search(whole)), is_temporary)


def relation(old: StatementReading, new: StatementReading) -> Relation | None:
    """How `new` relates to `old`; None if both can be true."""
    if old.is_temporary != new.is_temporary or old.attribute != new.attribute or not (old.words and new.words):
        return None
    if old.is_negative != new.is_negative:
        one, other = set(old.words), set(new.words)
        # One says of a thing what the other denies of it.
        return "contradiction" if one <= other or other <= one or _overlap(old, new) >= SAME else None
    if _is_contained(new, old):
        return "repeat"
    if _is_contained(old, new):
        return "refinement"
    return _of_values(old, new)


def _is_contained(part: StatementReading, whole: StatementReading) -> bool:
    """Whether `whole` says all that `part` says, of the same thing."""
    if not set(part.words) <= set(whole.words):
        return False
    if _overlap(part, whole) >= (SAME if len(part.words) == 1 else HALF) or part.attribute or part.is_negative:
        return True
    compound = any(one in part.words and two not in part.words for one, two in whole.joined)
    return part.words[0] == whole.words[0] and not compound


def _of_values(old: StatementReading, new: StatementReading) -> Relation | None:
    """How two claims relate of which none contains the other. A part of a claim about something else is no value."""
    vocabulary = _vocabulary()
    gone = [word for word in old.words if word not in new.words]
    come = [word for word in new.words if word not in old.words]
    common = [word for word in new.words if word in old.words]
    people = vocabulary.people.intersection
    if not (gone and come) or people(old.words[:1]) != people(new.words[:1]):
        return None
    if new.is_negative or (not old.attribute and vocabulary.several.intersection(common) and _stem("number") in common):
        return None
    # The categories of which each claim has another choice. Numbers are such a category.
    changed = ({_category(word) for word in gone} & {_category(word) for word in come}) - {""}
    if changed and all(any(_category(word) not in changed for word in words) for words in (gone, come)):
        if changed != {"number"}:
            # Two differences, such as an employer and the days: two facts.
            return None
    elif changed:
        # The claims must be the same but for choices, with no words of their own beside them.
        one, other = (
            {word for word in reading.words if word not in vocabulary.choices and not word.isdigit()}
            for reading in (old, new)
        )
        if one <= other or other <= one:
            return "correction" if changed == {"number"} else "contradiction"
        return None
    if old.attribute:
        return None if old.attribute in vocabulary.several else "correction"
    if vocabulary.several.intersection(common) or not common:
        return None
    return "correction" if _is_value(old, gone) and _is_value(new, come) else None


def _is_value(reading: StatementReading, words: list[str]) -> bool:
    """Whether these words are the value of a claim and not its subject: they follow on at least one common word."""
    first, last = reading.words.index(words[0]), reading.words.index(words[-1])
    is_at_end = last == len(reading.words) - 1
    return first >= 1 and (is_at_end or first > 1) and last - first < len(words)


def _category(word: str) -> str:
    return _vocabulary().choices.get(word, "number" if len(word) < 3 and word.isdigit() else "")


def _overlap(old: StatementReading, new: StatementReading) -> float:
    one, other = set(old.words), set(new.words)
    return len(one & other) / len(one | other)


def _attribute(text: str) -> tuple[str, str]:
    """What a fact claims, and its value; a fact of no known attribute is all value."""
    for name, pattern in _vocabulary().attributes:
        if match := pattern.fullmatch(text):
            kind = _stem(match.groupdict().get("kind") or "")
            return f"{kind} {name}".strip(), match["value"]
    return "", text


def _normalised(text: str) -> str:
    """Lower case, without accents and apostrophes, each number in one piece."""
    text = re.sub(r"(?<=ca)n['’]t\b", "n not", _SPLIT_NUMBER.sub("", text).casefold())
    text = re.sub(r"n['’]t\b", " not", text)
    plain = "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))
    return " ".join(re.sub(r"['’.,;:!]+(?:\s|$)|['’,;]", " ", plain).split())


def _word(word: str) -> str:
    """A word as it is compared; empty if it carries no meaning."""
    vocabulary = _vocabulary()
    if word in vocabulary.fillers:
        return ""
    if word.isdigit():
        # Phone numbers come with and without the country code.
        return word[-_PHONE_DIGITS:]
    common = vocabulary.synonyms.get(word) or vocabulary.synonyms.get(word.removesuffix("s"), word)
    return common if common.isdigit() else _stem(common)


def _stem(word: str) -> str:
    """A word without its endings, of at least four letters, so that "teaches" and "teacher" are one."""
    if len(word) == _LEAST_STEM:
        return word[:-1] if word.endswith("s") and not word.endswith("ss") else word
    fitting = (ending for ending in _ENDINGS if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM)
    ending = next(fitting, "")
    return _stem(word.removesuffix(ending)) if ending else word
