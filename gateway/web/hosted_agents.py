"""Agents that other platforms host: memory before a call, the conversation after it."""

import logging
import time
from dataclasses import dataclass
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.calls.hosted_calls import HostedCalls, PreparedCall
from gateway.errors import RemoteProtocolError, SignatureRejected
from gateway.telephony.hosted import HostedConversation, HostedPlatform, Initiation, prompt_variables
from gateway.web.auth import GuessThrottle
from gateway.web.request import read_body

MAX_BODY_BYTES: Final = 2_000_000
"""A transcript of hours is a fraction of this."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostedAgentsEndpoint:
    """The paths of one platform; 503 if its secret is not set."""

    calls: HostedCalls
    platform: HostedPlatform
    throttle: GuessThrottle

    def routes(self) -> list[Route]:
        return [Route(path, self.receive, methods=["POST"]) for path in self.platform.paths]

    async def receive(self, request: Request) -> Response:
        if self.platform.secret is None:
            raise HTTPException(503, f"set {self.platform.setting}")
        body = await read_body(request, MAX_BODY_BYTES)
        try:
            self.platform.check(request.headers, body, now=time.time())
            message = self.platform.read(body)
        except SignatureRejected as error:
            raise self.throttle.refusal(request, str(error)) from None
        except RemoteProtocolError as error:
            raise HTTPException(400, str(error)) from None
        if isinstance(message, Initiation):
            return await self._prepare(message)
        return await keep(self.calls, self.platform.name, message) if message is not None else Response()

    async def _prepare(self, asked: Initiation) -> Response:
        """A call rings: what is remembered of its caller."""
        name = self.platform.name
        agent, call = self.calls.agent_of(name, asked), PreparedCall("", "", "", 0)
        if agent is None:
            _log.warning("hosted agent is not configured", extra={"carrier": name})
        else:
            call = await self.calls.prepare(agent, asked.call_id, asked.caller)
        hosted_id = agent.hosted_ids.get(name, "") if agent is not None else ""
        answer = self.platform.answer(asked, hosted_id, prompt_variables(call.memory, call.name))
        if answer is None:
            raise HTTPException(404, "no agent with an id at this platform answers this number")
        return JSONResponse(answer)


async def keep(calls: HostedCalls, platform: str, conversation: HostedConversation) -> Response:
    """A conversation is over. Stored before it is answered: some platforms do not repeat a report by default."""
    if calls.agent_of(platform, conversation) is None:
        _log.warning("hosted agent is not configured", extra={"carrier": platform})
    elif not await calls.finish(platform, conversation):
        raise HTTPException(503, "the conversation could not be stored")
    return Response()
