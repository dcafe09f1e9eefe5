"""
Answers by an OpenClaw agent: a chat completion runs a whole turn of the agent, with its own prompt, tools and memory.

OpenClaw stores the conversation of a session key, so only new messages are sent. Early builds leave out the finish
chunk and send their errors as text of the agent.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Final

import aiohttp

from gateway.errors import LlmError, LlmUnavailable
from gateway.llm import chat
from gateway.llm.accounts import DEFAULT_OPENCLAW_AGENT, ENABLE_OPENCLAW
from gateway.llm.chat import CONNECT_TIMEOUT, ChatEvent, ChatRequest, Finished, Message, TextDelta, whole_answer
from gateway.llm.openai import CompletionsClient, completion_body, with_memory
from gateway.settings import Secret

TOKEN_TIMEOUT: Final = 30.0
"""Between two pieces of text the agent may use tools of its own, which takes longer than a token."""

LONGEST_TASK: Final = 3600.0
"""For a delegated task: OpenClaw cancels it when the connection is closed."""


class OpenClawUpstream(CompletionsClient):
    """One agent of an OpenClaw gateway."""

    def __init__(
        self, base_url: str, agent: str, token: Secret | None, *, token_timeout: float = TOKEN_TIMEOUT
    ) -> None:
        # OpenClaw documents the address without /v1; people write both.
        url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1"
        super().__init__("openclaw", url, token, address_setting="OPENCLAW_GATEWAY_URL")
        self._agent = (agent or DEFAULT_OPENCLAW_AGENT).lower()
        self.model = f"openclaw/{self._agent}"
        self._token_timeout = token_timeout

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        return whole_answer(self.name, self._events(request, caller_key), self._token_timeout)

    async def delegate(self, text: str, caller_key: str) -> None:
        """
        Delegate a task to the agent, in the caller's session.

        Stays connected until it is done: closing would cancel it. Raises LlmError if it is not accepted; later failures
        are ignored.
        """
        request = ChatRequest(({"role": "user", "content": text},))
        body = {**completion_body(request, list(request.messages)), "model": self.model}
        timeout = aiohttp.ClientTimeout(total=LONGEST_TASK, connect=CONNECT_TIMEOUT)
        with self._foreign_errors():
            async with self._post(body, self._session_headers(caller_key), timeout=timeout) as response:
                with suppress(LlmError), self._foreign_errors():
                    async for _ in response.content.iter_any():
                        pass

    async def _events(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        messages = _unknown_to_session(request.messages) if caller_key else request.messages
        body = {**completion_body(request, with_memory(messages, request.memory)), "model": self.model}
        event = None
        async with aclosing(self.stream(body, self._session_headers(caller_key))) as events:
            async for event in events:
                # Errors arrive as one piece, answers as several.
                if isinstance(event, TextDelta) and event.text.startswith(("Error: ", "No response from OpenClaw.")):
                    raise LlmUnavailable(f"{self.name} sent an error as text")
                yield event
        if event is not None:
            yield Finished("stop")  # early builds mark the end of the answer only by the end of the response

    def _error(self, status: int, retry_after: str | None) -> LlmError:
        to_do = {
            400: f"openclaw agents list shows whether it has the agent {self._agent}",
            401: "correct OPENCLAW_GATEWAY_TOKEN",
            404: f"run there: {ENABLE_OPENCLAW}",
            405: f"run there: {ENABLE_OPENCLAW}",
        }
        otherwise = "correct OPENCLAW_GATEWAY_URL" if status < 400 else "openclaw logs shows why"
        return chat.error_for_status(self._shown_name, status, retry_after, to_do.get(status, otherwise))

    def _session_headers(self, caller_key: str) -> dict[str, str]:
        headers = {"x-openclaw-agent-id": self._agent, "x-openclaw-message-channel": "phone"}
        if caller_key:
            headers["x-openclaw-session-key"] = f"agent:{self._agent}:voice:{caller_key}"
        return headers


def _unknown_to_session(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The prompt, which a session does not store, and the messages after the agent's last answer."""
    answers = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    last = answers[-1] if answers else -1
    return tuple(message for at, message in enumerate(messages) if message["role"] == "system" or at > last)
