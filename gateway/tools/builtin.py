"""The gateway's own tools: their definitions, and the handlers of those that only look up or hand over."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Protocol

from gateway.agents import Agent
from gateway.engines.interface import FunctionCall
from gateway.memory.access import MemoryAccess
from gateway.memory.knowledge import Knowledge, rendered
from gateway.memory.trust import TrustLevel
from gateway.tools.delegation import Delegate, DelegatedTask, Delegator
from gateway.tools.module import DEFAULT_TIMEOUT
from gateway.tools.schema import FunctionSchema

END_CALL: Final = FunctionSchema.of(
    "end_call", "Hang up. Use it when the caller says goodbye or wants to end the call; then say a short goodbye."
)
SEARCH_MEMORY: Final = FunctionSchema.of(
    "search_memory",
    "Look up what earlier calls with this caller were about.",
    {"query": Annotated[str, "what to look for, in a few words"]},
    speculative=True,
)
SEARCH_KNOWLEDGE: Final = FunctionSchema.of(
    "search_knowledge",
    "Look something up in the documents you were given. Use it before you say that you do not know.",
    {"query": Annotated[str, "what to look for, in a few words"]},
    speculative=True,
)
SPAWN_TASK: Final = FunctionSchema.of(
    "spawn_task",
    "Have a longer task done in the background. It goes on after the call; its result does not come back here.",
    {"task": Annotated[str, "what to do, with everything one needs to know to do it"]},
)
MESSAGE_AGENT: Final = FunctionSchema.of(
    "message_agent",
    "Leave a message for the people or the agent behind you, without waiting for an answer.",
    {"message": Annotated[str, "the message"]},
)
TRANSFER_CALL: Final = "transfer_call"

NAMES: Final = frozenset(
    {
        TRANSFER_CALL,
        *(schema.definition.name for schema in (END_CALL, SEARCH_MEMORY, SEARCH_KNOWLEDGE, SPAWN_TASK, MESSAGE_AGENT)),
    }
)
"""Reserved: a function of the user's file must not have one of these names."""

NOTHING_FOUND: Final = "Nothing was found."
NOT_ALLOWED: Final = "It is not certain that this is the caller whose memory this is. Say nothing of earlier calls."
HANDED_OVER: Final = "It was handed over. Tell the caller that it is being seen to."


def transfer_schema(targets: tuple[str, ...]) -> FunctionSchema:
    """The definition of `transfer_call`: the agent picks a configured target and can't dial a number of its own."""
    names = Literal[targets]  # type: ignore[valid-type]
    return FunctionSchema.of(
        TRANSFER_CALL,
        "Put the caller through to another person. Say that you will, first; the call with you ends.",
        {"to": Annotated[names, "where to transfer the caller"]},
    )


@dataclass(frozen=True)
class Builtin:
    """A tool of the gateway. Its handler runs on the event loop and must not block it."""

    schema: FunctionSchema
    handler: Callable[[FunctionCall, dict[str, Any]], Awaitable[object]]
    timeout: float = DEFAULT_TIMEOUT


class BuiltinSource(Protocol):
    """Provides builtins for the calls of an agent that is configured to have them."""

    def builtins(self, agent: Agent, access: MemoryAccess) -> Iterable[Builtin]: ...


class SearchMemory(Protocol):
    """Searches a caller's memory; returns text for the agent. `person` is one of several people on one number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[str]: ...


class MemorySearch:
    """`search_memory`, for callers who have a memory."""

    def __init__(self, search: SearchMemory) -> None:
        self._search = search

    def builtins(self, agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
            if not access.allows(TrustLevel.EVERYTHING):
                return NOT_ALLOWED
            found = self._search(agent.name, access.caller, arguments["query"], person=access.person)
            return await found or NOTHING_FOUND

        if access.caller or agent.repeat_caller.may_be_known_later:
            yield Builtin(SEARCH_MEMORY, handler)


class KnowledgeSearch:
    """`search_knowledge`, for agents with a folder of documents."""

    def __init__(self, knowledge: Knowledge) -> None:
        self._knowledge = knowledge

    def builtins(self, agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
            return rendered(await self._knowledge.search(agent.name, arguments["query"])) or NOTHING_FOUND

        if agent.knowledge is not None:
            yield Builtin(SEARCH_KNOWLEDGE, handler)


class Delegation:
    """`spawn_task` and `message_agent`, for agents with a text agent. `delegate_for` finds it for a caller."""

    def __init__(self, delegator: Delegator, delegate_for: Callable[[Agent, str], Delegate]) -> None:
        self._delegator = delegator
        self._delegate_for = delegate_for

    def builtins(self, agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        if agent.text_agent:
            to = self._delegate_for(agent, access.caller)
            yield self._builtin(SPAWN_TASK, to, DelegatedTask("task", agent.name, access.caller))
            yield self._builtin(MESSAGE_AGENT, to, DelegatedTask("message", agent.name, access.caller))

    def _builtin(self, schema: FunctionSchema, to: Delegate, task: DelegatedTask) -> Builtin:
        async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
            [text] = arguments.values()
            self._delegator.hand_over(to, replace(task, text=text))
            return HANDED_OVER

        return Builtin(schema, handler)
