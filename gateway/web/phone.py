"""
The gateway's own phone: who has the admin token may place a call, as any caller, without a carrier.

`POST /v1/phone` lets the call in and gives the token that opens its media socket, once and soon. The socket speaks
Twilio's media dialect; `gateway call` and the page of the browser phone are its clients.
"""

import uuid
from dataclasses import dataclass
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.calls.desk import CallDesk, Refusal
from gateway.calls.registry import TOKEN_SECONDS
from gateway.carriers.attestation import Attestation
from gateway.carriers.numbers import e164
from gateway.carriers.softphone import ACCOUNT, SoftphoneCodec
from gateway.settings import Secret
from gateway.web.keys import is_admitted
from gateway.web.public import PublicAddress, read_body

PATH: Final = "/v1/phone"
MEDIA_PATH: Final = "/phone/media"


@dataclass(frozen=True)
class PhoneBooth:
    """Lets calls in for those who have the admin token."""

    desk: CallDesk
    public: PublicAddress
    admin_token: Secret

    def routes(self) -> list[Route]:
        return [Route(PATH, self.place, methods=["POST"])]

    async def place(self, request: Request) -> Response:
        if not is_admitted(request.headers, [self.admin_token]):
            return _refused(401, "missing or wrong admin token")
        wish = _wish(await read_body(request))
        if isinstance(wish, str):
            return _refused(400, wish)
        call_id = f"PH{uuid.uuid4().hex}"
        ring = await self.desk.ring(
            (SoftphoneCodec.name, call_id),
            caller=wish["caller"],
            called=wish["called"],
            media_url=self.public.socket_url(request, MEDIA_PATH),
            account_id=ACCOUNT,
            attestation=Attestation.FULL,
            vouched=True,
        )
        if isinstance(ring, Refusal):
            return _refused(503, str(ring))
        placed = {
            "call_id": call_id,
            "account_id": ACCOUNT,
            "token": ring.token,
            "token_seconds": TOKEN_SECONDS,
            "media_path": MEDIA_PATH,
            "agent": ring.agent.name,
        }
        return JSONResponse(placed, status_code=201, headers={"Cache-Control": "no-store"})


def _wish(body: bytes) -> dict[str, str] | str:
    """Who calls whom, or what is wrong with it. No caller is one who hides their number."""
    try:
        given: Any = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        return "the body must be JSON"
    if not isinstance(given, dict):
        return "the body must be an object"
    caller, called = given.get("caller", ""), given.get("called", "")
    if not isinstance(caller, str) or not isinstance(called, str):
        return "caller and called must be text"
    if caller and e164(caller) is None:
        return "caller must be a number like +12025550143, or left out"
    return {"caller": caller, "called": called}


def _refused(status: int, problem: str) -> Response:
    return JSONResponse({"detail": problem}, status_code=status)
