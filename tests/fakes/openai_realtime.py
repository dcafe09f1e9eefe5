"""A simulator of OpenAI's Realtime server, and of xAI's: a real WebSocket server on loopback."""

import asyncio
import json
from collections import deque
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from tests.fakes.realtime_conversation import RealtimeBehaviour, RealtimeConversation

PATH = "/v1/realtime"


class FakeRealtime:
    """The engine's side of all calls in a test. Other keyword arguments are those of `RealtimeBehaviour`."""

    def __init__(self, api_key: str = "sk-test-key", **behaviour: Any) -> None:
        self.api_key = api_key
        self.behaviour = RealtimeBehaviour(**behaviour)
        self.connections: list[RealtimeConversation] = []
        """All that were accepted."""
        self.conversations: list[RealtimeConversation] = []
        """Those on which the client has sent something. Before the caller is connected, it has nothing to send."""
        self.refused: list[int] = []
        self.models: list[str] = []
        self.origins: dict[str, str] = {}
        """Not used: the model is the server's own."""
        self._arrived: asyncio.Queue[RealtimeConversation] = asyncio.Queue()
        self._refusals: deque[int] = deque()
        self._failures: list[Exception] = []
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._converse,
            "127.0.0.1",
            0,
            process_request=self._admit,
            ping_interval=None,
            close_timeout=1,
            max_size=2**24,
            max_queue=None,
            write_limit=2**26,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        for conversation in self.connections:
            if conversation.hung:
                conversation.abort()
        self._server.close()
        await self._server.wait_closed()
        if self._failures and error is None:
            raise ExceptionGroup("the simulated engine failed", self._failures)

    @property
    def url(self) -> str:
        """The value for OPENAI_REALTIME_URL or XAI_REALTIME_URL."""
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"

    def settings(self) -> dict[str, str]:
        """The gateway's settings for this engine."""
        name = "XAI" if self.behaviour.is_xai else "OPENAI"
        account = {f"{name}_API_KEY": self.api_key, f"{name}_REALTIME_URL": self.url}
        # The key would be used for summaries, too.
        return {"VOICE_ENGINE": name.lower(), "SUMMARY_PROVIDER": "extractive", **account}

    def behave(self, **behaviour: Any) -> None:
        """Change the behaviour of later conversations."""
        self.behaviour = replace(self.behaviour, **behaviour)

    def refuse_next(self, status: int, times: int = 1) -> None:
        """Refuse the next handshakes with this status."""
        self._refusals.extend([status] * times)

    async def next_conversation(self, *, timeout: float = 60.0) -> RealtimeConversation:
        """The next connection on which the client has sent something, in order."""
        async with asyncio.timeout(timeout):
            return await self._arrived.get()

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        status = self._refusal(request)
        if status is None:
            return None
        self.refused.append(status)
        return connection.respond(HTTPStatus(status), json.dumps({"error": {"message": HTTPStatus(status).phrase}}))

    def _refusal(self, request: Request) -> int | None:
        address = urlsplit(request.path)
        if address.path != PATH or not (model := parse_qs(address.query).get("model")):
            return 404
        if self._refusals:
            return self._refusals.popleft()
        self.models += model
        known = request.headers.get("Authorization") == f"Bearer {self.api_key}"
        return None if known or request.headers.get("api-key") == self.api_key else 401

    def _begun(self, conversation: RealtimeConversation) -> None:
        self.conversations.append(conversation)
        self._arrived.put_nowait(conversation)

    async def _converse(self, socket: ServerConnection) -> None:
        conversation = RealtimeConversation(socket, self.behaviour)
        self.connections.append(conversation)
        conversation.on_begun = partial(self._begun, conversation)
        try:
            assert socket.request is not None
            if "OpenAI-Beta" in socket.request.headers:
                await conversation.fail("beta_api_shape_disabled", close=4000)
            else:
                await conversation.run()
        except Exception as failure:  # raised when the test leaves the fake's context
            self._failures.append(failure)
