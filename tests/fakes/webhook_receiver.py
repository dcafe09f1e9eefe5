"""A server that receives webhooks. The official library checks every signature."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

import orjson
from standardwebhooks import Webhook
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback

SECRET = "whsec_dGhpcyBpcyBhIHRlc3Qgc2VjcmV0IG9mIHdlYmhvb2tz"


class WebhookReceiver:
    """
    `accepted` holds the messages that were answered with 200, by their `webhook-id`; `attempts` the ids as they came.

    `answers`: the statuses of the next attempts, before it accepts everything.
    """

    def __init__(self, secret: str = SECRET) -> None:
        self.accepted: dict[str, dict[str, Any]] = {}
        self.attempts: list[str] = []
        self.repeated: list[str] = []
        self.answers: list[int] = []
        self.url = ""
        self._webhook = Webhook(secret)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        app = Starlette(routes=[Route("/hook", self._take, methods=["POST"])])
        async with serve_on_loopback(app) as url:
            self.url = f"{url}/hook"
            yield self

    def messages(self, event: str = "call.ended") -> list[dict[str, Any]]:
        return [message for message in self.accepted.values() if message["type"] == event]

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        self._webhook.verify(body, dict(request.headers))  # raises, so the answer is 500
        return Response(status_code=await self.answer(request.headers["webhook-id"], orjson.loads(body)))

    async def answer(self, message_id: str, message: dict[str, Any]) -> int:
        self.attempts.append(message_id)
        if self.answers and (status := self.answers.pop(0)) != 200:
            return status
        if message_id in self.accepted:
            self.repeated.append(message_id)
        self.accepted[message_id] = message
        return 200
