"""Who thinks for an engine that runs here: a conversation in, words and function calls out."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from gateway.engines.agent_settings import AgentFunction
from gateway.engines.events import FunctionCall

Message = Mapping[str, Any]
"""One message in OpenAI's words: role, content as text or None, tool_calls, tool_call_id."""


class Mind(Protocol):
    """The agent of one call."""

    @property
    def opens(self) -> bool:
        """Whether it greets in its own words: asked with the greeting as the last message, it answers with its own."""

    def answer(
        self, messages: Sequence[Message], functions: Sequence[AgentFunction]
    ) -> AsyncGenerator[str | FunctionCall, None]:
        """Text as it comes, for a voice to say, then the functions that are to be called. Close it to drop it."""
        ...
