"""Figures and times as text for people."""

import re
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

_STEPS: Final = ((60, "second"), (3600, "minute"), (86_400, "hour"), (86_400 * 60, "day"))


# Control characters except tab and line feed, bidirectional controls, and Unicode line separators.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]"
)


def cleaned(text: str) -> str:
    """Text from a call without control characters. Our own Markup is left as it is."""
    return text if isinstance(text, Markup) else _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def count(number: int, noun: str, plural: str = "") -> str:
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """4:05, 1:02:10."""
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def milliseconds(seconds: float | None) -> str:
    """840 ms, 1.2 s; a dash for None."""
    if seconds is None:
        return "–"
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def ago(time: datetime | str, now: datetime | None = None) -> str:
    """Just now, 5 minutes ago, 3 days ago; the date for times more than two months ago."""
    then = datetime.fromisoformat(time) if isinstance(time, str) else time
    seconds = ((now or datetime.now(UTC)) - then).total_seconds()
    if seconds < 10:
        return "just now"
    for (limit, unit), size in zip(_STEPS, (1, 60, 3600, 86_400), strict=True):
        if seconds < limit:
            return f"{count(int(seconds // size), unit)} ago"
    return f"{then:%-d %b %Y}"
