"""
Words that decide whose turn it is, by language. No state, no clock.

Backchannels ("mm-hm", "okay", "genau") show that a person listens and does not want to speak. The sentences for a
silent caller and for a lost connection are here too.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from gateway.text.languages import any_of, load_language, spaced

_DEFAULT_LANGUAGE: Final = "en"
_HUM: Final = r"(?:[mh]*m[mh]*|u*h+u*h*m*|a+h+a*h*|o+h+|e+h+m*|a+ha+) "
"""In every language: mm-hm, hmm, uh-huh, ah, aha, oh."""
_SENTENCE: Final = re.compile(r"[^.!?…]+(?:[.!?…]+|$)")
_MOST_BACKCHANNELS: Final = 6
"""In one turn. Also bounds the work of the regular expression."""


def is_backchannel(text: str, language: str) -> bool:
    """Whether a turn consists of backchannels alone. Without any words it is none."""
    return _backchannels(language).fullmatch(spaced(text)) is not None


def is_asking(heard: str, rest: str) -> bool:
    """Whether an answer, interrupted between `heard` and `rest`, was at a question or just after one."""
    at = max(len(_SENTENCE.findall(heard.strip())) - 1, 0)
    sentences: list[str] = _SENTENCE.findall(f"{heard.strip()} {rest.strip()}".strip())
    return any(sentence.endswith("?") for sentence in sentences[max(at - 1, 0) : at + 1])


def asks_for_dictation(text: str, language: str) -> bool:
    """Whether the agent asks for something that callers say with pauses: a number, a spelling, an e-mail address."""
    wanted, request, confirmation = _dictation(language)
    for sentence in _SENTENCE.findall(text):
        said = spaced(sentence)
        is_request = sentence.rstrip().endswith("?") or request.search(said)
        if wanted.search(said) and is_request and not confirmation.search(said):
            return True
    return False


def silence_texts(language: str) -> Mapping[str, str]:
    """The question to a silent caller (`ask`), and the goodbye before the hangup (`goodbye`)."""
    texts: Mapping[str, str] = _table(language)["silence"]
    return texts


def lost_connection_text(language: str) -> str:
    """Said when the conversation goes on after a lost connection."""
    text: str = _table(language)["connection"]["lost"]
    return text


@lru_cache(maxsize=16)
def _dictation(language: str) -> tuple[re.Pattern[str], ...]:
    """Patterns for what is dictated, for a request that is no question, and for a question that asks to confirm it."""
    table = _table(language)["dictation"]
    return tuple(re.compile(table[name]) for name in ("wanted", "request", "confirmation"))


@lru_cache(maxsize=16)
def _backchannels(language: str) -> re.Pattern[str]:
    return re.compile(f"(?:{_HUM}|{any_of(_table(language)['backchannels'])}){{1,{_MOST_BACKCHANNELS}}}")


def _table(language: str) -> Mapping[str, Any]:
    """The rules of a language; those of English for an unknown one."""
    data = load_language(language) or load_language(_DEFAULT_LANGUAGE)
    assert data is not None
    rules: Mapping[str, Any] = data["turn_taking"]
    return rules
