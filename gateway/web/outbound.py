"""
`POST /v1/outbound/call`: places a call, with the scope `outbound`.

The request is stored until the called party answers. Then the carrier's webhook, possibly on another node, looks it up,
and the call continues like an incoming one.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.agents import AgentDirectory
from gateway.calls.manager import CallManager
from gateway.calls.outbound import OutboundCall, OutboundCallStore
from gateway.errors import CarrierRefused, NumberNotAllowed, SharedStoreUnavailable
from gateway.history.api_tokens import TokenScope
from gateway.logs import last_four
from gateway.metrics import REFUSED
from gateway.telephony.machine_detection import MachineDetection
from gateway.telephony.phone_numbers import e164
from gateway.telephony.rest import CallControl, DialLimits
from gateway.telephony.twilio import SoftphoneCodec
from gateway.web.audit import audit_note
from gateway.web.auth import Authenticator
from gateway.web.request import PublicUrl, json_endpoint, read_json, text_field

PATH: Final = "/v1/outbound/call"
MAX_CONTEXT: Final = 8000
"""Characters. The context becomes part of the prompt."""
MAX_GREETING: Final = 500
BUSY_SECONDS: Final = 30
"""Retry-After while too many calls are live: calls take minutes, but one of them may end at any moment."""

MAX_MESSAGE: Final = 1000
"""Characters of a voicemail, about a minute. Many mailboxes record two."""

_FIELDS: Final = frozenset({"to", "from", "agent", "carrier", "context", "greeting", "voicemail"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutboundEndpoint:
    manager: CallManager
    public: PublicUrl
    auth: Authenticator
    outbound_calls: OutboundCallStore
    agents: AgentDirectory
    controls: Mapping[str, CallControl]
    limits: DialLimits

    def routes(self) -> list[Route]:
        return [Route(PATH, json_endpoint(self._place_call, self.auth, TokenScope.OUTBOUND), methods=["POST"])]

    async def _place_call(self, request: Request) -> Response:
        given = await read_json(request)
        if unknown := sorted(set(given) - _FIELDS):
            raise HTTPException(400, f"unknown field {unknown[0]}; known fields are {', '.join(sorted(_FIELDS))}")
        if (refusal := self.manager.unready) is not None:
            raise HTTPException(503, str(refusal))
        carrier = self._carrier(text_field(given, "carrier"))
        number, called = self._from(text_field(given, "from"), text_field(given, "agent"))
        call = _outbound_call(given, called)
        note = audit_note()
        note.caller, note.session, note.agent = call.to, call.session_id, self.agents.answering(called).name
        await self._check_limits(carrier, number, call)
        call_id = await self._dial(request, carrier, number, call)
        placed = {"id": call.id, "session": call.session_id, "carrier": carrier, "call_id": call_id, "status": "queued"}
        return JSONResponse(placed, status_code=202)

    async def _check_limits(self, carrier: str, number: str, call: OutboundCall) -> None:
        """Raise HTTPException for a number that may not be dialled, or one call too many."""
        status, problem, retry_after = 429, "", float(BUSY_SECONDS)
        try:
            self.limits.check(carrier, call.to, number)
            if (refusal := await self.manager.claim_dial(call)) is not None:
                problem = str(refusal)
            elif seconds := await self.outbound_calls.count_one_more():
                problem, retry_after = "OUTBOUND_PER_HOUR calls were placed in the last hour", seconds
                await self.manager.release_dial(call)
            if problem:
                REFUSED.labels(carrier, "too many outbound calls").inc()
        except NumberNotAllowed as error:
            status, problem = 403, str(error)
        except SharedStoreUnavailable:
            await self.manager.release_dial(call)
            raise HTTPException(503, "the call can't be counted now; try again in a moment") from None
        if problem:
            fields = {"caller": last_four(call.to), "carrier": carrier, "reason": problem}
            _log.warning("outbound call refused", extra=fields)
            later = {"Retry-After": str(math.ceil(retry_after))} if status == 429 else None
            raise HTTPException(status, problem, later)

    async def _dial(self, request: Request, carrier: str, number: str, call: OutboundCall) -> str:
        try:
            # Stored first: the called party may answer before the carrier's response arrives.
            await self.outbound_calls.keep(call)
        except SharedStoreUnavailable:
            await self.manager.release_dial(call)
            raise HTTPException(503, "the call can't be stored now; try again in a moment") from None
        self.manager.dials(carrier, call)
        media_url = self.public.socket_url(request, f"/{carrier}/media")
        try:
            return await self.controls[carrier].dial(
                call.to,
                caller_id=number,
                order_id=call.id,
                media_url=media_url,
                detection=MachineDetection.for_message(call.voicemail),
            )
        except CarrierRefused as error:
            self.manager.unanswered(carrier, call, str(error))
            if not error.retryable:  # otherwise the phone may ring all the same
                await drop_outbound_call(self.outbound_calls, call)
            raise HTTPException(502, str(error)) from None

    def _carrier(self, name: str) -> str:
        """The named carrier, or the only configured one."""
        configured = sorted(set(self.controls) - {SoftphoneCodec.name})
        if not configured:
            raise HTTPException(503, "no carrier is configured; set the keys for Twilio or Telnyx")
        if name and name not in configured:
            raise HTTPException(400, f"carrier must be a configured one: {' or '.join(configured)}")
        if not name and len(configured) > 1:
            raise HTTPException(400, f"several carriers are configured; set carrier to {' or '.join(configured)}")
        return name or configured[0]

    def _from(self, number: str, name: str) -> tuple[str, str]:
        """The caller id, and the number or name that selects the agent."""
        agents = {agent.name: agent for agent in self.agents}
        if name and name not in agents:
            raise HTTPException(400, f"no agent is named {name}; the agents are {', '.join(sorted(agents))}")
        if number and e164(number) is None:
            raise HTTPException(400, "from must be a phone number like +12025550100")
        known = [own for agent in self.agents if name in ("", agent.name) for own in agent.numbers]
        if not number and len(known) != 1:
            raise HTTPException(400, "from is missing: a phone number of your carrier account")
        own = e164(number) or known[0]
        return own, own if name in ("", self.agents.answering(own).name) else name


async def find_outbound_call(outbound_calls: OutboundCallStore, order_id: str) -> OutboundCall | None:
    """The call that a webhook refers to. None also if the store is unavailable: the called party must not wait."""
    try:
        return await outbound_calls.find(order_id) if order_id else None
    except SharedStoreUnavailable as error:
        _log.warning("outbound call lookup failed", extra={"reason": str(error)})
        return None


async def outbound_call_ended(
    manager: CallManager, outbound_calls: OutboundCallStore, carrier: str, order_id: str, *, not_answered: str
) -> None:
    """A webhook reports the end of an outbound call; `not_answered` is the reason if it was not answered."""
    call = await find_outbound_call(outbound_calls, order_id)
    if call is not None and not_answered:
        manager.unanswered(carrier, call, not_answered)
    await drop_outbound_call(outbound_calls, call)


async def drop_outbound_call(outbound_calls: OutboundCallStore, call: OutboundCall | None) -> None:
    """Delete the stored request of a call that ended or failed."""
    try:
        if call is not None:
            await outbound_calls.drop(call.id)
    except SharedStoreUnavailable:
        pass  # it expires by itself


def _outbound_call(given: Mapping[str, Any], called: str) -> OutboundCall:
    to = e164(text_field(given, "to"))
    if to is None:
        raise HTTPException(400, "to must be a phone number like +12025550143")
    greeting = text_field(given, "greeting")
    if len(greeting) > MAX_GREETING:
        raise HTTPException(400, f"greeting is longer than {MAX_GREETING} characters")
    attributes: dict[str, str] = {}
    if isinstance(values := given.get("context"), dict):
        if not all(isinstance(value, str | int | float) for value in values.values()):
            problem = "context must be text, or an object whose values are text, numbers, true or false"
            raise HTTPException(400, problem)
        attributes = {
            name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()
        }
    lines = [f"{name}: {value}" for name, value in attributes.items()]
    context = "\n".join(lines) if attributes else text_field(given, "context")
    if len(context) > MAX_CONTEXT:
        raise HTTPException(400, f"context is longer than {MAX_CONTEXT} characters")
    return OutboundCall(to, called, context, attributes, greeting, _voicemail(given.get("voicemail")))


def _voicemail(given: object) -> str | None:
    """See `OutboundCall.voicemail`."""
    match given:
        case None:
            return None
        case "hang_up":
            return ""
        case {"say": str(message), **rest} if message.strip() and not rest:
            if len(message) > MAX_MESSAGE:
                raise HTTPException(400, f"voicemail is longer than {MAX_MESSAGE} characters")
            return message.strip()
        case _:
            raise HTTPException(400, 'voicemail must be "hang_up" or {"say": "…"}')
