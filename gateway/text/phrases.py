"""Phrases of callers as patterns: written as in `languages/*.toml`, matched against the words of a text."""

import functools
import re
from collections.abc import Iterable
from typing import Final

from gateway.text.plain_text import unaccented

_WORD: Final = re.compile(r"\w+")
_APOSTROPHE: Final = re.compile("['’]")


def any_of(phrases: Iterable[str]) -> str:
    """Phrases as a pattern, each word followed by a space; [words] are optional, (one|another) is a choice."""
    syntax = {"[": "(?:", "]": ")?", "(": "(?:", ")": ")", "|": "|"}
    parts = re.findall(r"[][()|]|[^][()|]+", "|".join(phrases))
    return "".join(syntax.get(part) or spaced(part) for part in parts)


@functools.lru_cache(maxsize=8)  # a turn is compared with several sets of phrases
def spaced(text: str) -> str:
    """The words of a text, each followed by a space."""
    return "".join(f"{word} " for word in words(text))


def words(text: str) -> list[str]:
    """Words in lower case, without accents and apostrophes, which recognisers write differently."""
    return _WORD.findall(unaccented(_APOSTROPHE.sub("", text.casefold())))
