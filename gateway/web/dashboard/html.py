"""
Pages from Jinja templates. All output is escaped and stripped of control characters.

Rendering runs in a thread, because it would delay audio.
"""

import asyncio
import hashlib
from datetime import datetime
from importlib import resources
from typing import Any, Final

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined

from gateway.telephony.phone_numbers import readable
from gateway.web.dashboard.humanize import ago, cleaned, count, duration, milliseconds, percent

_STATIC: Final = resources.files("gateway.web.dashboard") / "static"


class Pages:
    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("gateway.web.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_finalize,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "clock": _clock,
            "day": _day,
            "moment": _moment,
            "ago": ago,
            "count": count,
            "duration": duration,
            "ms": milliseconds,
            "percent": percent,
            "number": readable,
            "json": lambda value: orjson.dumps(
                value
            ).decode(),  # Jinja's tojson is for scripts and marks its output as safe
        }
        self._environment.globals["static"] = _static_url

    async def render(self, name: str, **values: Any) -> str:
        return await asyncio.to_thread(self._rendered, name, values)

    def _rendered(self, name: str, values: dict[str, Any]) -> str:
        return self._environment.get_template(name).render(values)


def static_file(name: str) -> bytes:
    return (_STATIC / name).read_bytes()


_versions: dict[str, str] = {}


def _static_url(name: str) -> str:
    """With a digest of the content, so that browsers may cache it forever."""
    if name not in _versions:
        _versions[name] = hashlib.sha256(static_file(name)).hexdigest()[:12]
    return f"/static/{name}?v={_versions[name]}"


def _finalize(value: Any) -> Any:
    """Applied to every value in a template: empty for None, text without control characters."""
    if value is None:
        return ""
    return cleaned(value) if isinstance(value, str) else value


def _local(time: datetime | str) -> datetime:
    return (datetime.fromisoformat(time) if isinstance(time, str) else time).astimezone()


def _clock(time: datetime | str) -> str:
    return f"{_local(time):%H:%M}"


def _day(time: datetime | str) -> str:
    local = _local(time)
    return f"{local:%a} {local.day} {local:%b %Y}"


def _moment(time: datetime | str) -> str:
    return f"{_day(time)}, {_clock(time)}"
