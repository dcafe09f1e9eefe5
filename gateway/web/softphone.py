"""
The gateway's own phone: who has the admin token may place a call, as any caller, without a carrier.

`POST /v1/phone` lets the call in and gives the token that opens its media socket, once and soon. The socket speaks
Twilio's media dialect; `gateway call` and the page of the browser phone are its clients. `POST /v1/phone/links` makes a
link to that page for one call of somebody who has no admin token.
"""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.calls.call_table import TOKEN_SECONDS
from gateway.calls.manager import CallManager, Refusal
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable
from gateway.settings import Secret
from gateway.telephony.attestation import Attestation
from gateway.telephony.phone_numbers import e164
from gateway.telephony.softphone import ACCOUNT, SoftphoneCodec
from gateway.web.admin_json import RequestRejected, text_of, wanted
from gateway.web.guest_links import LINK_SECONDS, WATCH_SECONDS, GuestLink, TokenCodec, WatchToken
from gateway.web.public_url import PublicUrl

PATH: Final = "/v1/phone"
MEDIA_PATH: Final = "/phone/media"
GUEST_PATH: Final = "/phone/guest"

_LONGEST_NAME: Final = 100


@dataclass(frozen=True)
class CallRequest:
    """Who calls whom. No caller is one who hides their number; `called` is a number, or an agent's name."""

    caller: str = ""
    called: str = ""

    def __post_init__(self) -> None:
        if self.caller and e164(self.caller) is None:
            raise RequestRejected(400, "caller must be a number like +12025550143, or left out")
        if len(self.called) > _LONGEST_NAME:
            raise RequestRejected(400, "called must be a number or an agent's name")


@dataclass(frozen=True)
class SoftphoneEndpoint:
    """Lets calls in for those who have the admin token, or a link for one call. `board` knows which links are spent."""

    manager: CallManager
    public: PublicUrl
    admin_token: Secret
    shared_store: SharedStore
    passes: TokenCodec = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", TokenCodec(self.admin_token))

    def routes(self) -> list[Route]:
        return [
            Route(PATH, self._place, methods=["POST"]),
            Route(f"{PATH}/links", self._make_link, methods=["POST"]),
        ]

    async def place_call(self, request: Request, wish: CallRequest) -> dict[str, Any]:
        """Admit the call; return what the phone needs to open its media socket. Raises RequestRejected."""
        call_id = f"PH{uuid.uuid4().hex}"
        pending = await self.manager.accept(
            (SoftphoneCodec.name, call_id),
            caller=wish.caller,
            called=wish.called,
            media_url=self.public.socket_url(request, MEDIA_PATH),
            account_id=ACCOUNT,
            attestation=Attestation.FULL,
            vouched=True,
        )
        if isinstance(pending, Refusal):
            raise RequestRejected(503, str(pending))
        watch = WatchToken(pending.session_id, pending.agent.name, pending.caller, int(time.time()) + WATCH_SECONDS)
        return {
            "call_id": call_id,
            "account_id": ACCOUNT,
            "token": pending.token,
            "token_seconds": TOKEN_SECONDS,
            "media_path": MEDIA_PATH,
            "agent": pending.agent.name,
            "watch": self.passes.seal(watch),
        }

    async def ring_once(self, request: Request, link: GuestLink) -> dict[str, Any]:
        """The one call of a link. Raises RequestRejected."""
        spent = f"phone-link:{link.number}"
        try:
            if link.era != self.shared_store.era or not await self.shared_store.add(spent, b"", LINK_SECONDS):
                raise RequestRejected(403, "This link was used already. Ask for another one.")
            try:
                return await self.place_call(request, CallRequest(link.caller, link.called))
            except RequestRejected:
                await self.shared_store.delete(spent)  # it was no call
                raise
        except SharedStoreUnavailable:
            raise RequestRejected(
                503, "Nobody can tell now whether this link was used. Try again in a moment."
            ) from None

    def link(self, request: Request, wish: CallRequest) -> str:
        """The address of a page for one call. What follows # is never sent by a browser, nor written to any log."""
        made = GuestLink(wish.caller, wish.called, int(time.time()) + LINK_SECONDS, self.shared_store.era)
        return f"{self.public.origin(request)}{GUEST_PATH}#{self.passes.seal(made)}"

    async def _place(self, request: Request) -> Response:
        try:
            return _made(await self.place_call(request, await self._wish(request)))
        except RequestRejected as problem:
            return JSONResponse({"detail": str(problem)}, problem.status)

    async def _make_link(self, request: Request) -> Response:
        try:
            return _made({"url": self.link(request, await self._wish(request)), "seconds": LINK_SECONDS})
        except RequestRejected as problem:
            return JSONResponse({"detail": str(problem)}, problem.status)

    async def _wish(self, request: Request) -> CallRequest:
        given = await wanted(request, self.admin_token)
        return CallRequest(text_of(given, "caller"), text_of(given, "called"))


def _made(content: dict[str, Any]) -> Response:
    return JSONResponse(content, status_code=201, headers={"Cache-Control": "no-store"})
