"""
A fact about a caller, and how facts are read from a model's answer.

Models bend the format they were given: whatever still names a fact, its type and the lines it rests on is read, the
rest is dropped. Whether a fact may be kept is another question (`fact_checks`).
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from gateway.finalization.summary.plain_text import plain
from gateway.memory.facts import CallerFact, FactType

FACT_TYPES: Final[tuple[FactType, ...]] = get_args(FactType)

MAX_FACT_CHARACTERS: Final = 160

FACT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "type": {"type": "string", "enum": list(FACT_TYPES)},
        "confidence": {"type": "number"},
        "turns": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["text", "type", "confidence", "turns"],
    "additionalProperties": False,
}

_MOST_READ: Final = 50
_UNSURE: Final = 0.6
_CONFIDENCE_WORDS: Final = {"certain": 1.0, "high": 0.9, "medium": 0.6, "low": 0.3}
# Other names for our keys and types, as models use them.
_KEYS: Final = {
    "text": ("text", "fact", "statement", "content"),
    "type": ("type", "kind", "category"),
    "confidence": ("confidence", "score", "certainty"),
    "turns": ("turns", "turn", "lines", "evidence", "sources"),
}
_TYPES: Final[dict[str, FactType]] = {
    **{name: name for name in FACT_TYPES},
    "name": "identity",
    "contact": "identifier",
    "recurring need": "need",
}
_SUBJECT: Final = re.compile(r"(?:(?:the )?(?:caller|customer|client|user)(?:['’]s)?|he|she) +", re.IGNORECASE)


def parse_facts(value: Any) -> tuple[CallerFact, ...]:
    """The facts in whatever stands where a list of them was asked for."""
    entries = value if isinstance(value, list) else [value]
    facts = (_fact(entry) for entry in entries[:_MOST_READ] if isinstance(entry, dict))
    return tuple(fact for fact in facts if fact is not None)


def _fact(entry: Mapping[str, Any]) -> CallerFact | None:
    given = {str(key).strip().lower(): value for key, value in entry.items()}
    parts = {part: next((given[key] for key in keys if key in given), None) for part, keys in _KEYS.items()}
    text, type_ = _sentence(parts["text"]), _type(parts["type"])
    if not 0 < len(text) <= MAX_FACT_CHARACTERS or type_ is None:
        return None
    return CallerFact(text, type_, _confidence(parts["confidence"]), _turns(parts["turns"]))


def _sentence(value: Any) -> str:
    """The fact without its subject and full stop, which models add at will."""
    text = plain(value).rstrip(". ") if isinstance(value, str) else ""
    subject = _SUBJECT.match(text)
    text = text[subject.end() :] if subject else text
    return text[:1].upper() + text[1:]


def _type(value: Any) -> FactType | None:
    name = value.strip().lower().replace("_", " ") if isinstance(value, str) else ""
    return _TYPES.get(name) or _TYPES.get(name.removesuffix("s"))


def _confidence(value: Any) -> float:
    """From 0 to 1, also where it was given in per cent or in a word."""
    if isinstance(value, str):
        value = _CONFIDENCE_WORDS.get(value.strip().lower()) or _number(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        return _UNSURE
    share = value / 100 if value > 1 else value
    return float(min(max(share, 0.0), 1.0))


def _number(text: str) -> float | None:
    try:
        return float(text.strip().removesuffix("%"))
    except ValueError:
        return None


def _turns(value: Any) -> tuple[int, ...]:
    parts = value if isinstance(value, list) else [value]
    return tuple(sorted({number for part in parts for number in _line_numbers(part)}))


def _line_numbers(part: Any) -> list[int]:
    """Given as a number or within text: 3, "3", "[3]", "lines 3 and 5"."""
    match part:
        case bool():
            return []
        case int():
            return [part]
        case str():
            return [int(number) for number in re.findall(r"\b\d{1,6}\b", part)]
        case _:
            return []
