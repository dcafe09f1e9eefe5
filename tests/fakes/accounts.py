"""
The carriers' account APIs: phone numbers and where their calls go.

Twilio's IncomingPhoneNumbers (REST API 2010-04-01: Basic auth, forms in, JSON out), Telnyx' phone_numbers and
call_control_applications (API v2: bearer, JSON). Both store changes, check
credentials, and reject what the real ones reject: an invalid webhook URL, an application without a name.
"""

import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback

ACCOUNT = "AC" + "1" * 32
TOKEN = "twilio-auth-token"
KEY = "telnyx-api-key"


class FakeTwilioAccount:
    """One account with some numbers."""

    def __init__(self, *numbers: str, **settings: str) -> None:
        self.numbers = {
            f"PN{place:032x}": self._number(f"PN{place:032x}", number) | settings
            for place, number in enumerate(numbers)
        }
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        base = f"/2010-04-01/Accounts/{ACCOUNT}/IncomingPhoneNumbers"
        routes = [Route(f"{base}.json", self._list), Route(f"{base}/{{sid}}.json", self._update, methods=["POST"])]
        async with serve_on_loopback(Starlette(routes=routes)) as self.url:
            yield self

    def settings(self) -> dict[str, str]:
        return {"TWILIO_ACCOUNT_SID": ACCOUNT, "TWILIO_AUTH_TOKEN": TOKEN, "TWILIO_API_URL": self.url}

    @staticmethod
    def _number(sid: str, number: str) -> dict[str, Any]:
        return {
            "sid": sid,
            "account_sid": ACCOUNT,
            "phone_number": number,
            "friendly_name": number,
            "voice_url": "https://demo.twilio.com/welcome/voice/",
            "voice_method": "POST",
            "status_callback": "",
            "status_callback_method": "POST",
            "voice_application_sid": None,
            "trunk_sid": None,
        }

    async def _list(self, request: Request) -> JSONResponse:
        if not self._is_ours(request):
            return self._problem(401, 20003, "Authenticate")
        wanted = request.query_params.get("PhoneNumber")
        found = [one for one in self.numbers.values() if wanted in (None, one["phone_number"])]
        size = int(request.query_params.get("PageSize", "50"))
        page = {"page": 0, "page_size": size, "next_page_uri": None, "incoming_phone_numbers": found[:size]}
        return JSONResponse(page)

    async def _update(self, request: Request) -> JSONResponse:
        if not self._is_ours(request):
            return self._problem(401, 20003, "Authenticate")
        number = self.numbers.get(request.path_params["sid"])
        if number is None:
            return self._problem(404, 20404, "not found")
        form = await request.form()
        if not str(form.get("VoiceUrl", "https://")).startswith(("http://", "https://", "")):
            return self._problem(400, 21402, "VoiceUrl is not valid")
        names = {"VoiceUrl": "voice_url", "VoiceMethod": "voice_method", "StatusCallback": "status_callback"}
        names |= {"StatusCallbackMethod": "status_callback_method", "VoiceApplicationSid": "voice_application_sid"}
        number.update({names[name]: str(value) or None for name, value in form.items() if name in names})
        return JSONResponse(number)

    def _is_ours(self, request: Request) -> bool:
        expected = base64.b64encode(f"{ACCOUNT}:{TOKEN}".encode()).decode()
        return request.headers.get("Authorization") == f"Basic {expected}"

    @staticmethod
    def _problem(status: int, code: int, message: str) -> JSONResponse:
        more = f"https://www.twilio.com/docs/errors/{code}"
        return JSONResponse({"code": code, "message": message, "more_info": more, "status": status}, status)


class FakeTelnyxAccount:
    """One account with some numbers, and Call Control applications by id."""

    def __init__(self, *numbers: str, connection_id: str = "") -> None:
        self.numbers = {
            str(place): {
                "id": str(place),
                "record_type": "phone_number",
                "phone_number": number,
                "connection_id": connection_id,
            }
            for place, number in enumerate(numbers, 1)
        }
        self.applications: dict[str, dict[str, Any]] = {}
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        routes = [
            Route("/v2/phone_numbers", self._list),
            Route("/v2/phone_numbers/{id}", self._assign, methods=["PATCH"]),
            Route("/v2/call_control_applications", self._create, methods=["POST"]),
            Route("/v2/call_control_applications/{id}", self._application, methods=["GET", "PATCH"]),
        ]
        async with serve_on_loopback(Starlette(routes=routes)) as url:
            self.url = f"{url}/v2"
            yield self

    def settings(self) -> dict[str, str]:
        public_key = base64.b64encode(bytes(32)).decode()
        return {"TELNYX_API_KEY": KEY, "TELNYX_PUBLIC_KEY": public_key, "TELNYX_API_URL": self.url}

    async def _list(self, request: Request) -> JSONResponse:
        if refusal := self._refusal(request):
            return refusal
        wanted = request.query_params.get("filter[phone_number]")
        found = [one for one in self.numbers.values() if wanted in (None, one["phone_number"])]
        return JSONResponse({"data": found, "meta": {"total_results": len(found)}})

    async def _assign(self, request: Request) -> JSONResponse:
        if refusal := self._refusal(request):
            return refusal
        number = self.numbers[request.path_params["id"]]
        number.update(await request.json())
        return JSONResponse({"data": number})

    async def _create(self, request: Request) -> JSONResponse:
        if refusal := self._refusal(request) or self._validation_error(await request.json()):
            return refusal
        id_ = str(2_000_000_000_000_000_000 + len(self.applications))
        made = {
            "id": id_,
            "record_type": "call_control_application",
            "webhook_api_version": "1",
            **await request.json(),
        }
        self.applications[id_] = made
        return JSONResponse({"data": made})

    async def _application(self, request: Request) -> JSONResponse:
        if refusal := self._refusal(request):
            return refusal
        there = self.applications.get(request.path_params["id"])
        if there is None:
            return self._problem(404, "10005", "Resource not found")
        if request.method == "PATCH":
            body = await request.json()
            if refusal := self._validation_error(body):
                return refusal
            there.update(body)
        return JSONResponse({"data": there})

    def _refusal(self, request: Request) -> JSONResponse | None:
        if request.headers.get("Authorization") == f"Bearer {KEY}":
            return None
        return self._problem(401, "10009", "Authentication failed")

    def _validation_error(self, body: dict[str, Any]) -> JSONResponse | None:
        """Both fields are required, even to change one of them."""
        whole = body.get("application_name") and str(body.get("webhook_event_url", "")).startswith("https://")
        return None if whole else self._problem(422, "10015", "Invalid value")

    @staticmethod
    def _problem(status: int, code: str, title: str) -> JSONResponse:
        return JSONResponse({"errors": [{"code": code, "title": title}]}, status)
