"""Twilio webhooks: incoming call, answered outbound call, ended stream, status callback."""

import logging
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.call_table import ManagedCall
from gateway.calls.manager import CallManager, Refusal
from gateway.calls.outbound import OutboundCallStore
from gateway.errors import SignatureRejected
from gateway.logs import BurstLogger
from gateway.settings import Secret
from gateway.telephony import twilio
from gateway.telephony.elevenlabs import PLATFORM
from gateway.telephony.signatures import check_twilio
from gateway.web.elevenlabs import ElevenLabsEndpoint
from gateway.web.outbound import find_outbound_call, outbound_call_ended
from gateway.web.request import PublicUrl, read_body

MEDIA_PATH: Final = "/twilio/media"
BUSY_TEXT: Final = "All lines are busy at the moment. Please call again a little later."
_TERMINAL: Final = frozenset({"completed", "busy", "failed", "no-answer", "canceled"})

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TwilioEndpoint:
    """The `/twilio/` paths; 503 without an auth token."""

    manager: CallManager
    public: PublicUrl
    auth_token: Secret | None
    outbound_calls: OutboundCallStore
    elevenlabs: ElevenLabsEndpoint
    stranger_log: BurstLogger = field(default_factory=lambda: BurstLogger(_log))

    def routes(self) -> list[Route]:
        return [
            Route("/twilio/incoming", self.incoming, methods=["POST"]),
            Route("/twilio/outbound", self.outbound, methods=["POST"]),
            Route("/twilio/resume", self.resume, methods=["POST"]),
            Route("/twilio/status", self.status, methods=["POST"]),
        ]

    async def incoming(self, request: Request) -> Response:
        """An incoming call. A repeated request gets the same response."""
        form = await self._form(request)
        call_id, account_id = form.get("CallSid", ""), form.get("AccountSid", "")
        if not call_id:
            return Response("CallSid is missing", 400)
        if document := await self.elevenlabs.answered(call_id):
            return _xml(document)
        attestation = twilio.attestation(form)
        pending = await self.manager.accept(
            ("twilio", call_id),
            caller=form.get("From", ""),
            called=form.get("To", ""),
            media_url=self.public.socket_url(request, MEDIA_PATH),
            account_id=account_id,
            attestation=attestation,
            sip_headers=twilio.sip_headers(form),
            trunk=form.get("SipDomain", ""),
            attributes=dict(request.query_params),  # covered by the signature, like the form
        )
        if isinstance(pending, Refusal):
            if pending.is_limit:
                return _xml(twilio.say_and_hang_up(BUSY_TEXT))
            return _xml(twilio.reject(busy=pending is Refusal.CLOSING))
        if pending.agent.is_handed_over and (document := await self.elevenlabs.register(pending, attestation)):
            self.manager.hand_over(pending.key, PLATFORM)
            return _xml(document)
        return self._connect(request, pending)

    async def outbound(self, request: Request) -> Response:
        """An outbound call was answered. A repeated request gets the same response."""
        form = await self._form(request)
        call = await find_outbound_call(self.outbound_calls, request.query_params.get("order", ""))
        if call is None or not form.get("CallSid"):
            return _xml(twilio.hang_up())
        pending = await self.manager.picked_up(
            ("twilio", form["CallSid"]),
            call,
            media_url=self.public.socket_url(request, MEDIA_PATH),
            account_id=form.get("AccountSid", ""),
        )
        return _xml(twilio.hang_up()) if isinstance(pending, Refusal) else self._connect(request, pending)

    async def resume(self, request: Request) -> Response:
        """The stream ended (the action URL of <Connect>). While the call is alive, connect another stream."""
        form = await self._form(request)
        key = ("twilio", form.get("CallSid", ""))
        is_over = form.get("CallStatus") in _TERMINAL
        if is_over:
            self.manager.carrier_ended(key)
        if twilio.was_put_through(form):
            self.manager.transfer_finished(key, answered=True)
            return _xml(twilio.hang_up())
        pending = await self.manager.resume(key) if not is_over else None
        return self._connect(request, pending) if pending is not None else _xml(twilio.hang_up())

    async def status(self, request: Request) -> Response:
        """Call and stream status callbacks, which may be late, repeated or out of order. Only a call's end matters."""
        form = await self._form(request)
        if form.get("StreamEvent") == "stream-error":
            _log.warning("twilio stream failed", extra={"code": form.get("StreamErrorCode", "")})
        if "AnsweredBy" in form and "CallStatus" not in form:
            if report := twilio.answered_by(form):
                self.manager.answered_by(("twilio", form.get("CallSid", "")), report)
        elif call_id := twilio.picked_up(form):
            self.manager.transfer_finished(("twilio", call_id), answered=True)
        elif form.get("CallStatus") in _TERMINAL and not form.get("StreamEvent"):
            self.manager.carrier_ended(("twilio", form.get("CallSid", "")))
            not_answered = form["CallStatus"].replace("-", " ") if form["CallStatus"] != "completed" else ""
            order_id = request.query_params.get("order", "")
            await outbound_call_ended(self.manager, self.outbound_calls, "twilio", order_id, not_answered=not_answered)
        return Response(status_code=204)

    def _connect(self, request: Request, pending: ManagedCall) -> Response:
        origin = self.public.origin(request)
        return _xml(
            twilio.connect_stream(
                stream_url=pending.media_url,
                resume_url=f"{origin}/twilio/resume",
                status_url=f"{origin}/twilio/status",
                token=pending.token,
            )
        )

    async def _form(self, request: Request) -> dict[str, str]:
        """The form that Twilio signed. Raises HTTPException."""
        if self.auth_token is None:
            raise HTTPException(503, "Twilio is not configured: TWILIO_AUTH_TOKEN is missing")
        body = await read_body(request)
        # Blank values are part of the signature.
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
        try:
            check_twilio(self.auth_token.reveal(), self.public.requested_url(request), pairs, request.headers)
        except SignatureRejected as error:
            self.stranger_log.warning("webhook rejected", {"carrier": "twilio", "reason": str(error)})
            raise HTTPException(403, "signature rejected") from None
        return dict(pairs)


def _xml(document: str) -> Response:
    return Response(document, media_type="text/xml")
