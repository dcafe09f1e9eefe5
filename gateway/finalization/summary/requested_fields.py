"""The values that an agent's webhook reports of a call: how a model is asked for them, and how its answer is read."""

from collections.abc import Mapping
from datetime import date
from math import isfinite
from typing import Any, Final

from gateway.agents import RequestedField
from gateway.text.plain_text import plain, trimmed
from gateway.text.redaction import redact

MAX_CHARACTERS: Final = 500
KEY: Final = "fields"
_MAX_INTEGER: Final = 2**53

_JSON_TYPES: Final = {"number": "number", "bool": "boolean"}
_HOW: Final = {
    "text": "text",
    "number": "a number",
    "bool": "true or false",
    "date": "a date like 2026-02-06",
}


def field_schema(fields: Mapping[str, RequestedField]) -> dict[str, Any]:
    """The JSON schema of the answer's part. Every value may be null."""
    return {
        "type": "object",
        "properties": {name: _value_schema(wanted) for name, wanted in fields.items()},
        "required": list(fields),
        "additionalProperties": False,
    }


def field_instructions(fields: Mapping[str, RequestedField], today: date) -> str:
    """What stands before the transcript; empty if nothing is wanted."""
    if not fields:
        return ""
    lines = [f"- {name}: {wanted.description or name} ({_how(wanted)})" for name, wanted in fields.items()]
    return (
        f"Fill in `{KEY}` from this call, which was on {today:%A, %Y-%m-%d}. null for what was not said or stayed open;"
        " never a guess. When something was corrected, the last word counts.\n" + "\n".join(lines) + "\n\n"
    )


def parse_fields(fields: Mapping[str, RequestedField], given: Any) -> dict[str, Any]:
    """Every wanted field: the answer's value if it is of the right type, else None."""
    values = given if isinstance(given, dict) else {}
    return {name: _value(wanted, values.get(name)) for name, wanted in fields.items()}


def _value_schema(wanted: RequestedField) -> dict[str, Any]:
    if wanted.options:
        return {"anyOf": [{"type": "string", "enum": list(wanted.options)}, {"type": "null"}]}
    return {"type": [_JSON_TYPES.get(wanted.type, "string"), "null"]}


def _how(wanted: RequestedField) -> str:
    return f"one of: {', '.join(wanted.options)}" if wanted.options else _HOW[wanted.type]


def _value(wanted: RequestedField, given: Any) -> Any:
    match wanted.type, given:
        case "bool", bool():
            return given
        case "number", int() | float() | str() if not isinstance(given, bool):
            return _number(given)
        case "one of", str():
            return next((option for option in wanted.options if option.casefold() == given.strip().casefold()), None)
        case "date", str():
            return _date(given)
        case "text", str() | int() | float() if not isinstance(given, bool):
            return trimmed(redact(plain(str(given))), MAX_CHARACTERS) or None
    return None


def _number(given: float | str) -> int | float | None:
    """An integer only up to what every JSON reader can represent. A reference of 20 digits belongs in a text field."""
    try:
        value = float(given.strip().replace(",", "") if isinstance(given, str) else given)
    except (ValueError, OverflowError):
        return None
    if not isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) <= _MAX_INTEGER else value


def _date(text: str) -> str | None:
    try:
        return date.fromisoformat(text.strip()[:10]).isoformat()
    except ValueError:
        return None
