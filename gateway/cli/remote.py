"""What commands for operators have in common: a running gateway and its token, moments, colours."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import orjson

from gateway.admin_token import kept_token
from gateway.errors import SettingsError
from gateway.settings import Secret, Settings, is_url

TIMEOUT: Final = httpx.Timeout(10.0)

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_HIDDEN: Final = re.compile(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]+")
_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36, "dim": 2, "bold": 1}


def add_remote(parser: Any) -> None:
    parser.add_argument("--url", default="", help="a running gateway elsewhere; its token in GATEWAY_ADMIN_TOKEN")


@dataclass(frozen=True)
class Remote:
    """A running gateway, and what opens it."""

    url: str
    token: Secret

    @classmethod
    def of(cls, settings: Settings, url: str = "") -> "Remote":
        """The gateway at this address, else the one that these settings are of."""
        host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
        address = url or f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
        if not is_url(address, ("http", "https")):
            raise SettingsError(f"--url is {address!r}; write it like https://voice.example.com")
        token = settings.gateway_admin_token or (None if url else kept_token(settings))
        if token is None:
            raise SettingsError("no admin token; set GATEWAY_ADMIN_TOKEN to the one of that gateway")
        return cls(address.rstrip("/"), token)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token.reveal()}"}

    def get(self, path: str, **query: str) -> Any:
        """What it answers, as JSON. SettingsError says what a person can do about any other answer."""
        try:
            answer = httpx.get(self.url + path, params=query, headers=self.headers, timeout=TIMEOUT)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        if answer.status_code == 401:
            raise self.refused()
        if answer.status_code >= 400:
            raise SettingsError(f"{self.url} answered {answer.status_code}: {_detail(answer)}")
        return orjson.loads(answer.content)

    def unreachable(self, error: Exception) -> SettingsError:
        what = type(error).__name__
        return SettingsError(f"no gateway answers at {self.url} ({what}); start one, or name another with --url")

    def refused(self) -> SettingsError:
        return SettingsError(f"{self.url} does not take this admin token; set GATEWAY_ADMIN_TOKEN to its own")


def moment(text: str) -> datetime:
    """`10m`, `2h`, `3d` ago, or a date, with or without a time of day. SettingsError for anything else."""
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is no moment; write 10m, 2h, 3d or 2026-02-06T23:15") from None


def one_line(text: str) -> str:
    """Text from a call as a terminal may show it: no line breaks, and nothing that would steer the terminal."""
    return _HIDDEN.sub(" ", text).strip()


class Paint:
    """Colours, where somebody looks."""

    def __init__(self, enabled: bool | None = None) -> None:
        self._enabled = sys.stdout.isatty() and "NO_COLOR" not in os.environ if enabled is None else enabled

    def __call__(self, text: str, *colours: str) -> str:
        if not self._enabled or not text or not colours:
            return text
        return f"\x1b[{';'.join(str(_COLOURS[colour]) for colour in colours)}m{text}\x1b[0m"


def columns(rows: Sequence[tuple[str, ...]], indent: str = "") -> str:
    """Rows with their cells one below the other."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(indent + line.rstrip() for line in lines)


def _detail(answer: httpx.Response) -> str:
    try:
        return one_line(str(orjson.loads(answer.content)["detail"]))
    except (ValueError, KeyError, TypeError):
        return "no reason given"
