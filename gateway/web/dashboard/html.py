"""
Pages from Jinja templates, and figures and times as text for people.

All output is escaped and stripped of control characters. Rendering runs in a thread, because it would delay audio.
"""

import asyncio
import hashlib
import re
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, Final

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.telephony.phone_numbers import readable

_STATIC: Final = resources.files("gateway.web.dashboard") / "static"
_STEPS: Final = ((60, "second"), (3600, "minute"), (86_400, "hour"), (86_400 * 60, "day"))

# Control characters except tab and line feed, bidirectional controls, and Unicode line separators.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]"
)


class Pages:
    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("gateway.web.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            # Every value in a template: empty for None, text without control characters.
            finalize=lambda value: "" if value is None else cleaned(value) if isinstance(value, str) else value,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "clock": _clock,
            "day": _day,
            "moment": lambda time: f"{_day(time)}, {_clock(time)}",
            "ago": ago,
            "count": count,
            "duration": duration,
            "ms": milliseconds,
            "percent": percent,
            "number": readable,
            # Jinja's tojson is for scripts and marks its output as safe.
            "json": lambda value: orjson.dumps(value).decode(),
        }
        self._environment.globals["static"] = _static_url

    async def render(self, template: str, /, **values: Any) -> str:
        return await asyncio.to_thread(lambda: self._environment.get_template(template).render(values))


def static_file(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


@cache
def _static_url(name: str) -> str:
    """With a digest of the content, so that browsers may cache it forever."""
    return f"/static/{name}?v={hashlib.sha256(static_file(name)).hexdigest()[:12]}"


# Text


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


def midnight(day: str, days: int = 0) -> str:
    """Midnight of a local day in UTC, as stored; empty for an invalid day."""
    try:
        begins = datetime.strptime(day, "%Y-%m-%d") + timedelta(days=days)
    except (ValueError, OverflowError):
        return ""
    return begins.astimezone().astimezone(UTC).isoformat()


def _clock(time: datetime | str) -> str:
    return f"{_local(time):%H:%M}"


def _day(time: datetime | str) -> str:
    return f"{_local(time):%a %-d %b %Y}"


def _local(time: datetime | str) -> datetime:
    return (datetime.fromisoformat(time) if isinstance(time, str) else time).astimezone()
