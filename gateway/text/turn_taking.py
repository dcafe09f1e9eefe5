"""Words that take part in turn-taking, by language: said to a silent caller, or after a lost connection. No state."""

from collections.abc import Mapping
from typing import Any, Final

from gateway.text.languages import load_language

_DEFAULT_LANGUAGE: Final = "en"


def silence_texts(language: str) -> Mapping[str, str]:
    """The question to a silent caller (`ask`), and the goodbye before the hangup (`goodbye`)."""
    texts: Mapping[str, str] = _table(language)["silence"]
    return texts


def lost_connection_text(language: str) -> str:
    """Said when the conversation goes on after a lost connection."""
    text: str = _table(language)["connection"]["lost"]
    return text


def _table(language: str) -> Mapping[str, Any]:
    """The rules of a language; those of English for an unknown one."""
    data = load_language(language) or load_language(_DEFAULT_LANGUAGE)
    assert data is not None
    rules: Mapping[str, Any] = data["turn_taking"]
    return rules
