"""
Sensitive content: whether a sentence says something about a person's health, faith, money or the like.

The words are the tables `sensitive` of `gateway/text/languages/*.toml`. A word does not count in a name, an address, a
job or a product: Church Street, Christian Weber, a prison librarian. The phrases `always` count everywhere: "I see a
psychologist" is not about a job. All languages are searched.
"""

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from gateway.text.languages import LANGUAGES, language_table
from gateway.text.plain_text import unaccented

_SENTENCE_END: Final = re.compile(r"(?<=[.!?…])\s+|\n+")
_TITLE: Final = re.compile(
    r"(?:^|\s)(?:(?i:mr|mrs|ms|dr|st|hr|fr|sr|sra|mme|no|nr|prof|approx|str)|(?<![A-Z] )[A-Z])\.$"
)
_WORD: Final = re.compile(r"[^\W_]+(?:'[^\W_]+)?")
_BETWEEN: Final = r"[\s-]+"
_MASK: Final = " ¤ "
# Between a `person` word and a `linked` word; a comma or a mask ends the reach.
_REACH: Final = r"(?:[\s-]+[^\W_]+(?:'[^\W_]+)?){0,3}[\s-]+"
_NEVER: Final = re.compile(r"(?!)")


@lru_cache(maxsize=4096)
def sensitive_category(text: str) -> str | None:
    """The category of sensitive content in a text, such as `health`; None for harmless text."""
    for sentence in sentences(text):
        plain = unicodedata.normalize("NFKC", sentence).translate(_APOSTROPHES)
        # Masks only take words away, and cost most: they are needed only where something was found.
        if _category(plain) is None:
            continue
        folded = _folded(plain)
        for vocabulary in _vocabularies():
            for name, terms in vocabulary.categories.items():
                if terms.always.search(folded):
                    return name
            plain = vocabulary.harmless.sub(_MASK, plain)
        if category := _category(plain):
            return category
    return None


def _category(text: str) -> str | None:
    """The category of the first term in a sentence: a word, else a phrase."""
    folded = _folded(text)
    for word in _WORD.findall(folded):
        for part in {word, *word.split("'")}:
            if category := _category_of_word(part):
                return category
    for vocabulary in _vocabularies():
        for name, terms in vocabulary.categories.items():
            if terms.pattern.search(folded):
                return name
    return None


@lru_cache(maxsize=20_000)
def _category_of_word(word: str) -> str | None:
    for vocabulary in _vocabularies():
        for name, terms in vocabulary.categories.items():
            if terms.has(word):
                return name
    return None


def without_sensitive(text: str) -> str:
    """The text without its sensitive sentences."""
    if sensitive_category(text) is None:
        return text
    return " ".join(sentence for sentence in sentences(text) if sensitive_category(sentence) is None)


def sentences(text: str) -> list[str]:
    """The sentences of a text. "Dr." and initials do not end one, a spelled name does."""
    found: list[str] = []
    for part in _SENTENCE_END.split(text.strip()):
        if found and _TITLE.search(found[-1]):
            found[-1] = f"{found[-1]} {part}"
        else:
            found.append(part)
    return [sentence for sentence in found if sentence]


def load() -> None:
    """Compile the patterns, which takes a tenth of a second, ahead of the first use."""
    _vocabularies()


@dataclass(frozen=True, slots=True)
class _Terms:
    """The terms of one category: single words by lookup, the rest by pattern."""

    exact: frozenset[str]
    starts: frozenset[str]
    ends: frozenset[str]
    pattern: re.Pattern[str]
    always: re.Pattern[str]

    def has(self, word: str) -> bool:
        sizes = range(2, len(word) + 1)
        return (
            word in self.exact
            or any(word[:size] in self.starts for size in sizes)
            or any(word[-size:] in self.ends for size in sizes[:-1])
        )


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The terms of one language."""

    harmless: re.Pattern[str]
    categories: Mapping[str, _Terms]


_APOSTROPHES: Final = str.maketrans("’‘`´", "''''")


def _folded(text: str) -> str:
    """Lower case without accents."""
    return " ".join(unaccented(text.casefold()).split())


@cache
def _vocabularies() -> tuple[_Vocabulary, ...]:
    return tuple(map(_load, LANGUAGES))


def _load(name: str) -> _Vocabulary:
    table = language_table(name, "sensitive")
    person = "|".join(re.escape(word) for part in table["person"].split("|") if (word := part.strip()))
    number = rf"\d|(?:{table['numbers']})\b"
    categories = {key: _terms(value, person, number) for key, value in table.items() if isinstance(value, dict)}
    harmless = "|".join(f"(?:{pattern})" for pattern in table["harmless"])
    return _Vocabulary(re.compile(rf"\b(?:{harmless})", re.IGNORECASE), categories)


def _terms(table: Mapping[str, Any], person: str, number: str) -> _Terms:
    words = table.get("words", "").split()
    single = [word for word in words if "-" not in word]
    joined = [word for word in words if "-" in word]
    patterns = list(_patterns(table, person, number, joined))
    return _Terms(
        frozenset(word for word in single if "*" not in word),
        frozenset(word[:-1] for word in single if word.endswith("*") and not word.startswith("*"))
        | frozenset(word[1:-1] for word in single if word.endswith("*") and word.startswith("*")),
        frozenset(word[1:] for word in single if word.startswith("*") and not word.endswith("*")),
        re.compile("|".join(patterns)) if patterns else _NEVER,
        re.compile("|".join(rf"\b(?:{phrase})" for phrase in table["always"])) if "always" in table else _NEVER,
    )


def _patterns(table: Mapping[str, Any], person: str, number: str, joined: list[str]) -> Iterator[str]:
    inner = [word.strip("*") for word in table.get("words", "").split() if word.startswith("*") and word.endswith("*")]
    if inner:
        yield rf"\w(?:{'|'.join(map(re.escape, inner))})"
    if joined:
        yield rf"\b(?:{'|'.join(map(_pattern, joined))})\b"
    if linked := table.get("linked", "").split():
        terms = "|".join(map(_pattern, linked))
        yield rf"\b(?:{person})(?:{_REACH}|[\s-]+)(?:{terms})(?![\w-])"
        yield rf"^(?:{terms})\W*$"
    for phrase in (*table.get("phrases", ()), *table.get("always", ())):
        yield rf"\b(?:{phrase.replace('NUM', number)})"


def _pattern(term: str) -> str:
    return re.escape(term).replace(r"\*", r"\w*").replace(r"\-", _BETWEEN)
