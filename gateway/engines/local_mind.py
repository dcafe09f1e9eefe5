"""An agent's own language model as the mind of the local engine: the same answers that another engine would ask for."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from gateway.engines.agent_settings import AgentFunction
from gateway.engines.events import FunctionCall
from gateway.engines.mind import Message
from gateway.llm.chat import ChatRequest, TextDelta, ToolCallDelta
from gateway.llm.endpoint_tokens import EndpointTokens
from gateway.llm.responder import Responder


class ResponderMind:
    """One call's."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    @property
    def opens(self) -> bool:
        return self._responder.opens

    async def answer(
        self, messages: Sequence[Message], functions: Sequence[AgentFunction]
    ) -> AsyncGenerator[str | FunctionCall, None]:
        request = ChatRequest(tuple(messages), tools=tuple(map(_tool, functions)))
        calls: dict[int, FunctionCall] = {}
        async with aclosing(self._responder.answer(request)) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    yield event.text
                elif isinstance(event, ToolCallDelta):
                    calls[event.index] = _more(calls.get(event.index), event)
        for call in calls.values():
            yield call


class LocalMinds:
    """Finds the mind that a bearer belongs to. The bearer would open the proxy; here nobody need go through it."""

    def __init__(self, endpoint_tokens: EndpointTokens) -> None:
        self._endpoint_tokens = endpoint_tokens

    async def find(self, bearer: str) -> ResponderMind | None:
        responder = await self._endpoint_tokens.find(bearer)
        return ResponderMind(responder) if responder is not None else None


def _tool(function: AgentFunction) -> dict[str, object]:
    description = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": description}


def _more(call: FunctionCall | None, delta: ToolCallDelta) -> FunctionCall:
    if call is None:
        return FunctionCall(delta.id, delta.name, delta.arguments)
    return FunctionCall(call.id, call.name, call.arguments + delta.arguments)
