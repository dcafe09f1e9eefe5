"""What an agent has at hand in one call beside its voice: packed while the phone rings."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

from gateway import prompts
from gateway.agents import Agent
from gateway.engines.interface import FunctionCall
from gateway.errors import StoreError
from gateway.memory.knowledge import Knowledge, rendered
from gateway.memory.personas import PersonaStore
from gateway.memory.state import CallerState, Value
from gateway.memory.trust import MemoryAccess, TrustLevel
from gateway.tools import builtin
from gateway.tools.delegation import Delegate, DelegatedTask, Delegator
from gateway.tools.module import ReloadingToolModule, ToolModule
from gateway.tools.runner import Builtin
from gateway.tools.schema import FunctionSchema
from gateway.tools.threads import ToolThreads

PATIENCE: Final = 0.3
"""What is not there by then is done without: a store that does not answer."""
NOTHING_FOUND: Final = "Nothing was found."
NOT_CLEARED: Final = "It is not certain that this is the caller whose memory this is. Say nothing of earlier calls."
HANDED_OVER: Final = "It was handed over. Tell the caller that it is being seen to."

_log = logging.getLogger(__name__)


class SearchMemory(Protocol):
    """What is remembered for agent, caller and words; empty for nothing. `person`: who of those on the number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[str]: ...


@dataclass(frozen=True)
class CallTools:
    """An agent's functions for one call, and what earlier calls have kept for them."""

    tool_module: ToolModule = ToolModule()
    threads: ToolThreads = field(default_factory=ToolThreads)
    memory: Mapping[str, Value] = field(default_factory=dict)
    builtins: tuple[Builtin, ...] = ()
    personas: Mapping[str, str] = field(default_factory=dict)
    """Those that the agent's prompt names, as text for it."""
    recall: Callable[[], Awaitable[Mapping[str, Value] | None]] | None = None
    """`memory` as it is now, of whoever the caller has turned out to be; None when it can't be told."""

    @property
    def function_names(self) -> list[str]:
        """All that it adds to what every agent can do."""
        return sorted([*self.tool_module.tools, *(builtin.schema.definition.name for builtin in self.builtins)])


def shelves_of(agents: Iterable[Agent]) -> dict[str, ReloadingToolModule]:
    """Each agent's functions, loaded. SettingsError for a mistake in them."""
    return {
        agent.name: ReloadingToolModule(agent.functions, reserved=builtin.NAMES)
        for agent in agents
        if agent.functions is not None
    }


class ToolLoader:
    """Packs kits, for all agents and calls."""

    def __init__(
        self,
        shelves: Mapping[str, ReloadingToolModule] | None = None,
        *,
        personas: PersonaStore | None = None,
        state: CallerState | None = None,
        search_memory: SearchMemory | None = None,
        knowledge: Knowledge | None = None,
        recipient: Callable[[Agent, str], Delegate] | None = None,
    ) -> None:
        self._shelves = shelves or {}
        self._personas = personas
        self._state = state
        self._search_memory = search_memory
        self._knowledge = knowledge
        self._recipient = recipient
        self._text_side = Delegator()
        self._threads = ToolThreads()

    def pack(self, agent: Agent, caller: str, access: MemoryAccess) -> "asyncio.Task[CallTools]":
        """Begin at once: the call needs it when its media comes."""
        return asyncio.get_running_loop().create_task(self._pack(agent, caller, access), name="kit")

    async def close(self) -> None:
        await self._text_side.close()

    async def _pack(self, agent: Agent, caller: str, access: MemoryAccess) -> CallTools:
        shelf = self._shelves.get(agent.name)
        tool_module = await shelf.current() if shelf is not None else ToolModule()
        personas = await self._wanted_personas(agent)
        builtins = tuple(self._builtins(agent, caller, access))
        if self._state is None or not agent.repeat_caller.state_keys:
            return CallTools(tool_module, self._threads, {}, builtins, personas)
        recall = partial(self._remembered, self._state, agent.name, caller, access)
        return CallTools(tool_module, self._threads, await recall() or {}, builtins, personas, recall)

    async def _wanted_personas(self, agent: Agent) -> dict[str, str]:
        names = prompts.wanted_personas(agent.prompt)
        if self._personas is None or not names:
            return {}
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._personas.render(names)
        except (StoreError, TimeoutError) as error:
            _log.warning("personas could not be loaded", extra={"error": type(error).__name__})
            return {}

    @staticmethod
    async def _remembered(state: CallerState, agent: str, caller: str, access: MemoryAccess) -> dict[str, Value] | None:
        whose = access.whose(caller) if access.allows(TrustLevel.EVERYTHING) else ""
        if not whose:
            return {}
        try:
            async with asyncio.timeout(PATIENCE):
                return await state.load(agent, whose)
        except (StoreError, TimeoutError) as error:
            _log.warning("caller's state could not be loaded", extra={"error": type(error).__name__})
            return None

    def _builtins(self, agent: Agent, caller: str, access: MemoryAccess) -> Iterable[Builtin]:
        if self._search_memory is not None and (caller or agent.repeat_caller.may_be_known_later):
            yield Builtin(builtin.SEARCH_MEMORY, _memory_search(self._search_memory, agent.name, caller, access))
        if self._knowledge is not None and agent.knowledge is not None:
            yield Builtin(builtin.SEARCH_KNOWLEDGE, _knowledge_search(self._knowledge, agent.name))
        if self._recipient is not None and agent.text_agent:
            to = self._recipient(agent, caller)
            yield self._handing_over(builtin.SPAWN_TASK, to, DelegatedTask("task", agent.name, caller))
            yield self._handing_over(builtin.MESSAGE_AGENT, to, DelegatedTask("message", agent.name, caller))

    def _handing_over(self, schema: FunctionSchema, to: Delegate, errand: DelegatedTask) -> Builtin:
        async def hand_over(call: FunctionCall, arguments: dict[str, Any]) -> str:
            [text] = arguments.values()
            self._text_side.hand_over(to, replace(errand, text=text))
            return HANDED_OVER

        return Builtin(schema, hand_over)


def _memory_search(
    search: SearchMemory, agent: str, caller: str, access: MemoryAccess
) -> Callable[[FunctionCall, dict[str, Any]], Awaitable[str]]:
    async def look(call: FunctionCall, arguments: dict[str, Any]) -> str:
        if not access.allows(TrustLevel.EVERYTHING):
            return NOT_CLEARED
        found = search(agent, access.whose(caller), arguments["query"], person=access.person)
        return await found or NOTHING_FOUND

    return look


def _knowledge_search(knowledge: Knowledge, agent: str) -> Callable[[FunctionCall, dict[str, Any]], Awaitable[str]]:
    async def look(call: FunctionCall, arguments: dict[str, Any]) -> str:
        return rendered(await knowledge.search(agent, arguments["query"])) or NOTHING_FOUND

    return look
