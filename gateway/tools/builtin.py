"""The functions that come with the gateway, as the agent is told of them. What they do stands where it is done."""

from typing import Annotated, Final, Literal

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
    {"task": Annotated[str, "what is to be done, with everything one has to know to do it"]},
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
"""No function of a user's file may have one of these."""


def transfer_schema(targets: tuple[str, ...]) -> FunctionSchema:
    """The agent picks one of the places that were written down for it; it can't dial a number of its own."""
    names = Literal[targets]  # type: ignore[valid-type]
    return FunctionSchema.of(
        TRANSFER_CALL,
        "Put the caller through to somebody else. Say that you will, first; the call with you ends.",
        {"to": Annotated[names, "whom to"]},
    )
