"""Prepares calls for an agent that was changed at run time: its engines, language model and dialling rules."""

from collections.abc import Callable, Mapping

from gateway.agents import Agent, AgentDirectory
from gateway.engines.failover import GuardedEngine
from gateway.engines.registry import EngineDirectory
from gateway.llm.agent_llm import AgentLlm
from gateway.telephony.phone_numbers import DialingRules

MakeLlm = Callable[[Agent], Mapping[str, AgentLlm]]
"""By the agent's name; empty for an agent that uses its engine's model."""
WatchEngines = Callable[[Mapping[str, GuardedEngine]], None]


class AgentPreparation:
    """The `AgentUser` of a running gateway."""

    def __init__(
        self,
        agents: AgentDirectory,
        engines: EngineDirectory,
        agent_llms: dict[str, AgentLlm],
        make_llm: MakeLlm,
        rules: DialingRules,
        watch: WatchEngines,
    ) -> None:
        """`watch` is called with new engines."""
        self._agents = agents
        self._engines = engines
        self._agent_llms = agent_llms
        self._make_llm = make_llm
        self._rules = rules
        self._watch = watch

    def check(self, agent: Agent) -> None:
        self._engines.check(agent)
        self._rules.check_known(agent.transfer_to.values())

    def prepare(self, agent: Agent) -> None:
        before = set(self._engines.engines)
        self._engines.prepare(agent)
        self._watch({name: one for name, one in self._engines.engines.items() if name not in before})
        if agent.name not in self._agent_llms:
            self._agent_llms.update(self._make_llm(agent))
        others = [target for one in self._agents if one.name != agent.name for target in one.transfer_to.values()]
        self._rules.set_known([*others, *agent.transfer_to.values()])
