"""
Telnyx webhooks: answered at once, processed afterwards.

Telnyx delivers an event at least once, in any order, and repeats it if the response takes longer than two seconds.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.call_table import ManagedCall
from gateway.calls.manager import CallManager, Refusal
from gateway.calls.outbound import OutboundCallStore
from gateway.errors import CarrierRefused, RemoteProtocolError, SignatureRejected
from gateway.logs import BurstLogger
from gateway.telephony.rest import TelnyxControl
from gateway.telephony.signatures import TelnyxVerifier
from gateway.telephony.telnyx import WebhookEvent, read_webhook
from gateway.web.outbound import find_outbound_call, outbound_call_ended
from gateway.web.request import PublicUrl, read_body
from gateway.web.softphone import MediaPass, TokenCodec

MEDIA_PATH: Final = "/telnyx/media"
_log = logging.getLogger(__name__)


class TelnyxEndpoint:
    """`POST /telnyx/webhook`; 503 without keys. Owns the running Call Control commands."""

    def __init__(
        self,
        manager: CallManager,
        public: PublicUrl,
        verifier: TelnyxVerifier | None,
        control: TelnyxControl | None,
        outbound_calls: OutboundCallStore,
        tokens: TokenCodec,
    ) -> None:
        self._manager = manager
        self._outbound_calls = outbound_calls
        self._tokens = tokens
        self._public = public
        self._verifier = verifier
        self._control = control
        self._commands: set[asyncio.Task[None]] = set()
        self._stranger_log = BurstLogger(_log)

    def routes(self) -> list[Route]:
        return [Route("/telnyx/webhook", self.webhook, methods=["POST"])]

    async def close(self) -> None:
        """Wait for running commands: an answered call must not be left without a stream."""
        if self._commands:
            await asyncio.wait(self._commands, timeout=10)

    async def webhook(self, request: Request) -> Response:
        if self._verifier is None or self._control is None:
            return Response("Telnyx is not configured: TELNYX_API_KEY is missing", 503)
        body = await read_body(request)
        try:
            self._verifier.check(body, request.headers, now=time.time())
            event = read_webhook(body)
        except SignatureRejected as error:
            self._stranger_log.warning("webhook rejected", {"carrier": "telnyx", "reason": str(error)})
            return Response("signature rejected", 403)
        except RemoteProtocolError as error:
            _log.warning("webhook rejected", extra={"carrier": "telnyx", "reason": str(error)})
            return Response("not an event", 400)
        if (event.call_id or event.answered_by) and await self._manager.is_new_event(event.id):
            self._handle(event, request, self._control)
        return Response(status_code=200)

    def _handle(self, event: WebhookEvent, request: Request, control: TelnyxControl) -> None:
        key = ("telnyx", event.call_id)
        if report := event.answered_by:
            found = key if event.call_id else self._manager.outbound_key("telnyx", event.order_id)
            return self._manager.answered_by(found, report) if found is not None else None
        match event.type:
            case "call.initiated" if event.incoming:
                media_url = self._public.socket_url(request, MEDIA_PATH)
                self._run(self._answer(event, media_url, control))
            case "call.answered" if event.order_id:
                media_url = self._public.socket_url(request, MEDIA_PATH)
                self._run(self._picked_up(event, media_url, control))
            case "call.answered" if event.transfer_of:
                self._manager.transfer_finished(("telnyx", event.transfer_of), answered=True)
            case "call.hangup" if event.transfer_of:
                self._manager.transfer_finished(("telnyx", event.transfer_of), answered=False)
            case "call.hangup":
                self._manager.carrier_ended(key)
                if event.order_id:
                    ended = outbound_call_ended(
                        self._manager, self._outbound_calls, "telnyx", event.order_id, not_answered=event.not_picked_up
                    )
                    self._run(ended)
            case "streaming.failed" | "streaming.stopped":
                self._manager.stream_failed(key, event.stream_token)
            case _:
                pass  # command results, DTMF that the media socket also reports, and new event types

    async def _answer(self, event: WebhookEvent, media_url: str, control: TelnyxControl) -> None:
        call_id = event.call_id
        command_key = event.text("call_leg_id") or call_id
        pending = await self._manager.accept(
            ("telnyx", call_id),
            caller=event.text("from"),
            called=event.text("to"),
            media_url=media_url,
            attestation=event.attestation,
            sip_headers=event.sip_headers,
            trunk=event.text("connection_id"),
            attributes=event.attributes,
        )
        if pending is Refusal.OVER:
            return
        if isinstance(pending, Refusal):
            # A busy tone: a spoken sentence would need an answered, billed call and three more webhooks.
            busy = pending is Refusal.CLOSING or pending.is_limit
            await control.reject(call_id, command_key=command_key, busy=busy)
        else:
            stream_url = pending.stream_url
            if self._manager.shares_calls:  # the socket may open at a node that does not know the call's token
                stream_url += f"&pass={self._tokens.seal(MediaPass.valid_now())}"
            await control.answer(call_id, stream_url=stream_url, command_key=command_key)

    async def _picked_up(self, event: WebhookEvent, media_url: str, control: TelnyxControl) -> None:
        call = await find_outbound_call(self._outbound_calls, event.order_id)
        pending = None
        if call is not None:
            pending = await self._manager.picked_up(("telnyx", event.call_id), call, media_url=media_url)
        if isinstance(pending, ManagedCall):
            await control.restart_stream(event.call_id, stream_url=pending.stream_url, replaces=False)
        elif pending is not Refusal.OVER:
            await control.hang_up(event.call_id)

    def _run(self, command: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_log_refusal(command), name="telnyx command")
        self._commands.add(task)
        task.add_done_callback(self._commands.discard)


async def _log_refusal(command: Coroutine[Any, Any, None]) -> None:
    try:
        await command
    except CarrierRefused as error:
        _log.error("command refused", extra={"carrier": "telnyx", "reason": str(error)})
