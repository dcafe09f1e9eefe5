"""
Pages from Jinja templates, and figures and times as text for people.

All output is escaped and stripped of control characters. Rendering runs in a thread, because it would delay audio.
"""

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any, Final
from urllib.parse import urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gateway.memory.facts import labelled
from gateway.response_time import SLOW_SECONDS
from gateway.telephony.phone_numbers import readable
from gateway.text.figures import count, duration, milliseconds
from gateway.web.dashboard.call_notes import EVENT_WORDS

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
            "time": shown_time,
            "moment": moment,
            "ago": ago,
            "count": count,
            "duration": duration,
            "ms": milliseconds,
            "percent": percent,
            "number": readable,
            "fact": labelled,
            # Jinja's tojson is for scripts and marks its output as safe.
            "json": lambda value: orjson.dumps(value).decode(),
        }
        self._environment.globals |= {
            "static": _static_url,
            "slow_seconds": SLOW_SECONDS,
            "event_words": EVENT_WORDS,
        }

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
    return f"{then.astimezone():%-d %b %Y}"


def page_url(path: str, query: Mapping[str, str]) -> str:
    """With those of the query parameters that have a value."""
    given = {name: value for name, value in query.items() if value}
    return f"{path}?{urlencode(given)}" if given else path


def page_number(text: str) -> int:
    """Of a page of a list, from 0; 0 for text that is not a number."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 else 0


def midnight(day: str, days: int = 0, *, zone: str = "") -> str:
    """
    Midnight of a day in UTC, as stored; empty for an invalid day.

    `zone` is the browser's, as in "Europe/Berlin"; without a known one it is a day of the server's.
    """
    try:
        begins = datetime.strptime(day, "%Y-%m-%d") + timedelta(days=days)
        with contextlib.suppress(ZoneInfoNotFoundError, ValueError, OSError):
            return begins.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).isoformat()
        return begins.astimezone().astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        return ""


def shown_time(time: datetime | str, form: str = "moment") -> Markup:
    """
    A `<time>` element in the server's zone. `times.js` shows it in the browser's.

    `form`: `moment`, `clock`, `day`, `row` (of a list) or `ago`.
    """
    local = _local(time)
    clock, day = f"{local:%H:%M %Z}", f"{local:%a %-d %b %Y}"
    texts = {"moment": moment(time), "clock": clock, "day": day, "ago": ago(time)}
    text = Markup("<b>{}</b> <span>{}</span>").format(clock, day) if form == "row" else texts[form]
    title = Markup(' title="{}"').format(moment(time)) if form == "ago" else ""
    return Markup('<time datetime="{}" data-form="{}"{}>{}</time>').format(local.isoformat(), form, title, text)


def moment(time: datetime | str) -> str:
    return f"{_local(time):%a %-d %b %Y, %H:%M %Z}"


def _local(time: datetime | str) -> datetime:
    return (datetime.fromisoformat(time) if isinstance(time, str) else time).astimezone()
