"""Telnyx, as far as a recorded call needs it: signed Call Control events, and the commands that answer them."""

import asyncio
import base64
import secrets
import time
import uuid
from typing import Any, ClassVar

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.replay.carrier_player import ANSWER_SECONDS, Carrier, CarrierCall, GatewayAddress, refused
from gateway.replay.recording import CallHeader
from gateway.settings import Secret


class TelnyxPlayer(Carrier):
    """Telnyx with one Call Control application and a key pair of its own."""

    name: ClassVar[str] = "telnyx"

    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__(http)
        self._key = Ed25519PrivateKey.generate()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def settings(self, api_url: str) -> dict[str, Any]:
        public_key = self._key.public_key().public_bytes_raw()
        return {
            "telnyx_api_key": Secret(f"KEY{secrets.token_hex(16)}"),
            "telnyx_public_key": base64.b64encode(public_key).decode(),
            "telnyx_api_url": api_url,
        }

    def routes(self) -> list[Route]:
        return [Route("/calls/{call:path}/actions/{action}", self._act, methods=["POST"])]

    async def _tell_hangup(self, call: CarrierCall, header: CallHeader, gateway: GatewayAddress) -> None:
        await self._tell("call.hangup", call.id, header, gateway)

    def _new_call_id(self) -> str:
        return f"v3:{secrets.token_urlsafe(32)}"

    async def _pending_call(self, call_id: str, header: CallHeader, gateway: GatewayAddress) -> str:
        self._answer = asyncio.get_running_loop().create_future()
        told = await self._tell("call.initiated", call_id, header, gateway)
        if not told.is_success:
            raise refused(gateway, f"the webhook answered with status {told.status_code}")
        try:
            stream_url = await asyncio.wait_for(self._answer, ANSWER_SECONDS)
        except TimeoutError:
            raise refused(gateway, "no command came after call.initiated") from None
        if not stream_url:
            raise refused(gateway, "it rejects the caller")
        return stream_url

    def _opening(self, call_id: str, stream_id: str, header: CallHeader) -> list[dict[str, Any]]:
        start = {
            "call_control_id": call_id,
            "from": header.caller,
            "to": header.called,
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        }
        return [
            {"event": "connected", "version": "1.0.0"},
            {"event": "start", "sequence_number": "1", "stream_id": stream_id, "start": start},
        ]

    async def _tell(self, event: str, call_id: str, header: CallHeader, gateway: GatewayAddress) -> httpx.Response:
        payload = {
            "call_control_id": call_id,
            "call_leg_id": str(uuid.uuid4()),
            "direction": "incoming",
            "from": header.caller or "anonymous",
            "to": header.called,
        }
        data = {"record_type": "event", "event_type": event, "id": str(uuid.uuid4()), "payload": payload}
        body, timestamp = orjson.dumps({"data": data}), str(int(time.time()))
        signature = base64.b64encode(self._key.sign(timestamp.encode() + b"|" + body)).decode()
        headers = {"telnyx-timestamp": timestamp, "telnyx-signature-ed25519": signature}
        url = gateway.local("/telnyx/webhook")
        return await self._http.post(url, content=body, headers=headers, timeout=ANSWER_SECONDS)

    async def _act(self, request: Request) -> Response:
        action, body = request.path_params["action"], await request.json()
        if action in ("answer", "reject") and not self._answer.done():
            self._answer.set_result(body.get("stream_url", ""))
        elif action == "hangup":
            self._hung_up(request.path_params["call"])
        return JSONResponse({"data": {"result": "ok"}})
