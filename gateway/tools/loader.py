"""Loads what an agent's tools need for one call, while the phone rings."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway import prompts
from gateway.agents import Agent
from gateway.errors import StoreError
from gateway.memory.access import MemoryAccess
from gateway.memory.knowledge import Knowledge
from gateway.memory.personas import PersonaStore
from gateway.memory.state import CallerState, Value
from gateway.memory.trust import TrustLevel
from gateway.tools import builtin
from gateway.tools.builtin import Builtin, SearchMemory
from gateway.tools.delegation import Delegate, DelegatedTask, Delegator
from gateway.tools.module import ReloadingToolModule, ToolModule
from gateway.tools.threads import ToolThreads

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolTimeouts:
    """Seconds."""

    load: float = 0.3
    """For personas and the caller's state; the call starts without those that take longer."""
    start_function: float = 2.0
    """The caller waits for the greeting."""
    end_function: float = 10.0


TIMEOUTS: Final = ToolTimeouts()


@dataclass(frozen=True)
class CallTools:
    """The tools of an agent in one call, and the state that earlier calls have kept for them."""

    tool_module: ToolModule = ToolModule()
    threads: ToolThreads = field(default_factory=ToolThreads)
    memory: Mapping[str, Value] = field(default_factory=dict)
    builtins: tuple[Builtin, ...] = ()
    personas: Mapping[str, str] = field(default_factory=dict)
    """Rendered personas that the agent's prompt refers to, by name."""
    load_memory: Callable[[], Awaitable[Mapping[str, Value] | None]] | None = None
    """Reads `memory` again, of the caller as known now. None as its result: the store does not answer."""
    timeouts: ToolTimeouts = TIMEOUTS

    @property
    def function_names(self) -> list[str]:
        """All tools beyond those that every agent has."""
        return sorted([*self.tool_module.tools, *(tool.schema.definition.name for tool in self.builtins)])


def load_modules(agents: Iterable[Agent]) -> dict[str, ReloadingToolModule]:
    """The tool module of each agent that has one. Raises SettingsError for a mistake in a file."""
    return {
        agent.name: ReloadingToolModule(agent.functions, reserved=builtin.NAMES)
        for agent in agents
        if agent.functions is not None
    }


class ToolLoader:
    """Prepares the tools of all calls."""

    def __init__(
        self,
        modules: Mapping[str, ReloadingToolModule] | None = None,
        *,
        personas: PersonaStore | None = None,
        state: CallerState | None = None,
        search_memory: SearchMemory | None = None,
        knowledge: Knowledge | None = None,
        delegate: Callable[[Agent, str], Delegate] | None = None,
        timeouts: ToolTimeouts = TIMEOUTS,
    ) -> None:
        self._modules = modules or {}
        self._personas = personas
        self._state = state
        self._search_memory = search_memory
        self._knowledge = knowledge
        self._delegate = delegate
        self._timeouts = timeouts
        self._delegator = Delegator()
        self._threads = ToolThreads()

    def load(self, agent: Agent, access: MemoryAccess) -> "asyncio.Task[CallTools]":
        """Start loading; the call needs the result when its media arrives."""
        return asyncio.get_running_loop().create_task(self._load(agent, access), name="tools")

    async def close(self) -> None:
        await self._delegator.close()

    async def _load(self, agent: Agent, access: MemoryAccess) -> CallTools:
        module = self._modules.get(agent.name)
        tool_module = await module.current() if module is not None else ToolModule()
        personas = await self._load_personas(agent)
        load_memory = None
        if self._state is not None and agent.repeat_caller.state_keys:
            load_memory = partial(self._load_state, self._state, agent.name, access)
        return CallTools(
            tool_module,
            self._threads,
            (await load_memory() or {}) if load_memory is not None else {},
            tuple(self._builtins(agent, access)),
            personas,
            load_memory,
            self._timeouts,
        )

    async def _load_personas(self, agent: Agent) -> dict[str, str]:
        names = prompts.wanted_personas(agent.prompt)
        if self._personas is None or not names:
            return {}
        try:
            async with asyncio.timeout(self._timeouts.load):
                return await self._personas.render(names)
        except (StoreError, TimeoutError) as error:
            _log.warning("personas could not be loaded", extra={"error": type(error).__name__})
            return {}

    async def _load_state(self, state: CallerState, agent: str, access: MemoryAccess) -> dict[str, Value] | None:
        if not access.caller or not access.allows(TrustLevel.EVERYTHING):
            return {}
        try:
            async with asyncio.timeout(self._timeouts.load):
                return await state.load(agent, access.caller)
        except (StoreError, TimeoutError) as error:
            _log.warning("caller's state could not be loaded", extra={"error": type(error).__name__})
            return None

    def _builtins(self, agent: Agent, access: MemoryAccess) -> Iterable[Builtin]:
        caller = access.caller
        if self._search_memory is not None and (caller or agent.repeat_caller.may_be_known_later):
            yield builtin.search_memory(self._search_memory, agent.name, access)
        if self._knowledge is not None and agent.knowledge is not None:
            yield builtin.search_knowledge(self._knowledge, agent.name)
        if self._delegate is not None and agent.text_agent:
            to = self._delegate(agent, caller)
            task = DelegatedTask("task", agent.name, caller)
            message = DelegatedTask("message", agent.name, caller)
            yield builtin.delegate(self._delegator, to, builtin.SPAWN_TASK, task)
            yield builtin.delegate(self._delegator, to, builtin.MESSAGE_AGENT, message)
