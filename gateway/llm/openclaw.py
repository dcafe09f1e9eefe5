"""
Answers by an OpenClaw agent: a chat completion runs a whole turn of the agent, with its own prompt, tools and memory.

OpenClaw stores the conversation of a session key, so only new messages are sent. Early builds leave out the finish
chunk and send their errors as text of the agent.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from gateway.errors import LlmUnavailable
from gateway.llm.chat import ChatEvent, ChatRequest, Finished, Message, TextDelta, whole_answer
from gateway.llm.openai import CompletionsServer, completion_body, with_memory
from gateway.settings import Secret

DEFAULT_AGENT: Final = "main"
TOKEN_TIMEOUT: Final = 30.0
"""Between two pieces of text the agent may use tools of its own, which takes longer than a token."""

LONGEST_TASK: Final = 3600.0
"""For a delegated task: OpenClaw cancels it when the connection is closed."""


class OpenClawUpstream:
    """One agent of an OpenClaw gateway. `llm_model` ("provider/model") replaces the agent's own model."""

    name = "openclaw"

    def __init__(
        self,
        base_url: str,
        agent: str,
        token: Secret | None,
        *,
        llm_model: str = "",
        token_timeout: float = TOKEN_TIMEOUT,
    ) -> None:
        self._agent = (agent or DEFAULT_AGENT).lower()
        self.model = f"openclaw/{self._agent}"
        self._llm_model = llm_model
        self._token_timeout = token_timeout
        # OpenClaw documents the address without /v1; people write both.
        self._server = CompletionsServer(self.name, f"{base_url.rstrip('/').removesuffix('/v1')}/v1", token)

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        return whole_answer(self.name, self._events(request, caller_key), self._token_timeout)

    async def hand_over(self, text: str, caller_key: str) -> None:
        """Delegate a task to the agent, in the caller's session. Raises LlmError if it is not accepted."""
        request = ChatRequest(({"role": "user", "content": text},))
        body = {**completion_body(request, list(request.messages)), "model": self.model}
        await self._server.hand_over(body, self._headers(caller_key), seconds=LONGEST_TASK)

    async def warm(self) -> None:
        await self._server.warm()

    async def close(self) -> None:
        await self._server.close()

    async def _events(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        messages = _unknown_to_session(request.messages) if caller_key else request.messages
        body = {**completion_body(request, with_memory(messages, request.memory)), "model": self.model}
        event = None
        async with aclosing(self._server.stream(body, self._headers(caller_key))) as events:
            async for event in events:
                if isinstance(event, TextDelta) and _is_failure(event.text):
                    raise LlmUnavailable(f"{self.name} sent an error as text")
                yield event
        if event is not None:
            yield Finished("stop")  # early builds mark the end of the answer only by the end of the response

    def _headers(self, caller_key: str) -> dict[str, str]:
        headers = {"x-openclaw-agent-id": self._agent, "x-openclaw-message-channel": "phone"}
        if caller_key:
            headers["x-openclaw-session-key"] = f"agent:{self._agent}:voice:{caller_key}"
        if self._llm_model:
            headers["x-openclaw-model"] = self._llm_model
        return headers


def _unknown_to_session(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The prompt, which a session does not store, and the messages after the agent's last answer."""
    last_answer = max((number for number, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return tuple(
        message for number, message in enumerate(messages) if message["role"] == "system" or number > last_answer
    )


def _is_failure(text: str) -> bool:
    """Errors arrive as one piece, answers as several."""
    return text == "No response from OpenClaw." or text.startswith("Error: ")
