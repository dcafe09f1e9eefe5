"""
`POST /elevenlabs/llm/chat/completions`: an agent's own language model, for a platform that hosts its voice.

A standing key chooses the agent, and opens nothing else. `X-Call-Token` says whose memory it is: numbers and ids in
headers and body are claims, and are not read.
"""

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.hosted_llm import HostedLlm
from gateway.errors import RemoteProtocolError, StoreUnavailable
from gateway.history.api_tokens import TokenScope
from gateway.invocation import public_command
from gateway.telephony.elevenlabs import PLATFORM
from gateway.telephony.hosted import conversation_id
from gateway.web.auth import Authenticator
from gateway.web.chat_completions import error_response, respond

CALL_TOKEN: Final = "x-call-token"


def routes(llm: HostedLlm, auth: Authenticator) -> list[Route]:
    async def complete(request: Request) -> Response:
        try:
            access = await auth.admit(request, TokenScope.LLM)
        except HTTPException as error:
            return error_response(error.status_code, error.detail, error.headers)
        except StoreUnavailable:
            return error_response(503, "the store is unavailable")
        if access.scope is not TokenScope.LLM:
            return error_response(
                403, f"create a token for this: {public_command('token create --scope llm --agent NAME')}"
            )
        try:
            conversation = conversation_id(request.headers.get("x-conversation", ""), PLATFORM)
        except RemoteProtocolError:
            conversation = ""
        responder = await llm.responder(access.agent, request.headers.get(CALL_TOKEN, ""), conversation)
        if responder is None:
            problem = f"the agent {access.agent} has no language model of its own; set its brain in gateway.toml"
            return error_response(503, problem)
        return await respond(request, responder, usage_apart=True)

    return [Route("/elevenlabs/llm/chat/completions", complete, methods=["POST"])]
