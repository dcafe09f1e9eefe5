"""Prompt templates: `{{memory}}`, `{{now}}`, `{{caller}}`, `{{context}}` and `{{persona:NAME}}` in a prompt file."""

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w+|persona:[\w-]+)\s*\}\}")
_PERSONA: Final = "persona:"
_NOBODY: Final[Mapping[str, str]] = MappingProxyType({})


def wants_memory(template: str) -> bool:
    """Whether anything remembered may go into this prompt at all."""
    return any(name == "memory" for name in _PLACEHOLDER.findall(template))


def wanted_personas(template: str) -> tuple[str, ...]:
    """The personas that this prompt names, each once."""
    names = (name.removeprefix(_PERSONA) for name in _PLACEHOLDER.findall(template) if name.startswith(_PERSONA))
    return tuple(dict.fromkeys(names))


def with_context(template: str, context: str) -> str:
    """The prompt of a call that we place: what it is about, where the prompt has a place for it, else at its end."""
    if any(name == "context" for name in _PLACEHOLDER.findall(template)):
        return _PLACEHOLDER.sub(lambda match: context if match[1] == "context" else match[0], template)
    return f"{template.rstrip()}\n\n# Why you are calling\n{context}" if context else template


def render(template: str, *, memory: str, now: datetime, caller: str, personas: Mapping[str, str] = _NOBODY) -> str:
    """
    The prompt for one call; `personas` are those it names, as text. One that is missing there is left empty.

    One pass over the template: a placeholder that stands in remembered text, which a caller may have spoken, is not
    filled in. A placeholder we don't know stays as it is.
    """
    values = {
        "memory": memory,
        "now": spoken_time(now),
        "caller": caller or "an unknown caller",
        "context": "",  # of a call that somebody places to us there is none
        **{f"{_PERSONA}{name}": personas.get(name, "") for name in wanted_personas(template)},
    }
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template).strip()


def spoken_time(now: datetime) -> str:
    """A date and time as an agent would say it."""
    return f"{now:%A}, {now.day} {now:%B %Y}, {now:%I:%M %p}".replace(", 0", ", ")
