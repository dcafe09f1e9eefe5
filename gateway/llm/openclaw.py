"""
Answers by an OpenClaw agent: its chat completions run a whole turn of the agent, with its own prompt, tools and memory.

It keeps the conversation of a session key, so only what is new is sent. Early builds leave out the finish chunk and
speak their failures as if the agent had said them.
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
"""Between two pieces of text the agent may use tools of its own, which takes longer than a model needs for a word."""

LONGEST_ERRAND: Final = 3600.0
"""What the agent is asked to do in the background takes its time, and is called off when nobody waits for it."""


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
        # OpenClaw's own address is the one without /v1; both are in use.
        self._server = CompletionsServer(self.name, f"{base_url.rstrip('/').removesuffix('/v1')}/v1", token)

    def answer(self, request: ChatRequest, caller_key: str) -> AsyncGenerator[ChatEvent, None]:
        return whole_answer(self.name, self._events(request, caller_key), self._token_timeout)

    async def hand_over(self, text: str, caller_key: str) -> None:
        """Have the agent see to this in the caller's session. Raises LlmError if it does not take it on."""
        request = ChatRequest(({"role": "user", "content": text},))
        body = {**completion_body(request, list(request.messages)), "model": self.model}
        await self._server.hand_over(body, self._headers(caller_key), seconds=LONGEST_ERRAND)

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
                    raise LlmUnavailable(f"{self.name} spoke of a failure")
                yield event
        if event is not None:
            yield Finished("stop")  # unless it was marked as such, the end of the response is the end of the answer

    def _headers(self, caller_key: str) -> dict[str, str]:
        headers = {"x-openclaw-agent-id": self._agent, "x-openclaw-message-channel": "phone"}
        if caller_key:
            headers["x-openclaw-session-key"] = f"agent:{self._agent}:voice:{caller_key}"
        if self._llm_model:
            headers["x-openclaw-model"] = self._llm_model
        return headers


def _unknown_to_session(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """The prompt, which is not kept, and what came after the agent's last words."""
    last_answer = max((number for number, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return tuple(
        message for number, message in enumerate(messages) if message["role"] == "system" or number > last_answer
    )


def _is_failure(text: str) -> bool:
    """Each of these comes as one piece, where words come as several."""
    return text == "No response from OpenClaw." or text.startswith("Error: ")
