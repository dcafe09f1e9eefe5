"""Recognises facts in a model's answer that were only true or of interest during the call."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from gateway.memory.facts import CallerFact
from gateway.text.languages import LANGUAGES, load_language
from gateway.text.plain_text import SpokenLine

_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+")
_LEAST_WORDS: Final = 4


def is_passing(fact: CallerFact, lines: Sequence[SpokenLine]) -> bool:
    """Whether a fact reports a question or an opinion, or its lines are only questions and passing remarks."""
    reported, remark = _patterns()
    if reported.search(fact.text):
        return True
    said = (lines[turn].text.replace("’", "'") for turn in fact.turns if lines[turn].speaker == "caller")
    sentences = [sentence for text in said for sentence in _SENTENCE_END.split(text)]
    # The sentences with the fact's own words, else those long enough to say something.
    words = _words(fact.text)
    telling = [sentence for sentence in sentences if words & _words(sentence)]
    telling = telling or [sentence for sentence in sentences if len(sentence.split()) >= _LEAST_WORDS]
    return bool(telling) and all(remark.search(sentence) for sentence in telling)


def _words(text: str) -> set[str]:
    """The beginnings of the longer words."""
    return {word[:_LEAST_WORDS] for word in re.findall(r"\w{4,}", text.casefold())}


@lru_cache(maxsize=1)
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What only reports a question or an opinion, and what a passing remark contains."""
    tables: list[dict[str, Any]] = [(load_language(language) or {})["statements"] for language in LANGUAGES]
    reported = "|".join(table["reported"] for table in tables)
    remark = "|".join(rf"\b(?:{table['chatter']})\b|{table['question']}" for table in tables)
    return re.compile(rf"^(?:{reported})\b", re.IGNORECASE), re.compile(rf"\?\s*$|{remark}", re.IGNORECASE)
