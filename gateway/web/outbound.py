"""
Calls that we place: `POST /v1/outbound/call`, with the admin token.

The order is kept until somebody picks up; then the carrier's webhook asks what to do with the call, perhaps at another
node, and from there on it is a call like any other.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.agents import AgentDirectory
from gateway.calls.manager import CallManager
from gateway.calls.outbound import OutboundCall, OutboundCallStore
from gateway.errors import CarrierRefused, SharedStoreUnavailable
from gateway.settings import Secret
from gateway.telephony.phone_numbers import e164
from gateway.telephony.rest import CallControl
from gateway.telephony.softphone import SoftphoneCodec
from gateway.web.admin_json import RequestRejected, text_of, wanted
from gateway.web.public_url import PublicUrl

PATH: Final = "/v1/outbound/call"
MOST_CONTEXT: Final = 8000
"""Characters; it goes into the prompt."""
MOST_GREETING: Final = 500

_FIELDS: Final = frozenset({"to", "from", "agent", "carrier", "context", "greeting"})
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class OutboundEndpoint:
    """Places calls for those who have the admin token."""

    manager: CallManager
    public: PublicUrl
    admin_token: Secret
    outbound_calls: OutboundCallStore
    agents: AgentDirectory
    controls: Mapping[str, CallControl]

    def routes(self) -> list[Route]:
        return [Route(PATH, self._place, methods=["POST"])]

    async def _place(self, request: Request) -> Response:
        try:
            return JSONResponse(await self._placed(request), status_code=201, headers={"Cache-Control": "no-store"})
        except RequestRejected as problem:
            return JSONResponse({"detail": str(problem)}, problem.status)

    async def _placed(self, request: Request) -> dict[str, str]:
        given = await wanted(request, self.admin_token)
        if unknown := sorted(set(given) - _FIELDS):
            raise RequestRejected(400, f"unknown field {unknown[0]}; known are {', '.join(sorted(_FIELDS))}")
        if (refusal := self.manager.unready) is not None:
            raise RequestRejected(503, str(refusal))
        carrier = self._carrier(text_of(given, "carrier"))
        number, called = self._from(text_of(given, "from"), text_of(given, "agent"))
        order = _order(given, called)
        call_id = await self._dialled(request, carrier, number, order)
        return {"session": order.session_id, "carrier": carrier, "call_id": call_id, "status": "queued"}

    async def _dialled(self, request: Request, carrier: str, number: str, order: OutboundCall) -> str:
        try:
            await self.outbound_calls.keep(order)  # first: somebody may pick up before the carrier's answer is here
        except SharedStoreUnavailable:
            raise RequestRejected(503, "the order can't be kept now; try again in a moment") from None
        self.manager.dials(carrier, order)
        media_url = self.public.socket_url(request, f"/{carrier}/media")
        try:
            return await self.controls[carrier].dial(order.to, caller_id=number, order_id=order.id, media_url=media_url)
        except CarrierRefused as error:
            self.manager.unanswered(carrier, order, str(error))
            if not error.retryable:  # else their phone may ring all the same
                await close_order(self.outbound_calls, order)
            raise RequestRejected(502, str(error)) from None

    def _carrier(self, wanted: str) -> str:
        """Who is to place it: the one that was named, or the only one there is."""
        there = sorted(set(self.controls) - {SoftphoneCodec.name})
        if not there:
            raise RequestRejected(503, "no carrier is set up; set the keys of Twilio or of Telnyx")
        if wanted and wanted not in there:
            raise RequestRejected(400, f"carrier must be one that is set up: {' or '.join(there)}")
        if not wanted and len(there) > 1:
            raise RequestRejected(400, f"several carriers are set up; say which in carrier: {' or '.join(there)}")
        return wanted or there[0]

    def _from(self, number: str, name: str) -> tuple[str, str]:
        """The number that is called from, and by what its agent is known."""
        agents = {agent.name: agent for agent in self.agents}
        if name and name not in agents:
            raise RequestRejected(400, f"there is no agent {name}; there are {', '.join(sorted(agents))}")
        if number and e164(number) is None:
            raise RequestRejected(400, "from must be a number like +12025550100")
        known = [own for agent in self.agents if name in ("", agent.name) for own in agent.numbers]
        if not number and len(known) != 1:
            raise RequestRejected(400, "from is missing: the number to call from, one of your account's")
        own = e164(number) or known[0]
        return own, own if name in ("", self.agents.answering(own).name) else name


async def ordered(outbound_calls: OutboundCallStore, order_id: str) -> OutboundCall | None:
    """The order that a webhook speaks of. None also where nobody can tell now: then nobody is left waiting."""
    try:
        return await outbound_calls.find(order_id) if order_id else None
    except SharedStoreUnavailable as error:
        _log.warning("an order can't be looked up", extra={"reason": str(error)})
        return None


async def close_order(outbound_calls: OutboundCallStore, order: OutboundCall | None) -> None:
    """Its call is over, or will never be."""
    try:
        if order is not None:
            await outbound_calls.drop(order.id)
    except SharedStoreUnavailable:
        pass  # it expires


def _order(given: Mapping[str, Any], called: str) -> OutboundCall:
    to = e164(text_of(given, "to"))
    if to is None:
        raise RequestRejected(400, "to must be a number like +12025550143")
    greeting = text_of(given, "greeting")
    if len(greeting) > MOST_GREETING:
        raise RequestRejected(400, f"greeting is longer than {MOST_GREETING} characters")
    attributes = _attributes(given.get("context"))
    lines = [f"{name}: {value}" for name, value in attributes.items()]
    context = "\n".join(lines) if attributes else text_of(given, "context")
    if len(context) > MOST_CONTEXT:
        raise RequestRejected(400, f"context is longer than {MOST_CONTEXT} characters")
    return OutboundCall(to, called, context, attributes, greeting)


def _attributes(context: Any) -> dict[str, str]:
    """What an object says, by name."""
    if not isinstance(context, dict):
        return {}  # text has no names
    if not all(isinstance(value, str | int | float) for value in context.values()):
        raise RequestRejected(400, "context must be text, or an object whose values are text, numbers, true or false")
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in context.items()}
