"""
Points a phone number at this gateway, through the carriers' account APIs.

`find` changes nothing; it returns the necessary changes, and `Redirection.apply` makes them.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from gateway.errors import CarrierRefused, SettingsError
from gateway.settings import Secret

APPLICATION: Final = "Voice Gateway"
"""The name of the Call Control application created for a Telnyx number that has none."""

_log = logging.getLogger(__name__)
_TIMEOUT: Final = httpx.Timeout(15.0, connect=5.0)


def webhook_urls(public_url: str) -> dict[str, str]:
    """The addresses that carriers post their webhooks to."""
    origin = public_url.rstrip("/")
    return {
        "twilio": f"{origin}/twilio/incoming",
        "twilio status": f"{origin}/twilio/status",
        "telnyx": f"{origin}/telnyx/webhook",
    }


@dataclass(frozen=True)
class NumberChange:
    """One setting at a carrier, before and after."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Redirection:
    """The changes that route a number's calls to this gateway; empty if they already do."""

    number: str
    changes: tuple[NumberChange, ...]
    steps: tuple[Callable[[], None], ...] = field(default=(), repr=False)

    def apply(self) -> None:
        """Raises CarrierRefused at the first change that the carrier refuses."""
        for step in self.steps if self.changes else ():
            step()


class TwilioAccount:
    """The numbers of a Twilio account, through Twilio's own library."""

    def __init__(self, *, api_url: str, account_sid: str, auth_token: Secret) -> None:
        # Imported here because it takes a second and only `gateway setup` needs it.
        from twilio.rest import Client

        self._client: Any = Client(account_sid, auth_token.reveal(), http_client=_http_client(api_url))

    def find(self, number: str, *, webhook_url: str, status_url: str) -> Redirection:
        """The changes for this number, or for the account's only number."""
        found = self._request(lambda: self._client.incoming_phone_numbers.list(limit=50, **_filter(number)))
        one = _only(found, number, "Twilio", lambda entry: str(entry.phone_number))
        if one.trunk_sid:
            raise SettingsError(f"{one.phone_number} belongs to a SIP trunk; remove it there in the Twilio console")
        wanted = {
            "voice_url": webhook_url,
            "voice_method": "POST",
            "status_callback": status_url,
            "status_callback_method": "POST",
            "voice_application_sid": "",  # an application would take precedence over voice_url
        }
        before = {name: getattr(one, name) or "" for name in wanted}
        changes = tuple(
            NumberChange(name, before[name], after) for name, after in wanted.items() if before[name] != after
        )
        return Redirection(one.phone_number, changes, (lambda: self._request(lambda: one.update(**wanted)),))

    def _request(self, ask: Callable[[], Any]) -> Any:
        from twilio.base.exceptions import TwilioException, TwilioRestException

        try:
            return ask()
        except TwilioRestException as error:
            raise CarrierRefused("twilio", "the change", error.status, str(error.code or "")) from None
        except TwilioException as error:  # from `list`: the response is among its arguments
            status = next((one.status_code for one in error.args if hasattr(one, "status_code")), 0)
            raise CarrierRefused("twilio", "to list numbers", status) from None
        except httpx.HTTPError as error:
            raise SettingsError(f"Twilio can't be reached ({type(error).__name__}); try again") from None
        except ValueError:
            raise SettingsError("what answers is not Twilio; check TWILIO_API_URL") from None


class TelnyxAccount:
    """The numbers of a Telnyx account. A number belongs to a Call Control application, which has the webhook URL."""

    def __init__(self, *, api_url: str, api_key: Secret) -> None:
        self._url = api_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key.reveal()}"}

    def find(self, number: str, *, webhook_url: str) -> Redirection:
        """The changes for this number, or for the account's only number."""
        query = {"filter[phone_number]": number} if number else {}
        found = self._ask("GET", "/phone_numbers", params=query)
        one = _only(found, number, "Telnyx", lambda entry: str(entry["phone_number"]))
        application = self._application(one.get("connection_id") or "")
        if application is None:
            return self._with_new_application(one, webhook_url)
        wanted = {"webhook_event_url": webhook_url, "webhook_api_version": "2"}
        before = {name: str(application.get(name) or "") for name in wanted}
        changes = tuple(
            NumberChange(name, before[name], after) for name, after in wanted.items() if before[name] != after
        )
        body = {"application_name": application["application_name"], **wanted}
        path = f"/call_control_applications/{application['id']}"
        return Redirection(one["phone_number"], changes, (lambda: self._do("PATCH", path, body),))

    def _application(self, connection_id: str) -> dict[str, Any] | None:
        """The number's Call Control application; None if it has another connection or none."""
        if not connection_id:
            return None
        try:
            return dict(self._ask("GET", f"/call_control_applications/{connection_id}"))
        except CarrierRefused as error:
            if error.status == 404:
                return None
            raise

    def _with_new_application(self, number: dict[str, Any], webhook_url: str) -> Redirection:
        def make() -> None:
            body = {"application_name": APPLICATION, "webhook_event_url": webhook_url, "webhook_api_version": "2"}
            made = self._ask("POST", "/call_control_applications", json=body)["id"]
            self._do("PATCH", f"/phone_numbers/{number['id']}", {"connection_id": made})

        before = str(number.get("connection_name") or number.get("connection_id") or "")
        changes = (
            NumberChange("connection", before, APPLICATION),
            NumberChange("webhook_event_url", "", webhook_url),
            NumberChange("webhook_api_version", "", "2"),
        )
        return Redirection(number["phone_number"], changes, (make,))

    def _do(self, method: str, path: str, body: dict[str, Any]) -> None:
        self._ask(method, path, json=body)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the answer's `data`."""
        try:
            answer = httpx.request(method, self._url + path, headers=self._headers, timeout=_TIMEOUT, **options)
        except httpx.HTTPError as error:
            raise SettingsError(f"Telnyx can't be reached ({type(error).__name__}); try again") from None
        if answer.status_code >= 400:
            raise CarrierRefused("telnyx", f"{method} {path.split('/')[1]}", answer.status_code, _telnyx_code(answer))
        try:
            return answer.json()["data"]
        except (ValueError, KeyError, TypeError):
            raise SettingsError("what answers is not Telnyx; check TELNYX_API_URL") from None


def _filter(number: str) -> dict[str, str]:
    return {"phone_number": number} if number else {}


def _only(found: list[Any], number: str, carrier: str, name_of: Callable[[Any], str]) -> Any:
    if not found:
        which = f"no number {number}" if number else "no number at all"
        raise SettingsError(f"this {carrier} account has {which}; buy one, or check whose keys these are")
    if len(found) > 1:
        names = ", ".join(sorted(map(name_of, found))[:5])
        raise SettingsError(f"this {carrier} account has several numbers ({names}); say which with --number")
    return found[0]


def _telnyx_code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["errors"][0]["code"])
    except (ValueError, KeyError, IndexError, TypeError):
        return ""


def _http_client(api_url: str) -> Any:
    """A transport for Twilio's library that uses `api_url`."""
    from twilio.http import HttpClient
    from twilio.http.response import Response

    class Transport(HttpClient):  # type: ignore[misc]  # the library ships no types
        def request(
            self,
            method: str,
            uri: str,
            params: Any = None,
            data: Any = None,
            headers: Any = None,
            auth: Any = None,
            timeout: float | None = None,
            allow_redirects: bool = False,
        ) -> Any:
            url = uri.replace("https://api.twilio.com", api_url.rstrip("/"), 1)
            form = dict(data or {})
            answer = httpx.request(
                method, url, params=params, data=form or None, headers=headers, auth=auth, timeout=_TIMEOUT
            )
            return Response(answer.status_code, answer.text)

    return Transport(_log, False)
