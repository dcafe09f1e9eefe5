"""
Simulated carriers: signed webhooks, a media socket, and the REST commands the gateway sends.

One carrier has one account and places one call at a time. What a real carrier would generate (call id, signature) is
generated here; the stream token is the one the gateway issued.
"""

import asyncio
import base64
import contextlib
import secrets
import time
import uuid
import xml.etree.ElementTree as ElementTree
from abc import ABC, abstractmethod
from typing import Any

import httpx
import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from twilio.request_validator import RequestValidator
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from gateway.errors import SettingsError
from gateway.settings import Secret
from gateway.simulate.frames import (
    PEER_SECONDS,
    AudioFrame,
    Frame,
    FrameSink,
    JsonFrame,
    parse_text,
    send_frame,
    wait_processed,
)
from gateway.simulate.gateway_under_test import GatewayAddress

# Twilio's messages, for every simulated caller that speaks its dialect


def twilio_form(account_sid: str, call_sid: str, status: str, *, caller: str, called: str) -> dict[str, str]:
    """The fields of a voice webhook or status callback."""
    return {
        "AccountSid": account_sid,
        "ApiVersion": "2010-04-01",
        "CallSid": call_sid,
        "CallStatus": status,
        "Direction": "inbound",
        "From": caller or "anonymous",
        "To": called,
    }


def twilio_signature(auth_token: str, url: str, form: dict[str, str]) -> dict[str, str]:
    """The header that signs a webhook."""
    return {"X-Twilio-Signature": RequestValidator(auth_token).compute_signature(url, form)}


def twilio_stream(twiml: str) -> tuple[str, str]:
    """The stream URL and the stream token in TwiML. ValueError when the call was not answered with a stream."""
    try:
        root = ElementTree.fromstring(twiml)
    except ElementTree.ParseError:
        raise ValueError("the gateway did not answer with TwiML") from None
    stream, token = root.find("Connect/Stream"), root.find("Connect/Stream/Parameter[@name='token']")
    if stream is None or token is None:
        raise ValueError("the gateway did not answer the call with a stream")
    return stream.attrib["url"], token.attrib["value"]


def twilio_start(account_sid: str, call_sid: str, stream_sid: str, token: str) -> dict[str, Any]:
    """The media stream's `start` message."""
    start = {
        "accountSid": account_sid,
        "callSid": call_sid,
        "streamSid": stream_sid,
        "tracks": ["inbound"],
        "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        "customParameters": {"token": token},
    }
    return {"event": "start", "sequenceNumber": "1", "streamSid": stream_sid, "start": start}


# Calls


class CarrierCall:
    """One call: the media socket, and whether the gateway has ended it."""

    def __init__(self, call_id: str, caller: str, called: str, socket: ClientConnection) -> None:
        self.id = call_id
        self.caller = caller
        self.called = called
        self.sink = FrameSink()
        self.ended = asyncio.Event()
        """Set when the gateway requested the hang-up or closed the media socket."""
        self.connect(socket)

    def connect(self, socket: ClientConnection) -> None:
        """Use this media socket from now on."""
        self.ended.clear()
        self._socket = socket
        self._reading = asyncio.get_running_loop().create_task(self._read(socket), name="carrier socket")

    async def send(self, frame: Frame) -> None:
        assert not isinstance(frame, AudioFrame)  # a carrier sends audio inside JSON
        await send_frame(self._socket, frame)

    async def wait_processed(self) -> None:
        await wait_processed(self._socket)

    async def close(self) -> None:
        await self._socket.close()
        await self._reading

    async def lose_stream(self) -> None:
        """Drop the media socket without a close frame. The call goes on."""
        self._socket.transport.abort()
        await self._reading

    async def _read(self, socket: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for text in socket:
                frame = parse_text(text)
                match frame:
                    case JsonFrame({"event": "media", "media": {"payload": payload}}):
                        self.sink.put(AudioFrame(base64.b64decode(payload)))
                    case _:
                        self.sink.put(frame)
        self.ended.set()


class SimulatedCarrier(ABC):
    """What Twilio and Telnyx have in common."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._call: CarrierCall | None = None

    async def place_call(self, caller: str, called: str, stream_id: str, gateway: GatewayAddress) -> CarrierCall:
        """Announce the call and open its media stream. SettingsError if the gateway is down or rejects the call."""
        with gateway.translated_errors():
            call_id, stream_url = await self._announce(caller, called, gateway)
            socket = await gateway.open_media(stream_url)
        self._call = call = CarrierCall(call_id, caller, called, socket)
        await self._open_stream(call, stream_id)
        return call

    async def resume_call(self, call: CarrierCall, stream_id: str, gateway: GatewayAddress) -> None:
        """Open another media stream for a call that has lost its own. SettingsError if the gateway gives it up."""
        await call.close()
        with gateway.translated_errors():
            stream_url = await self._resume(call, gateway)
            call.connect(await gateway.open_media(stream_url))
        await self._open_stream(call, stream_id)

    async def _open_stream(self, call: CarrierCall, stream_id: str) -> None:
        for message in self._stream_opening(call, stream_id):
            await call.send(JsonFrame(message))

    async def hang_up(self, call: CarrierCall, gateway: GatewayAddress) -> None:
        """Report the end of the call by webhook. A gateway that is gone is ignored."""
        with contextlib.suppress(httpx.HTTPError):
            await self._report_hangup(call, gateway)

    def _gateway_hung_up(self, call_id: str) -> None:
        if self._call is not None and self._call.id == call_id:
            self._call.ended.set()

    @abstractmethod
    def settings(self, api_url: str) -> dict[str, Any]:
        """Gateway settings for this account."""

    @abstractmethod
    def routes(self) -> list[Route]:
        """The REST API through which the gateway controls calls."""

    @abstractmethod
    async def _announce(self, caller: str, called: str, gateway: GatewayAddress) -> tuple[str, str]:
        """Send the webhook of an incoming call. Returns the call id and the stream URL from the gateway's answer."""

    @abstractmethod
    async def _resume(self, call: CarrierCall, gateway: GatewayAddress) -> str:
        """The URL of another stream for this call."""

    @abstractmethod
    def _stream_opening(self, call: CarrierCall, stream_id: str) -> list[dict[str, Any]]: ...

    @abstractmethod
    async def _report_hangup(self, call: CarrierCall, gateway: GatewayAddress) -> None: ...


class SimulatedTwilio(SimulatedCarrier):
    """Twilio: the voice webhook, the status callback, the Calls resource. Uses its own account unless one is given."""

    def __init__(self, http: httpx.AsyncClient, *, account_sid: str = "", auth_token: Secret | None = None) -> None:
        super().__init__(http)
        self._account_sid = account_sid or f"AC{secrets.token_hex(16)}"
        self._auth_token = auth_token or Secret(secrets.token_hex(16))
        self._stream_token = ""

    def settings(self, api_url: str) -> dict[str, Any]:
        account = {"twilio_account_sid": self._account_sid, "twilio_auth_token": self._auth_token}
        return account | {"twilio_api_url": api_url}

    def routes(self) -> list[Route]:
        path = "/2010-04-01/Accounts/{account}/Calls/{call}.json"
        return [
            Route(path, self._update_call, methods=["POST"]),
            Route(path, self._show_call, methods=["GET"]),
        ]

    async def _announce(self, caller: str, called: str, gateway: GatewayAddress) -> tuple[str, str]:
        call_id = f"CA{secrets.token_hex(16)}"
        form = twilio_form(self._account_sid, call_id, "ringing", caller=caller, called=called)
        answer = await self._post("/twilio/incoming", form, gateway)
        if answer.status_code == 403:
            raise _rejected(gateway, "it rejects the signature; do TWILIO_AUTH_TOKEN and PUBLIC_URL match its own?")
        if not answer.is_success:
            raise _rejected(gateway, f"the voice webhook answered with status {answer.status_code}")
        try:
            stream_url, self._stream_token = twilio_stream(answer.text)
        except ValueError:
            problem = "it rejects the caller; is the recorded number in ALLOWED_CALLERS?"
            raise _rejected(gateway, problem) from None
        return call_id, stream_url

    async def _resume(self, call: CarrierCall, gateway: GatewayAddress) -> str:
        form = twilio_form(self._account_sid, call.id, "in-progress", caller=call.caller, called=call.called)
        answer = await self._post("/twilio/resume", form, gateway)
        try:
            stream_url, self._stream_token = twilio_stream(answer.text)
        except ValueError:
            raise _rejected(gateway, "it does not resume the call") from None
        return stream_url

    def _stream_opening(self, call: CarrierCall, stream_id: str) -> list[dict[str, Any]]:
        return [
            {"event": "connected", "protocol": "Call", "version": "1.0.0"},
            twilio_start(self._account_sid, call.id, stream_id, self._stream_token),
        ]

    async def _report_hangup(self, call: CarrierCall, gateway: GatewayAddress) -> None:
        form = twilio_form(self._account_sid, call.id, "completed", caller=call.caller, called=call.called)
        await self._post("/twilio/status", form, gateway)

    async def _post(self, path: str, form: dict[str, str], gateway: GatewayAddress) -> httpx.Response:
        headers = twilio_signature(self._auth_token.reveal(), gateway.public(path), form)
        return await self._http.post(gateway.local(path), data=form, headers=headers, timeout=PEER_SECONDS)

    async def _update_call(self, request: Request) -> Response:
        call_id = request.path_params["call"]
        self._gateway_hung_up(call_id)
        return JSONResponse({"sid": call_id, "status": "completed"})

    async def _show_call(self, request: Request) -> Response:
        return JSONResponse({"sid": request.path_params["call"], "status": "in-progress"})


class SimulatedTelnyx(SimulatedCarrier):
    """Telnyx: signed Call Control events, and the commands that answer them. Has its own key pair."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__(http)
        self._key = Ed25519PrivateKey.generate()
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._new_stream: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._transfer = ""
        """Identifies the leg to which the gateway transfers the caller."""

    def settings(self, api_url: str) -> dict[str, Any]:
        public_key = self._key.public_key().public_bytes_raw()
        return {
            "telnyx_api_key": Secret(f"KEY{secrets.token_hex(16)}"),
            "telnyx_public_key": base64.b64encode(public_key).decode(),
            "telnyx_api_url": api_url,
        }

    def routes(self) -> list[Route]:
        return [
            Route("/calls/{call:path}/actions/{action}", self._act, methods=["POST"]),
            Route("/calls/{call:path}", self._show_call, methods=["GET"]),
        ]

    async def _announce(self, caller: str, called: str, gateway: GatewayAddress) -> tuple[str, str]:
        call_id = f"v3:{secrets.token_urlsafe(32)}"
        self._answer = asyncio.get_running_loop().create_future()
        posted = await self._post_event("call.initiated", call_id, caller, called, gateway)
        if not posted.is_success:
            raise _rejected(gateway, f"the webhook answered with status {posted.status_code}")
        try:
            stream_url = await asyncio.wait_for(self._answer, PEER_SECONDS)
        except TimeoutError:
            raise _rejected(gateway, "no command came after call.initiated") from None
        if not stream_url:
            raise _rejected(gateway, "it rejects the caller")
        return call_id, stream_url

    async def _resume(self, call: CarrierCall, gateway: GatewayAddress) -> str:
        """The URL comes with the gateway's command. Report first that a transfer, if there was one, has failed."""
        await self._report_transfer("call.hangup", call, gateway)
        try:
            return await asyncio.wait_for(self._new_stream, PEER_SECONDS)
        except TimeoutError:
            raise _rejected(gateway, "it does not resume the call") from None
        finally:
            self._new_stream = asyncio.get_running_loop().create_future()

    def _stream_opening(self, call: CarrierCall, stream_id: str) -> list[dict[str, Any]]:
        start = {
            "call_control_id": call.id,
            "from": call.caller,
            "to": call.called,
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        }
        return [
            {"event": "connected", "version": "1.0.0"},
            {"event": "start", "sequence_number": "1", "stream_id": stream_id, "start": start},
        ]

    async def _report_transfer(self, event: str, call: CarrierCall, gateway: GatewayAddress) -> None:
        """Report the outcome of the leg to the target, if the gateway has transferred the call."""
        if self._transfer:
            leg_id = f"v3:{secrets.token_urlsafe(32)}"
            await self._post_event(event, leg_id, call.called, call.caller, gateway, client_state=self._transfer)
            self._transfer = ""

    async def _report_hangup(self, call: CarrierCall, gateway: GatewayAddress) -> None:
        await self._report_transfer("call.answered", call, gateway)
        await self._post_event("call.hangup", call.id, call.caller, call.called, gateway)

    async def _post_event(
        self, event: str, call_id: str, caller: str, called: str, gateway: GatewayAddress, client_state: str = ""
    ) -> httpx.Response:
        payload = {
            "call_control_id": call_id,
            "call_leg_id": str(uuid.uuid4()),
            "direction": "incoming",
            "from": caller or "anonymous",
            "to": called,
            "client_state": client_state or None,
        }
        data = {"record_type": "event", "event_type": event, "id": str(uuid.uuid4()), "payload": payload}
        body, timestamp = orjson.dumps({"data": data}), str(int(time.time()))
        signature = base64.b64encode(self._key.sign(timestamp.encode() + b"|" + body)).decode()
        headers = {"telnyx-timestamp": timestamp, "telnyx-signature-ed25519": signature}
        url = gateway.local("/telnyx/webhook")
        return await self._http.post(url, content=body, headers=headers, timeout=PEER_SECONDS)

    async def _act(self, request: Request) -> Response:
        action, body = request.path_params["action"], await request.json()
        if action in ("answer", "reject") and not self._answer.done():
            self._answer.set_result(body.get("stream_url", ""))
        elif action == "transfer":
            self._transfer = body["target_leg_client_state"]
        elif action == "streaming_start" and not self._new_stream.done():
            self._new_stream.set_result(body["stream_url"])
        elif action == "hangup":
            self._gateway_hung_up(request.path_params["call"])
        return JSONResponse({"data": {"result": "ok"}})

    async def _show_call(self, request: Request) -> Response:
        return JSONResponse({"data": {"call_control_id": request.path_params["call"], "is_alive": True}})


def _rejected(gateway: GatewayAddress, problem: str) -> SettingsError:
    return SettingsError(f"the gateway at {gateway.url} did not accept the call: {problem}")
