"""A running gateway and its admin token, for commands that ask it over HTTP."""

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import orjson

from gateway.errors import SettingsError
from gateway.settings import Secret, Settings, is_url, kept_token

TIMEOUT: Final = httpx.Timeout(10.0)

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")


def add_url_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="", help="a gateway elsewhere; GATEWAY_ADMIN_TOKEN holds its token")


def local_url(host: str, port: int) -> str:
    """Where this machine reaches a gateway that listens on `host`."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{port}"


@dataclass(frozen=True)
class Remote:
    url: str
    token: Secret

    @classmethod
    def of(cls, settings: Settings, url: str = "") -> "Remote":
        """The gateway at `url`, or the one that these settings configure."""
        address = url or local_url(settings.host, settings.port)
        if not is_url(address, ("http", "https")):
            raise SettingsError(f"--url is {address!r}; write it like https://voice.example.com")
        token = settings.gateway_admin_token or (None if url else kept_token(settings))
        if token is None:
            raise SettingsError("no admin token; set GATEWAY_ADMIN_TOKEN to that gateway's token")
        return cls(address.rstrip("/"), token)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token.reveal()}"}

    def get(self, path: str, **query: str) -> Any:
        """The JSON response. Empty parameters are left out. SettingsError says what the user can do."""
        given = {name: value for name, value in query.items() if value}
        try:
            answer = httpx.get(self.url + path, params=given, headers=self.headers, timeout=TIMEOUT)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        if answer.status_code == 401:
            raise self.token_rejected()
        if answer.status_code >= 400:
            raise SettingsError(f"{self.url} answered {answer.status_code}: {_detail(answer)}")
        return orjson.loads(answer.content)

    def unreachable(self, error: Exception) -> SettingsError:
        name = type(error).__name__
        return SettingsError(f"no gateway answers at {self.url} ({name}); start it, or set --url")

    def token_rejected(self) -> SettingsError:
        return SettingsError(f"{self.url} rejected the admin token; set GATEWAY_ADMIN_TOKEN to the token it uses")


def parse_time(text: str) -> datetime:
    """`10m`, `2h`, `3d` ago, or an ISO date with or without a time. Raises SettingsError for anything else."""
    try:
        if ago := _AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a valid time; write 10m, 2h, 3d or 2026-02-06T23:15") from None


def _detail(answer: httpx.Response) -> str:
    try:
        return " ".join(str(orjson.loads(answer.content)["detail"]).split())
    except (ValueError, KeyError, TypeError):
        return "no reason given"
