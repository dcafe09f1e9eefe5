"""A running gateway and its admin token, for commands that ask it over HTTP."""

import argparse
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import orjson

from gateway.errors import SettingsError, connection_problem
from gateway.invocation import command
from gateway.settings import Secret, Settings, existing_token, is_url, local_url

TIMEOUT: Final = httpx.Timeout(10.0)

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")


def add_url_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="", help="a gateway elsewhere; GATEWAY_ADMIN_TOKEN holds its token")


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
        token = settings.gateway_admin_token if url else existing_token(settings)
        if token is None and not url:
            how = f"start one with `{command('serve')}`, or give its address with --url"
            raise SettingsError(f"no gateway has been started with DATA_DIR={settings.data_dir}; {how}")
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
        try:
            content = orjson.loads(answer.content)
        except ValueError:
            if answer.status_code < 500:  # above, a proxy may answer for a gateway that is down
                raise self.not_a_gateway() from None
            content = None
        if answer.is_redirect:
            raise self.not_a_gateway()
        if answer.status_code >= 400:
            raise SettingsError(f"{self.url} answered {answer.status_code}: {_detail(content)}")
        return content

    def caller_name(self, caller: str) -> str:
        """The name from the last call of a number; empty if it is not known."""
        try:
            calls = self.get("/v1/sessions", caller=caller, limit="1") if caller else []
        except SettingsError:
            return ""
        return str(calls[0].get("name", "")) if calls else ""

    def unreachable(self, error: Exception) -> SettingsError:
        how = f"start it with `{command('serve')}`, or give its address with --url"
        return SettingsError(f"no gateway answers at {self.url} ({connection_problem(error)}); {how}")

    def not_a_gateway(self) -> SettingsError:
        return SettingsError(f"what answers at {self.url} is not a gateway; give the gateway's address with --url")

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


def _detail(content: Any) -> str:
    detail = content.get("detail") if isinstance(content, dict) else None
    return " ".join(str(detail or "no reason given").split())
