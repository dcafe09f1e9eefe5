"""
Agents that ElevenLabs hosts: memory before a call (`/elevenlabs/initiation`), the conversation after it
(`/elevenlabs/post-call`), and Twilio calls that are handed to such an agent.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.calls.call_table import ManagedCall
from gateway.calls.hosted_calls import HostedCalls, PreparedCall
from gateway.errors import CarrierRefused, RemoteProtocolError, SignatureRejected
from gateway.logs import BurstLogger
from gateway.sealing import is_same
from gateway.settings import Secret
from gateway.telephony import elevenlabs
from gateway.telephony.elevenlabs import PLATFORM, ElevenLabsApi
from gateway.telephony.phone_numbers import Attestation
from gateway.web.auth import GuessThrottle
from gateway.web.hosted_agents import MAX_BODY_BYTES, keep
from gateway.web.request import read_body
from gateway.websocket import port_mux

POST_CALL_PATH: Final = "/elevenlabs/post-call"
SIGNATURE: Final = "elevenlabs-signature"
MAX_AUDIO_BYTES: Final = 128 * 1024 * 1024
"""A recording of more than an hour, in base64."""
REGISTER_SECONDS: Final = 3.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ElevenLabsEndpoint:
    """The `/elevenlabs/` paths; 503 for one whose secret is not set."""

    calls: HostedCalls
    api: ElevenLabsApi | None
    webhook_secret: Secret | None
    initiation_secret: Secret | None
    throttle: GuessThrottle
    stranger_log: BurstLogger = field(default_factory=lambda: BurstLogger(_log))

    def routes(self) -> list[Route]:
        return [
            Route("/elevenlabs/initiation", self.initiation, methods=["POST"]),
            Route(POST_CALL_PATH, self.post_call, methods=["POST"]),
        ]

    async def initiation(self, request: Request) -> Response:
        """A call rings at ElevenLabs: what is remembered of its caller. The request is not signed."""
        if self.api is None or self.initiation_secret is None:
            raise HTTPException(503, "set ELEVENLABS_API_KEY and ELEVENLABS_INITIATION_SECRET")
        if not is_same(request.headers.get("x-gateway-secret", ""), self.initiation_secret.reveal()):
            raise self.throttle.refusal(request, "missing or wrong X-Gateway-Secret")
        try:
            asked = elevenlabs.read_initiation(await read_body(request))
        except RemoteProtocolError as error:
            raise HTTPException(400, str(error)) from None
        agent = self.calls.agent(asked.agent_id)
        if agent is None:
            _log.warning("hosted agent is not configured", extra={"carrier": PLATFORM})
            call = PreparedCall("", "", "", 0)
        else:
            call = await self.calls.prepare(agent, asked.call_id, asked.caller)
        return JSONResponse({"type": "conversation_initiation_client_data", **_client_data(call)})

    async def post_call(self, request: Request) -> Response:
        """A conversation is over."""
        if self.api is None or self.webhook_secret is None:
            raise HTTPException(503, "set ELEVENLABS_API_KEY and ELEVENLABS_WEBHOOK_SECRET")
        try:
            header = request.headers.get(SIGNATURE, "")
            check = elevenlabs.SignatureCheck(self.webhook_secret.reveal(), header, now=time.time())
            body, end = await _read_pieces(request, check.update)
            check.finish()
            if end and not (elevenlabs.is_audio(body) or elevenlabs.is_audio(end)):
                raise HTTPException(413, "body too large")
            kind, data = elevenlabs.read_post_call(body) if not end else ("", {})
            if kind != elevenlabs.TRANSCRIPTION:
                return Response(status_code=200)
            conversation = elevenlabs.read_conversation(data)
        except SignatureRejected as error:
            self.stranger_log.warning("webhook rejected", {"carrier": PLATFORM, "reason": str(error)})
            raise HTTPException(401, str(error)) from None
        except RemoteProtocolError as error:
            self.stranger_log.warning("webhook rejected", {"carrier": PLATFORM, "reason": str(error)})
            raise HTTPException(400, str(error)) from None
        return await keep(self.calls, PLATFORM, conversation)

    # Numbers that are ours

    async def answered(self, call_id: str) -> str:
        """The TwiML that a repeated webhook of a registered call gets; empty if it was not registered."""
        call = await self.calls.prepared(call_id) if self.api is not None else None
        return call.document if call is not None else ""

    async def register(self, call: ManagedCall, attestation: Attestation) -> str:
        """TwiML that connects a call to its hosted agent; empty if our own engine has to answer it."""
        if self.api is None or not call.agent.elevenlabs_agent:
            return ""
        call_id = call.key[1]
        prepared = await self.calls.prepare(call.agent, call_id, call.number, attestation)
        try:
            document, conversation_id = await self.api.register_call(
                call.agent.elevenlabs_agent,
                caller=call.number or "anonymous",
                called=call.called,
                data=_client_data(prepared),
                timeout=REGISTER_SECONDS,
            )
        except CarrierRefused as error:
            _log.warning("hosted agent did not answer, using our own engine", extra={"reason": str(error)})
            return ""
        self.calls.keep_answer(call_id, prepared, document, conversation_id)
        return document


def body_limit(path: bytes, headers: Sequence[tuple[bytes, bytes]]) -> int:
    """
    Recordings are large. They are accepted, so that the webhook does not count as failed, and not kept.

    Before the whole body is there only the signature's time can be checked: not who sent it.
    """
    if path == POST_CALL_PATH.encode():
        header = next((value.decode("latin-1") for name, value in headers if name == SIGNATURE.encode()), "")
        with contextlib.suppress(SignatureRejected):
            elevenlabs.SignatureCheck("", header, now=time.time())
            return MAX_AUDIO_BYTES
    return port_mux.MAX_BODY_BYTES


async def _read_pieces(request: Request, on_piece: Callable[[bytes], None]) -> tuple[bytes, bytes]:
    """The body up to MAX_BODY_BYTES and, if it is longer, its last KB; what is between is passed on only."""
    body, end = bytearray(), b""
    try:
        async for piece in request.stream():
            on_piece(piece)
            if not end and len(body) + len(piece) <= MAX_BODY_BYTES:
                body += piece
            else:
                end = (end + piece)[-1024:]
    except ClientDisconnect:
        raise HTTPException(400, "incomplete body") from None
    return bytes(body), end


def _client_data(call: PreparedCall) -> dict[str, object]:
    user_id = f"caller:{call.number}" if call.number else ""
    return elevenlabs.client_data(memory=call.memory, caller_name=call.name, user_id=user_id, call_token=call.token)
