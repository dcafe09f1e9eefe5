"""
The gateway's own phone: with the admin token, place a call as any caller, without a carrier.

`POST /v1/phone` accepts the call and returns a short-lived, single-use token for its media socket, which speaks the
protocol of Twilio Media Streams. `gateway call` and the browser phone are its clients. `POST /v1/phone/links` creates a
link to the browser phone for one call by a guest.
"""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.calls.call_table import CallTimeouts
from gateway.calls.manager import CallManager, Refusal
from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable
from gateway.settings import Secret
from gateway.telephony.phone_numbers import Attestation, e164
from gateway.telephony.twilio import SOFTPHONE_ACCOUNT, SoftphoneCodec
from gateway.web.admin_json import RequestRejected, read_admin_json, text_field
from gateway.web.auth import LINK_SECONDS, WATCH_SECONDS, GuestLink, TokenCodec, WatchToken
from gateway.web.public_url import PublicUrl

PATH: Final = "/v1/phone"
MEDIA_PATH: Final = "/phone/media"
GUEST_PATH: Final = "/phone/guest"

_MAX_NAME: Final = 100


@dataclass(frozen=True)
class CallRequest:
    """`caller` is empty for a withheld number; `called` is a phone number or an agent's name."""

    caller: str = ""
    called: str = ""

    def __post_init__(self) -> None:
        if self.caller and e164(self.caller) is None:
            raise RequestRejected(400, "caller must be a phone number like +12025550143, or omitted")
        if len(self.called) > _MAX_NAME:
            raise RequestRejected(400, "called must be a phone number or an agent's name")


@dataclass(frozen=True)
class SoftphoneEndpoint:
    """Accepts calls with the admin token or a guest link. `shared_store` records used links."""

    manager: CallManager
    public: PublicUrl
    admin_token: Secret
    store: ExpiringStore
    tokens: TokenCodec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", TokenCodec(self.admin_token))

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._post_call, methods=["POST"]),
            Route(f"{PATH}/links", self._post_link, methods=["POST"]),
        ]

    async def place_call(self, request: Request, call: CallRequest) -> dict[str, Any]:
        """Admit the call; return what the phone needs to open its media socket. Raises RequestRejected."""
        call_id = f"PH{uuid.uuid4().hex}"
        pending = await self.manager.accept(
            (SoftphoneCodec.name, call_id),
            caller=call.caller,
            called=call.called,
            media_url=self.public.socket_url(request, MEDIA_PATH),
            account_id=SOFTPHONE_ACCOUNT,
            attestation=Attestation.FULL,
            vouched=True,
        )
        if isinstance(pending, Refusal):
            raise RequestRejected(503, str(pending))
        watch = WatchToken(pending.session_id, pending.agent.name, pending.caller, int(time.time()) + WATCH_SECONDS)
        return {
            "call_id": call_id,
            "account_id": SOFTPHONE_ACCOUNT,
            "token": pending.token,
            "token_seconds": CallTimeouts().token,
            "media_path": MEDIA_PATH,
            "agent": pending.agent.name,
            "watch": self.tokens.seal(watch),
        }

    async def place_guest_call(self, request: Request, link: GuestLink) -> dict[str, Any]:
        """Place the one call of a guest link. Raises RequestRejected."""
        key = f"phone-link:{link.number}"
        try:
            if not await self.store.add(key, b"", LINK_SECONDS):
                raise RequestRejected(403, "This link has already been used. Ask for a new one.")
            try:
                return await self.place_call(request, CallRequest(link.caller, link.called))
            except RequestRejected:
                await self.store.delete(key)  # the call was not placed
                raise
        except SharedStoreUnavailable:
            raise RequestRejected(503, "This link can't be checked right now. Try again in a moment.") from None

    def guest_link(self, request: Request, call: CallRequest) -> str:
        """The address of a page for one call. Browsers do not send the part after #, so it reaches no log."""
        link = GuestLink(call.caller, call.called, int(time.time()) + LINK_SECONDS)
        return f"{self.public.origin(request)}{GUEST_PATH}#{self.tokens.seal(link)}"

    async def _post_call(self, request: Request) -> Response:
        try:
            return _created(await self.place_call(request, await self._read(request)))
        except RequestRejected as error:
            return JSONResponse({"detail": str(error)}, error.status)

    async def _post_link(self, request: Request) -> Response:
        try:
            return _created({"url": self.guest_link(request, await self._read(request)), "seconds": LINK_SECONDS})
        except RequestRejected as error:
            return JSONResponse({"detail": str(error)}, error.status)

    async def _read(self, request: Request) -> CallRequest:
        given = await read_admin_json(request, self.admin_token)
        return CallRequest(text_field(given, "caller"), text_field(given, "called"))


def _created(content: dict[str, Any]) -> Response:
    return JSONResponse(content, status_code=201, headers={"Cache-Control": "no-store"})
