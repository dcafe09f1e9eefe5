"""The gateway's own tools: their definitions, and the handlers of those that only look up or hand over."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Protocol

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


class SearchMemory(Protocol):
    """Searches a caller's memory; returns text for the agent. `person` is one of several people on one number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[str]: ...


def search_memory(search: SearchMemory, agent: str, access: MemoryAccess) -> Builtin:
    async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
        if not access.allows(TrustLevel.EVERYTHING):
            return NOT_ALLOWED
        return await search(agent, access.caller, arguments["query"], person=access.person) or NOTHING_FOUND

    return Builtin(SEARCH_MEMORY, handler)


def search_knowledge(knowledge: Knowledge, agent: str) -> Builtin:
    async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
        return rendered(await knowledge.search(agent, arguments["query"])) or NOTHING_FOUND

    return Builtin(SEARCH_KNOWLEDGE, handler)


def delegate(delegator: Delegator, to: Delegate, schema: FunctionSchema, task: DelegatedTask) -> Builtin:
    """A tool whose only argument becomes the text of `task`."""

    async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
        [text] = arguments.values()
        delegator.hand_over(to, replace(task, text=text))
        return HANDED_OVER

    return Builtin(schema, handler)
