"""Twilio, as far as a recorded call needs it: the voice webhook, the status callback, the Calls resource."""

import secrets
import xml.etree.ElementTree as ElementTree
from typing import Any, ClassVar

import httpx
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from twilio.request_validator import RequestValidator

from gateway.replay.carrier_player import ANSWER_SECONDS, Carrier, CarrierCall, GatewayAddress, refused
from gateway.replay.recording import CallHeader
from gateway.settings import Secret


class TwilioPlayer(Carrier):
    """Twilio with one account: the player's own, or that of a running gateway."""

    name: ClassVar[str] = "twilio"

    def __init__(self, http: httpx.AsyncClient, *, account_sid: str = "", auth_token: Secret | None = None) -> None:
        super().__init__(http)
        self._account_sid = account_sid or f"AC{secrets.token_hex(16)}"
        self._auth_token = auth_token or Secret(secrets.token_hex(16))
        self._token = ""

    def settings(self, api_url: str) -> dict[str, Any]:
        return {
            "twilio_account_sid": self._account_sid,
            "twilio_auth_token": self._auth_token,
            "twilio_api_url": api_url,
        }

    def routes(self) -> list[Route]:
        return [Route("/2010-04-01/Accounts/{account}/Calls/{call}.json", self._update, methods=["POST"])]

    async def _tell_hangup(self, call: CarrierCall, header: CallHeader, gateway: GatewayAddress) -> None:
        await self._post("/twilio/status", self._form(call.id, header, "completed"), gateway)

    def _new_call_id(self) -> str:
        return f"CA{secrets.token_hex(16)}"

    async def _pending_call(self, call_id: str, header: CallHeader, gateway: GatewayAddress) -> str:
        answer = await self._post("/twilio/incoming", self._form(call_id, header, "ringing"), gateway)
        if answer.status_code == 403:
            raise refused(gateway, "it rejects the signature; are TWILIO_AUTH_TOKEN and PUBLIC_URL the ones it has?")
        if not answer.is_success:
            raise refused(gateway, f"the voice webhook answered with status {answer.status_code}")
        stream = _stream_of(answer.text)
        if stream is None:
            raise refused(gateway, "it rejects the caller; is the recorded number in ALLOWED_CALLERS?")
        self._token = next((p.get("value", "") for p in stream.iter("Parameter") if p.get("name") == "token"), "")
        return stream.get("url", "")

    def _opening(self, call_id: str, stream_id: str, header: CallHeader) -> list[dict[str, Any]]:
        start = {
            "accountSid": self._account_sid,
            "callSid": call_id,
            "streamSid": stream_id,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
            "customParameters": {"token": self._token},
        }
        return [
            {"event": "connected", "protocol": "Call", "version": "1.0.0"},
            {"event": "start", "sequenceNumber": "1", "streamSid": stream_id, "start": start},
        ]

    def _form(self, call_id: str, header: CallHeader, status: str) -> dict[str, str]:
        return {
            "AccountSid": self._account_sid,
            "ApiVersion": "2010-04-01",
            "CallSid": call_id,
            "CallStatus": status,
            "Direction": "inbound",
            "From": header.caller or "anonymous",
            "To": header.called,
        }

    async def _post(self, path: str, form: dict[str, str], gateway: GatewayAddress) -> httpx.Response:
        signature = RequestValidator(self._auth_token.reveal()).compute_signature(gateway.public(path), form)
        headers = {"X-Twilio-Signature": signature}
        return await self._http.post(gateway.local(path), data=form, headers=headers, timeout=ANSWER_SECONDS)

    async def _update(self, request: Request) -> Response:
        call_id = request.path_params["call"]
        self._hung_up(call_id)
        return JSONResponse({"sid": call_id, "status": "completed"})


def _stream_of(document: str) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(document).find("Connect/Stream")
    except ElementTree.ParseError:
        return None
