"""The gateway's own tools: their definitions, and the handlers of those that look up or delegate."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol

import httpx

from gateway.agents import Agent
from gateway.engines.interface import FunctionCall
from gateway.errors import LlmError
from gateway.memory.access import MemoryAccess
from gateway.memory.knowledge import Knowledge, rendered
from gateway.session import TrustLevel
from gateway.tools.schema import DEFAULT_TIMEOUT, FunctionSchema, GivenSchema

if TYPE_CHECKING:  # it imports aiohttp, which takes a tenth of a second at the start
    from gateway.llm.openclaw import OpenClawUpstream

DELIVERY_PAUSES: Final = (1.0, 5.0, 25.0)
WEBHOOK_SECONDS: Final = 15.0

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
    {"task": Annotated[str, "what to do, with all the details needed to do it"]},
)
MESSAGE_AGENT: Final = FunctionSchema.of(
    "message_agent",
    "Leave a message for the people or the agent behind you, without waiting for an answer.",
    {"message": Annotated[str, "the message"]},
)
TRANSFER_CALL: Final = "transfer_call"

_BUILTINS: Final = (END_CALL, SEARCH_MEMORY, SEARCH_KNOWLEDGE, SPAWN_TASK, MESSAGE_AGENT)
NAMES: Final = frozenset({TRANSFER_CALL, *(schema.definition.name for schema in _BUILTINS)})
"""Reserved: a function of the user's file must not have one of these names."""

NOTHING_FOUND: Final = "Nothing was found."
NOT_ALLOWED: Final = "It is not certain who is calling. Do not mention earlier calls."
HANDED_OVER: Final = "It was handed over. Tell the caller that it is being seen to."

_log = logging.getLogger(__name__)


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

    schema: FunctionSchema | GivenSchema
    handler: Callable[[FunctionCall, dict[str, Any]], Awaitable[object]]
    timeout: float = DEFAULT_TIMEOUT


BuiltinSource = Callable[[Agent, MemoryAccess], Iterable[Builtin]]
"""Provides builtins for the calls of an agent that is configured to have them."""


class SearchMemory(Protocol):
    """Searches a caller's memory; returns text for the agent. `person` is one of several people on one number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[str]: ...


def memory_search(search: SearchMemory) -> BuiltinSource:
    """`search_memory`, for callers who have a memory."""

    def builtins(agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
            if not access.allows(TrustLevel.EVERYTHING):
                return NOT_ALLOWED
            return await search(agent.name, access.caller, arguments["query"], person=access.person) or NOTHING_FOUND

        if access.caller or agent.repeat_caller.may_be_known_later:
            yield Builtin(SEARCH_MEMORY, handler)

    return builtins


def knowledge_search(knowledge: Knowledge) -> BuiltinSource:
    """`search_knowledge`, for agents with a folder of documents."""

    def builtins(agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        async def handler(call: FunctionCall, arguments: dict[str, Any]) -> str:
            return rendered(await knowledge.search(agent.name, arguments["query"])) or NOTHING_FOUND

        if agent.knowledge is not None:
            yield Builtin(SEARCH_KNOWLEDGE, handler)

    return builtins


# Delegation of work to a text agent or a webhook


@dataclass(frozen=True)
class DelegatedTask:
    """A task or message from the agent of a call."""

    kind: Literal["task", "message"]
    agent: str
    caller: str
    text: str = field(repr=False)
    trust: str = str(TrustLevel.EVERYTHING)
    """How certain it is who the caller is."""


class DelegationFailed(Exception):
    """Delivery failed; it will be retried."""


Delegate = Callable[[DelegatedTask], Awaitable[None]]
"""Delivers one task. Raises DelegationFailed."""


def delegation(delegator: "Delegator", delegate_for: Callable[[Agent, str], Delegate]) -> BuiltinSource:
    """`spawn_task` and `message_agent`, for agents with a text agent. `delegate_for` finds it for a caller."""

    def builtins(agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        def hand_over(kind: Literal["task", "message"], text: str) -> str:
            # Only a trusted call continues the caller's own conversation with the text agent.
            to = delegate_for(agent, access.caller if access.allows(TrustLevel.EVERYTHING) else "")
            delegator.hand_over(to, DelegatedTask(kind, agent.name, access.caller, text, str(access.level)))
            return HANDED_OVER

        async def spawn_task(call: FunctionCall, arguments: dict[str, Any]) -> str:
            return hand_over("task", arguments["task"])

        async def message_agent(call: FunctionCall, arguments: dict[str, Any]) -> str:
            return hand_over("message", arguments["message"])

        if agent.text_agent:
            yield Builtin(SPAWN_TASK, spawn_task)
            yield Builtin(MESSAGE_AGENT, message_agent)

    return builtins


class Delegator:
    """
    Delivers the tasks of all calls in the background, with retries; deliveries continue after the call.

    `close` waits briefly for those in progress. The log reports a task that could not be delivered.
    """

    def __init__(self, pauses: Sequence[float] = DELIVERY_PAUSES) -> None:
        self._pauses = pauses
        self._deliveries: set[asyncio.Task[None]] = set()

    def hand_over(self, to: Delegate, task: DelegatedTask) -> None:
        delivery = asyncio.get_running_loop().create_task(self._deliver(to, task), name="delegation")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)

    async def close(self) -> None:
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=5)
        for delivery in self._deliveries:
            delivery.cancel()

    async def _deliver(self, to: Delegate, task: DelegatedTask) -> None:
        fields = {"agent": task.agent, "kind": task.kind}
        for pause in (*self._pauses, None):
            try:
                await to(task)
                _log.info("task delegated", extra=fields)
                return
            except DelegationFailed as error:
                if pause is None:
                    _log.error("task could not be delegated", extra=fields | {"reason": str(error)})
                else:
                    await asyncio.sleep(pause)


def webhook(http: httpx.AsyncClient, url: str) -> Delegate:
    """Posts tasks to the configured URL."""

    async def deliver(task: DelegatedTask) -> None:
        try:
            answer = await http.post(url, json=asdict(task), timeout=WEBHOOK_SECONDS)
        except httpx.HTTPError as error:
            raise DelegationFailed(type(error).__name__) from None
        if answer.status_code >= 300:
            raise DelegationFailed(f"status {answer.status_code}")

    return deliver


def openclaw_agent(upstream: "OpenClawUpstream", caller_key: str) -> Delegate:
    """Sends tasks to an OpenClaw agent, in the caller's session there. Its answer is ignored."""

    async def deliver(task: DelegatedTask) -> None:
        try:
            verified = task.trust == str(TrustLevel.EVERYTHING)
            origin = "a phone call" if verified else "a phone call in which it is not certain who called"
            await upstream.delegate(f"A {task.kind} from {origin}: {task.text}", caller_key)
        except LlmError as error:
            raise DelegationFailed(str(error)) from None

    return deliver
