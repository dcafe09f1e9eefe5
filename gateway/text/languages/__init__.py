"""
Data by language, one TOML file each.

Tables of every language: words for symbols (`speech`), phrases of callers (`voice_commands`), words that decide whose
turn it is (`turn_taking`), how facts are compared (`claims`), how callers state them (`statements`), times, amounts and
what is agreed on (`outcomes`), and sensitive content (`sensitive`). In English only: the words of topics (`topics`),
what is not a fact (`facts`), how texts name people and organisations (`entities`), and what the scripted agent
understands and says (`scripted`).
"""

import re
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from gateway.text.plain_text import unaccented

LANGUAGES: Final = ("en", "de", "es", "fr")
_WORD: Final = re.compile(r"\w+")
_APOSTROPHE: Final = re.compile("['’]")


@lru_cache(maxsize=64)
def load_language(language: str) -> dict[str, Any] | None:
    """The data for a language tag such as `en` or `de-AT`; None for an unknown language."""
    tag = language.lower().replace("_", "-")
    for name in (tag, tag.partition("-")[0]):
        file = resources.files("gateway.text.languages") / f"{name}.toml"
        if re.fullmatch("[a-z0-9-]+", name) and file.is_file():
            return tomllib.loads(file.read_text(encoding="utf-8"))
    return None


def language_table(language: str, name: str) -> dict[str, Any]:
    """A table of one of `LANGUAGES`."""
    table: dict[str, Any] = (load_language(language) or {})[name]
    return table


@lru_cache(maxsize=16)
def word_list(table: str, name: str) -> frozenset[str]:
    """The words of an English list."""
    return frozenset(language_table("en", table)[name].split())


@lru_cache(maxsize=256)
def cue(table: str, name: str) -> re.Pattern[str]:
    """An English pattern of a table, compiled when first used; {part} in it is an entry of the table's `parts`."""
    data = language_table("en", table)
    pattern = data["cues"][name]
    return re.compile(pattern.format(**data["parts"]) if "parts" in data else pattern, re.IGNORECASE)


def load_cues(table: str) -> None:
    """Compile the cues of a table ahead of the first call."""
    for name in language_table("en", table)["cues"]:
        cue(table, name)


def any_of(phrases: Iterable[str]) -> str:
    """Phrases of a file as a pattern for `spaced` text; [words] are optional, (one|another) is a choice."""
    syntax = {"[": "(?:", "]": ")?", "(": "(?:", ")": ")", "|": "|"}
    parts = re.findall(r"[][()|]|[^][()|]+", "|".join(phrases))
    return "".join(syntax.get(part) or spaced(part) for part in parts)


@lru_cache(maxsize=8)  # a turn is compared with several sets of phrases
def spaced(text: str) -> str:
    """The words of a text, each followed by a space."""
    return "".join(f"{word} " for word in words(text))


def words(text: str) -> list[str]:
    """Words in lower case, without accents and apostrophes, which recognisers write differently."""
    return _WORD.findall(unaccented(_APOSTROPHE.sub("", text.casefold())))
