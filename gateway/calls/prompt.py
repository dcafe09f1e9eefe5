"""Prompt templates: `{{memory}}`, `{{now}}` and `{{caller}}` in the agent's prompt file."""

import re
from datetime import datetime
from typing import Final

_PLACEHOLDER: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


def wants_memory(template: str) -> bool:
    """Whether anything remembered may go into this prompt at all."""
    return any(name == "memory" for name in _PLACEHOLDER.findall(template))


def render(template: str, *, memory: str, now: datetime, caller: str) -> str:
    """
    The prompt for one call.

    One pass over the template: a placeholder that stands in remembered text, which a caller may have spoken, is not
    filled in. A placeholder we don't know stays as it is.
    """
    values = {"memory": memory, "now": spoken_time(now), "caller": caller or "an unknown caller"}
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), template).strip()


def spoken_time(now: datetime) -> str:
    """A date and time as an agent would say it."""
    return f"{now:%A}, {now.day} {now:%B %Y}, {now:%I:%M %p}".replace(", 0", ", ")
