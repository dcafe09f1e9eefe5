"""
`POST /v1/chat/completions` for the voice engine: the agent's answers, with a bearer token per call.

A valid request is answered with 200 and text even if the language model fails: an engine that gets an error ends the
call.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.llm.chat import ChatEvent
from gateway.llm.completions_codec import ChunkWriter, MalformedChatRequest, completion, read_request
from gateway.llm.responder import Responder
from gateway.llm.responder_factory import EndpointTokens
from gateway.web.auth import GuessThrottle, bearer_token
from gateway.web.request import read_body

MAX_BODY_BYTES: Final = 2_000_000
"""A prompt with its tools and hours of transcript is a fraction of this."""


def routes(endpoint_tokens: EndpointTokens, throttle: GuessThrottle) -> list[Route]:
    async def complete(request: Request) -> Response:
        responder = await endpoint_tokens.find(bearer_token(request.headers))
        if responder is None:
            refusal = throttle.refusal(request, "missing or unknown bearer token")
            return error_response(refusal.status_code, refusal.detail, refusal.headers)
        return await respond(request, responder)

    return [Route("/v1/chat/completions", complete, methods=["POST"])]


async def respond(request: Request, responder: Responder, *, usage_apart: bool = False) -> Response:
    """The responder's answer to a chat completion. `usage_apart`: see `ChunkWriter`."""
    try:
        body = await read_body(request, MAX_BODY_BYTES, too_large="the body is larger than 2 MB")
        parsed = read_request(body)
    except HTTPException as error:
        return error_response(error.status_code, error.detail)
    except MalformedChatRequest as problem:
        return error_response(400, str(problem))
    except ClientDisconnect:
        return Response(status_code=400)
    events = responder.answer(parsed.request)
    if parsed.streamed:
        writer = ChunkWriter(responder.agent, with_usage=parsed.with_usage, usage_apart=usage_apart)
        return _StreamedResponse(_chunks(events, writer), "text/event-stream")
    return _StreamedResponse(_whole(events, responder.agent), "application/json")


class _StreamedResponse(StreamingResponse):
    """Sends every piece at once. When the client disconnects, the generator is closed immediately."""

    def __init__(self, pieces: AsyncGenerator[bytes, None], media_type: str) -> None:
        super().__init__(
            pieces, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type
        )
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Starlette's own implementation imports anyio's task groups on first use, which blocks the loop for 20 ms.
        sending = asyncio.ensure_future(self.stream_response(send))
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            sending.cancel()
            await asyncio.wait({sending, leaving})
        if not sending.cancelled():
            sending.result()

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._pieces):
            await super().stream_response(send)


async def _chunks(events: AsyncGenerator[ChatEvent, None], writer: ChunkWriter) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        yield writer.start()
        async for event in events:
            if data := writer.write(event):
                yield data
    yield writer.end()


async def _whole(events: AsyncGenerator[ChatEvent, None], model: str) -> AsyncGenerator[bytes, None]:
    async with aclosing(events):
        yield completion([event async for event in events], model)


def error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """In the format of the OpenAI API."""
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": error}, status, headers)
