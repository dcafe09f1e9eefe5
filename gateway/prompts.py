"""Prompt templates: `{{memory}}`, `{{now}}`, `{{caller}}`, `{{context}}` and `{{persona:NAME}}` in a prompt file."""

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w+|persona:[\w-]+)\s*\}\}")
_PERSONA: Final = "persona:"
_NO_PERSONAS: Final[Mapping[str, str]] = MappingProxyType({})


def wants_memory(template: str) -> bool:
    """Whether the prompt has a place for memory; without one, none is loaded."""
    return any(name == "memory" for name in _PLACEHOLDER.findall(template))


def wanted_personas(template: str) -> tuple[str, ...]:
    """The names of the personas in this prompt, without duplicates."""
    names = (name.removeprefix(_PERSONA) for name in _PLACEHOLDER.findall(template) if name.startswith(_PERSONA))
    return tuple(dict.fromkeys(names))


def with_context(template: str, context: str) -> str:
    """The prompt of an outbound call: its context replaces {{context}}, or is added at the end."""
    if any(name == "context" for name in _PLACEHOLDER.findall(template)):
        return _PLACEHOLDER.sub(lambda match: context if match[1] == "context" else match[0], template)
    return f"{template.rstrip()}\n\n# Why you are calling\n{context}" if context else template


def render(
    template: str, *, memory: str, now: datetime, caller: str, personas: Mapping[str, str] = _NO_PERSONAS
) -> str:
    """
    The prompt for one call. `personas`: the text of each persona it names; a missing one is left empty.

    One pass over the template: placeholders inside memory, which a caller may have spoken, are not replaced. Unknown
    placeholders stay as they are.
    """
    values = {
        "memory": memory,
        "now": spoken_time(now),
        "caller": caller or "an unknown caller",
        "context": "",  # only outbound calls have one
        **{f"{_PERSONA}{name}": personas.get(name, "") for name in wanted_personas(template)},
    }
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template).strip()


def spoken_time(now: datetime) -> str:
    """A date and time in words."""
    return f"{now:%A}, {now.day} {now:%B %Y}, {now:%I:%M %p}".replace(", 0", ", ")
