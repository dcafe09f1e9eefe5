"""Requests of the checks: whether a server answers and accepts a key, and how far its clock is from ours."""

import contextlib
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.errors import connection_problem
from gateway.settings import Secret
from gateway.tools.remote_settings import is_loopback

MAX_CLOCK_SKEW: Final = 30.0
"""Telnyx signatures are valid for minutes. A clock that is off by more than this keeps drifting."""


class HttpProbe:
    """Sends requests and keeps the smallest clock skew that a response has shown."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._skew: float | None = None

    async def answer(self, method: str, url: str, *, is_ours: bool = False, **options: Any) -> httpx.Response | str:
        """The response, or why it is missing. A gateway of ours (`is_ours`) may have the same clock."""
        try:
            answer = await self._http.request(method, url, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return connection_problem(error)
        if is_ours:
            return answer
        with contextlib.suppress(ValueError, TypeError):
            date = parsedate_to_datetime(answer.headers.get("Date", ""))
            skew = abs(date.timestamp() - time.time())
            self._skew = skew if self._skew is None else min(skew, self._skew)
        return answer

    async def check_key(
        self, check: str, url: str, *, keys: str, address: str, method: str = "GET", **options: Any
    ) -> CheckResult:
        """Check that a server answers and accepts the key. `keys` and `address` name the settings."""
        answer, host = await self.answer(method, url, **options), host_of(url)
        if isinstance(answer, str):
            return problem(check, f"{host} unreachable ({answer})", f"check the network and {address}")
        status = answer.status_code
        if status in (401, 403):
            return problem(check, f"{host} rejects the key", f"correct {keys}")
        if status == 429 or status >= 500:
            return warning(check, f"{host} answers {status}", "try again later; the service may be down")
        if status >= 300:
            return problem(check, f"{host} answers {status}: not this service", f"check {address}")
        if json_object(answer) is None:
            return problem(check, f"{host} answers without a JSON object: not this service", f"check {address}")
        return ok(check, f"{host} answers and accepts the key")

    async def check_server(self, check: str, url: str, key: Secret | None, *, keys: str, address: str) -> CheckResult:
        """The same for servers that share no path but those of their service: any response but 401 and 403 passes."""
        answer, host = await self.answer("GET", url, headers=bearer(key) if key else {}), host_of(url)
        if isinstance(answer, str):
            return problem(check, f"{host} unreachable ({answer})", f"start it, or correct {address}")
        if answer.status_code in (401, 403):
            return problem(check, f"{host} rejects the key", f"correct {keys}")
        return ok(check, f"{host} answers")

    async def check_host(self, check: str, url: str, todo: str) -> CheckResult:
        """Any response passes: to send the request itself could have an effect."""
        parts = urlsplit(url)
        answer = await self.answer("OPTIONS", f"{parts.scheme}://{parts.netloc}/")
        if isinstance(answer, str):
            return problem(check, f"{host_of(url)} unreachable ({answer})", todo)
        return encrypted(check, url, f"{host_of(url)} answers")

    def clock(self) -> CheckResult:
        """The clock of this machine, compared with those of all servers that have answered."""
        if self._skew is None:
            return off("clock", "not compared: no server is configured")
        if self._skew > MAX_CLOCK_SKEW:
            found = f"off by {self._skew:.0f} s; signatures depend on it"
            return problem("clock", found, "turn on time synchronisation (NTP)")
        return ok("clock", "agrees with other servers")


def json_object(answer: httpx.Response) -> dict[str, Any] | None:
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def encrypted(check: str, url: str, found: str) -> CheckResult:
    """A good result, unless the address is http beyond this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" or is_loopback(parts.hostname or ""):
        return ok(check, found)
    return warning(check, f"{found}; not encrypted", "use https, unless the network between is yours alone")


def bearer(key: Secret) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.reveal()}"}


def host_of(url: str) -> str:
    """Without a user and a password."""
    return urlsplit(url).netloc.rpartition("@")[2]
