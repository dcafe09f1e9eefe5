"""
A simulator of Deepgram's Voice Agent: a real WebSocket server on loopback that follows the documented protocol.

Every accepted socket is a `Conversation`; a test lets it speak and listen, and reads what the client did there.
"""

import asyncio
import hmac
import json
import uuid
from collections import deque
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

import httpx
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from tests.fakes.deepgram_conversation import Conversation
from tests.fakes.deepgram_dialogue import LATE_AUDIO, LATE_TEXT, Behaviour
from tests.fakes.deepgram_speech import SIZES, speech
from tests.fakes.deepgram_wire import ConversationOver, LogEntry

__all__ = [
    "LATE_AUDIO",
    "LATE_TEXT",
    "SIZES",
    "Conversation",
    "ConversationOver",
    "FakeDeepgram",
    "LogEntry",
    "Behaviour",
    "speech",
]

PATH = "/v1/agent/converse"


class FakeDeepgram:
    """The engine's side of all calls in a test. Other keyword arguments are those of `Behaviour`."""

    def __init__(self, api_key: str = "dg-test-key", **behaviour: Any) -> None:
        self.api_key = api_key
        self.behaviour = Behaviour(**behaviour)
        self.connections: list[Conversation] = []
        """All that were accepted."""
        self.conversations: list[Conversation] = []
        """Those on which the client has sent something. Before the caller is connected, it has nothing to send."""
        self.refused: list[int] = []
        """The status of each refused handshake."""
        self._accepted: asyncio.Queue[Conversation] = asyncio.Queue()
        self._arrived: asyncio.Queue[Conversation] = asyncio.Queue()
        self._refusals: deque[int] = deque()
        self._failures: list[Exception] = []
        self._server: Server | None = None
        self._llm_client: httpx.AsyncClient | None = None
        self.origins: dict[str, str] = {}
        """Loopback addresses of the public LLM endpoints."""

    async def __aenter__(self) -> Self:
        # A large write buffer, so that a slow client never blocks the fake; no pings.
        self._server = await serve(
            self._converse,
            "127.0.0.1",
            0,
            process_request=self._admit,
            process_response=self._identify,
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
        if self._llm_client is not None:
            await self._llm_client.aclose()
        if self._failures and error is None:
            raise ExceptionGroup("the simulated engine failed", self._failures)

    @property
    def url(self) -> str:
        """The value for DEEPGRAM_AGENT_URL."""
        assert self._server is not None
        return f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{PATH}"

    def settings(self) -> dict[str, str]:
        """The gateway's settings for this engine."""
        return {"DEEPGRAM_API_KEY": self.api_key, "DEEPGRAM_AGENT_URL": self.url}

    def behave(self, **behaviour: Any) -> None:
        """Change the behaviour of later conversations."""
        self.behaviour = replace(self.behaviour, **behaviour)

    def refuse_next(self, status: int, times: int = 1) -> None:
        """Refuse the next handshakes with this status."""
        self._refusals.extend([status] * times)

    async def next_connection(self, *, timeout: float = 60.0) -> Conversation:
        """The next accepted connection, in order, whether or not the client has sent something."""
        async with asyncio.timeout(timeout):
            return await self._accepted.get()

    async def next_conversation(self, *, timeout: float = 60.0) -> Conversation:
        """The next connection on which the client has sent something, in order."""
        async with asyncio.timeout(timeout):
            return await self._arrived.get()

    # Called by the server

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        status = self._refusal(request)
        if status is None:
            return None
        self.refused.append(status)
        reason = HTTPStatus(status)
        response = connection.respond(reason, json.dumps({"err_code": reason.name, "err_msg": reason.phrase}))
        del response.headers["Content-Type"]
        response.headers["Content-Type"] = "application/json"
        return response

    def _refusal(self, request: Request) -> int | None:
        if request.path.partition("?")[0] != PATH:
            return 404
        if self._refusals:
            return self._refusals.popleft()
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        known = scheme.lower() in ("token", "bearer") and hmac.compare_digest(key.encode(), self.api_key.encode())
        return None if known else 401

    def _identify(self, connection: ServerConnection, request: Request, response: Response) -> None:
        response.headers["dg-request-id"] = str(uuid.uuid4())

    def _begun(self, conversation: Conversation) -> None:
        self.conversations.append(conversation)
        self._arrived.put_nowait(conversation)

    async def _converse(self, socket: ServerConnection) -> None:
        assert socket.response is not None
        request_id = socket.response.headers["dg-request-id"]
        conversation = Conversation(socket, request_id=request_id, behaviour=self.behaviour, llm=self._llm)
        self.connections.append(conversation)
        self._accepted.put_nowait(conversation)
        conversation.on_begun = partial(self._begun, conversation)
        try:
            await conversation.run()
        except Exception as failure:  # raised when the test leaves the fake's context
            self._failures.append(failure)

    def _llm(self) -> httpx.AsyncClient:
        if self._llm_client is None:
            self._llm_client = httpx.AsyncClient(transport=_Balancer(self.origins), timeout=60)
        return self._llm_client


class _Balancer(httpx.AsyncHTTPTransport):
    """Maps public addresses of LLM endpoints to loopback."""

    def __init__(self, origins: dict[str, str]) -> None:
        super().__init__()
        self._origins = origins

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        public = f"{request.url.scheme}://{request.url.netloc.decode()}"
        if public in self._origins:
            request.url = httpx.URL(self._origins[public] + request.url.raw_path.decode())
        return await super().handle_async_request(request)
