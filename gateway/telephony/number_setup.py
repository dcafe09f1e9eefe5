"""
Points a phone number at this gateway, through the carriers' account APIs.

`find` changes nothing; it returns the necessary changes, and `Redirection.apply` makes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final
from urllib.parse import quote

import httpx

from gateway.errors import CarrierRefused, SettingsError, connection_problem
from gateway.settings import Secret
from gateway.telephony.rest import error_code

APPLICATION: Final = "Voice Gateway"
"""The name of the Call Control application created for a Telnyx number that has none."""

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
class SettingChange:
    """One setting at a carrier, before and after."""

    what: str
    before: str
    after: str


@dataclass(frozen=True)
class Redirection:
    """The changes that route a number's calls to this gateway; empty if they already do."""

    number: str
    changes: tuple[SettingChange, ...]
    _apply: Callable[[], object] = field(repr=False)

    def apply(self) -> None:
        """Raises CarrierRefused if the carrier refuses a change."""
        if self.changes:
            self._apply()


class AccountApi:
    """Requests to one carrier's account API."""

    name: ClassVar[str]

    def __init__(self, api_url: str, **options: Any) -> None:
        """`options` are those of httpx, for every request: credentials, and another timeout."""
        self._url = api_url.rstrip("/")
        self._options = {"timeout": _TIMEOUT, **options}

    def _request(self, method: str, path: str, what: str, *, field: str, whole: bool = False, **content: Any) -> Any:
        """
        Send a request and return a field of the answer. `what` is for the message of a refusal.

        `whole`: return all of the answer. An answer without the field is another service's.
        """
        try:
            answer = httpx.request(method, self._url + path, **self._options, **content)
        except httpx.HTTPError as error:
            raise SettingsError(f"{self.name} can't be reached ({connection_problem(error)}); try again") from None
        try:
            body = answer.json()
        except ValueError:
            body = None
        if answer.status_code >= 400:
            raise CarrierRefused(self.name.lower(), what, answer.status_code, error_code(body))
        if not isinstance(body, dict) or field not in body:
            raise SettingsError(f"what answers is not {self.name}; check {self.name.upper()}_API_URL")
        return body if whole else body[field]

    def _only(self, numbers: Sequence[dict[str, Any]], wanted: str) -> dict[str, Any]:
        if not numbers:
            which = f"no number {wanted}" if wanted else "no number at all"
            raise SettingsError(f"this {self.name} account has {which}; buy one, or check the keys")
        if len(numbers) > 1:
            names = ", ".join(sorted(str(one["phone_number"]) for one in numbers)[:5])
            raise SettingsError(f"this {self.name} account has several numbers ({names}); say which with --number")
        return numbers[0]


class TwilioAccount(AccountApi):
    """The numbers of a Twilio account (Twilio docs, "IncomingPhoneNumber resource")."""

    name: ClassVar[str] = "Twilio"

    def __init__(self, *, api_url: str, account_sid: str, auth_token: Secret, **options: Any) -> None:
        super().__init__(api_url, auth=(account_sid, auth_token.reveal()), **options)
        self._numbers = f"/2010-04-01/Accounts/{quote(account_sid, safe='')}/IncomingPhoneNumbers"

    def find(self, number: str, *, webhook_url: str, status_url: str) -> Redirection:
        """The changes for this number, or for the account's only number."""
        one = self._only(self._list(number), number)
        if one.get("trunk_sid"):
            raise SettingsError(f"{one['phone_number']} belongs to a SIP trunk; remove it there in the Twilio console")
        return self._redirection(one, webhook_url, status_url)

    def find_all(self, *, webhook_url: str, status_url: str) -> list[Redirection]:
        """The changes for each of the account's first 50 numbers; without those of SIP trunks."""
        numbers = [one for one in self._list() if not one.get("trunk_sid")]
        return [self._redirection(one, webhook_url, status_url) for one in numbers]

    def _list(self, number: str = "") -> list[dict[str, Any]]:
        query = {"PageSize": "50", **({"PhoneNumber": number} if number else {})}
        path, field = f"{self._numbers}.json", "incoming_phone_numbers"
        return list(self._request("GET", path, "to list numbers", field=field, params=query))

    def _redirection(self, one: dict[str, Any], webhook_url: str, status_url: str) -> Redirection:
        wanted = {
            "voice_url": webhook_url,
            "voice_method": "POST",
            "status_callback": status_url,
            "status_callback_method": "POST",
            "voice_application_sid": "",  # an application would take precedence over voice_url
        }
        form = {name.title().replace("_", ""): value for name, value in wanted.items()}

        def change() -> None:
            self._request("POST", f"{self._numbers}/{one['sid']}.json", "the change", field="sid", data=form)

        return Redirection(one["phone_number"], _changes(one, wanted), change)


class TelnyxAccount(AccountApi):
    """The numbers of a Telnyx account. A number belongs to a Call Control application, which has the webhook URL."""

    name: ClassVar[str] = "Telnyx"

    def __init__(self, *, api_url: str, api_key: Secret, **options: Any) -> None:
        super().__init__(api_url, headers={"Authorization": f"Bearer {api_key.reveal()}"}, **options)

    def find(self, number: str, *, webhook_url: str) -> Redirection:
        """The changes for this number, or for the account's only number."""
        query = {"filter[phone_number]": number} if number else {}
        one = self._only(self._ask("GET", "/phone_numbers", params=query), number)
        return self._redirection(one, self._application(one.get("connection_id") or ""), webhook_url)

    def find_all(self, *, webhook_url: str) -> list[Redirection]:
        """The changes for each of the account's first 50 numbers."""
        numbers = self._ask("GET", "/phone_numbers", params={"page[size]": "50"})
        ids = {str(one.get("connection_id") or "") for one in numbers}
        applications = {connection_id: self._application(connection_id) for connection_id in ids}
        return [
            self._redirection(one, applications[str(one.get("connection_id") or "")], webhook_url) for one in numbers
        ]

    def _redirection(self, one: dict[str, Any], application: dict[str, Any] | None, webhook_url: str) -> Redirection:
        wanted = {"webhook_event_url": webhook_url, "webhook_api_version": "2"}
        if application is None:
            before = str(one.get("connection_name") or one.get("connection_id") or "")
            changes = (SettingChange("connection", before, APPLICATION), *_changes({}, wanted))
            return Redirection(one["phone_number"], changes, lambda: self._add_application(one["id"], wanted))
        body = {"application_name": application["application_name"], **wanted}
        path = f"/call_control_applications/{application['id']}"
        changes = _changes(application, wanted)
        return Redirection(one["phone_number"], changes, lambda: self._ask("PATCH", path, json=body))

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

    def _add_application(self, number_id: str, wanted: Mapping[str, str]) -> None:
        made = self._ask("POST", "/call_control_applications", json={"application_name": APPLICATION, **wanted})
        self._ask("PATCH", f"/phone_numbers/{number_id}", json={"connection_id": made["id"]})

    def _ask(self, method: str, path: str, **content: Any) -> Any:
        """Send a request and return the answer's `data`."""
        return self._request(method, path, f"{method} {path.split('/')[1]}", field="data", **content)


def _changes(now: Mapping[str, Any], wanted: Mapping[str, str]) -> tuple[SettingChange, ...]:
    before = {name: str(now.get(name) or "") for name in wanted}
    return tuple(SettingChange(name, before[name], after) for name, after in wanted.items() if before[name] != after)
