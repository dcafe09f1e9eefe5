"""Gives each call of an agent with its own language model somebody to think for it, and the engine a key to ask."""

import ipaddress
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import urlsplit

from gateway import prompts
from gateway.agents import Agent
from gateway.cluster.directory import CallDirectory
from gateway.engines.agent_settings import ThinkEndpoint
from gateway.errors import SharedStoreUnavailable
from gateway.llm.agent_llm import AgentLlm
from gateway.llm.endpoint_tokens import EndpointTokens, digest_of
from gateway.llm.responder import Responder, hashed_caller
from gateway.llm.turn_recall import Search, TurnRecall
from gateway.memory.trust import MemoryAccess, TrustLevel
from gateway.settings import Secret

PATH: Final = "/v1/chat/completions"


class RankedSearch(Protocol):
    """What is remembered for agent, caller and words, the best first. `person`: who of those on the number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[list[str]]: ...


@dataclass(frozen=True)
class CallLlm:
    """What one call thinks with."""

    endpoint: ThinkEndpoint
    thinker: Responder


class ResponderFactory:
    """
    Brains of all agents, and the calls that use them.

    Where there are several nodes the engine's question may come to any of them: each can answer it, since what is asked
    holds the whole conversation.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        brains: Mapping[str, AgentLlm],
        secret: Secret,
        *,
        public_url: str = "",
        search: RankedSearch | None = None,
        commons: CallDirectory | None = None,
    ) -> None:
        self._public_url = public_url
        self._agents = agents
        self._brains = brains
        self._secret = secret
        self._search = search
        self._commons = commons
        self.bearers = EndpointTokens(elsewhere=self._of_another_node if commons is not None else None)

    def open(self, agent: Agent, caller: str, media_url: str, clearance: MemoryAccess) -> CallLlm | None:
        """None for an agent that leaves thinking to the engine. The engine reaches us where the carrier does."""
        thinker = self._thinker(agent, caller, clearance)
        if thinker is None:
            return None
        bearer = self.bearers.open(thinker)
        if self._commons is not None:
            self._commons.bearer_opened(digest_of(bearer), agent.name, caller, clearance.tier)
        return CallLlm(ThinkEndpoint(self._origin(media_url) + PATH, bearer), thinker)

    def _origin(self, media_url: str) -> str:
        """By https, unless PUBLIC_URL says otherwise; without one, on this machine there is nobody to speak it."""
        parts = urlsplit(media_url)
        without_tls = self._public_url.startswith("http://") if self._public_url else _is_loopback(parts.hostname or "")
        prefix = parts.path.rpartition("/")[0].rpartition("/")[0]
        return f"{'http' if without_tls else 'https'}://{parts.netloc}{prefix}"

    def keep_to_itself(self, thought: CallLlm, agent: Agent) -> None:
        """It is not the same person's memory any more: only this node knows whose, so no other looks up any."""
        thought.thinker.forget()
        if self._commons is not None:
            self._commons.bearer_opened(digest_of(thought.endpoint.bearer), agent.name, "", TrustLevel.NONE)

    def close(self, thought: CallLlm) -> None:
        """The call is over, and with it the bearer."""
        self.bearers.close(thought.endpoint.bearer)
        if self._commons is not None:
            self._commons.bearer_closed(digest_of(thought.endpoint.bearer))

    def _thinker(self, agent: Agent, caller: str, clearance: MemoryAccess) -> Responder | None:
        brain = self._brains.get(agent.name)
        if brain is None:
            return None
        search, memory = self._search, None
        is_known = caller or agent.repeat_caller.may_be_known_later
        if search is not None and is_known and prompts.wants_memory(agent.prompt):
            memory = TurnRecall(_cleared(search, agent.name, caller, clearance), patience=brain.memory_seconds)
        return Responder(agent.name, hashed_caller(agent.name, caller, self._secret), brain, memory=memory)

    async def _of_another_node(self, digest: str) -> Responder | None:
        assert self._commons is not None
        try:
            found = await self._commons.bearer(digest)
        except SharedStoreUnavailable:
            return None
        if found is None or found[0] not in self._agents:
            return None
        name, caller, tier = found
        return self._thinker(self._agents[name], caller, MemoryAccess(TrustLevel(tier)))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _cleared(search: RankedSearch, agent: str, caller: str, clearance: MemoryAccess) -> Search:
    async def look(said: str) -> list[str]:
        whose = clearance.whose(caller)
        if not whose or not clearance.allows(TrustLevel.EVERYTHING):
            return []
        return await search(agent, whose, said, person=clearance.person)

    return look
