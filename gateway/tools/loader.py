"""Loads what an agent's tools need for one call, while the phone rings."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from gateway.agents import Agent, wanted_personas
from gateway.errors import StoreError
from gateway.memory.access import MemoryAccess
from gateway.memory.state import Value
from gateway.memory.trust import TrustLevel
from gateway.tools.builtin import NAMES, Builtin, BuiltinSource
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
    timeouts: ToolTimeouts = ToolTimeouts()

    @property
    def function_names(self) -> list[str]:
        """All tools beyond those that every agent has."""
        return sorted([*self.tool_module.tools, *(tool.schema.definition.name for tool in self.builtins)])


def load_modules(agents: Iterable[Agent]) -> dict[str, ReloadingToolModule]:
    """The tool module of each agent that has one. Raises SettingsError for a mistake in a file."""
    return {
        agent.name: ReloadingToolModule(agent.functions, reserved=NAMES)
        for agent in agents
        if agent.functions is not None
    }


class Personas(Protocol):
    async def render(self, names: Collection[str]) -> dict[str, str]:
        """The text of each persona. Raises StoreError."""


class StateStore(Protocol):
    async def load(self, agent: str, caller: str) -> dict[str, Value]:
        """What an agent's tools have kept about a caller. Raises StoreError."""


class NoState:
    """The StateStore of a gateway without memory."""

    async def load(self, agent: str, caller: str) -> dict[str, Value]:
        return {}


class ToolLoader:
    """Prepares the tools of all calls."""

    def __init__(
        self,
        modules: Mapping[str, ReloadingToolModule],
        personas: Personas,
        state: StateStore,
        builtins: Sequence[BuiltinSource],
        timeouts: ToolTimeouts,
    ) -> None:
        self._modules = modules
        self._personas = personas
        self._state = state
        self._builtins = builtins
        self._timeouts = timeouts
        self._threads = ToolThreads()

    def load(self, agent: Agent, access: MemoryAccess) -> "asyncio.Task[CallTools]":
        """Start loading; the call needs the result when its media arrives."""
        return asyncio.get_running_loop().create_task(self._load(agent, access), name="tools")

    async def _load(self, agent: Agent, access: MemoryAccess) -> CallTools:
        module = self._modules.get(agent.name)
        tool_module = await module.current() if module is not None else ToolModule()
        personas = await self._load_personas(agent)
        load_memory = None
        if agent.repeat_caller.state_keys:
            load_memory = partial(self._load_state, agent.name, access)
        return CallTools(
            tool_module,
            self._threads,
            (await load_memory() or {}) if load_memory is not None else {},
            tuple(tool for source in self._builtins for tool in source.builtins(agent, access)),
            personas,
            load_memory,
            self._timeouts,
        )

    async def _load_personas(self, agent: Agent) -> dict[str, str]:
        names = wanted_personas(agent.prompt)
        if not names:
            return {}
        try:
            async with asyncio.timeout(self._timeouts.load):
                return await self._personas.render(names)
        except (StoreError, TimeoutError) as error:
            _log.warning("personas could not be loaded", extra={"error": type(error).__name__})
            return {}

    async def _load_state(self, agent: str, access: MemoryAccess) -> dict[str, Value] | None:
        if not access.caller or not access.allows(TrustLevel.EVERYTHING):
            return {}
        try:
            async with asyncio.timeout(self._timeouts.load):
                return await self._state.load(agent, access.caller)
        except (StoreError, TimeoutError) as error:
            _log.warning("caller's state could not be loaded", extra={"error": type(error).__name__})
            return None
