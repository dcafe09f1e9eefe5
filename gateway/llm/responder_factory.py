"""A responder for each call of an agent with its own language model, and the token by which the engine reaches it."""

import hashlib
import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import urlsplit

from gateway.agents import Agent, wants_memory
from gateway.llm.agent_llm import AgentLlm
from gateway.llm.chat import LlmEndpoint
from gateway.llm.responder import NO_RECALL, NoRecall, OwnTools, Responder, TurnRecall, hashed_caller
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.session import TrustLevel
from gateway.settings import Secret

PATH: Final = "/v1/chat/completions"
MOST_GUESTS: Final = 1000
"""Responders for calls of other nodes; the least recently used one is closed first."""


class RankedSearch(Protocol):
    """Returns memory of agent and caller that fits the text, the best first. `person`: one of those on the number."""

    def __call__(self, agent: str, caller: str, text: str, *, person: str = "") -> Awaitable[list[str]]: ...


class BearerDirectory(Protocol):
    """The bearer tokens of all nodes' calls: the engine may send a request to any node."""

    def share_bearer(self, digest: str, agent: str, caller: str, tier: int) -> None: ...
    def withdraw_bearer(self, digest: str) -> None: ...
    async def find_bearer(self, digest: str) -> tuple[str, str, int] | None: ...


Elsewhere = Callable[[str], Awaitable[Responder | None]]
"""Makes a responder for another node's call, by the digest of its bearer token; None if there is no such call."""


class EndpointTokens:
    """
    Bearer tokens for the chat completions endpoint: one per call, valid until the call ends.

    Stores, shares and looks up digests only, so that timing reveals nothing about a token.
    """

    def __init__(self, elsewhere: Elsewhere) -> None:
        self._elsewhere = elsewhere
        self._responders: dict[str, Responder] = {}
        self._guests: OrderedDict[str, Responder] = OrderedDict()

    def open(self, responder: Responder) -> str:
        """A bearer token for one call. It is a secret."""
        bearer = secrets.token_urlsafe(32)
        self._responders[digest_of(bearer)] = responder
        return bearer

    def close(self, bearer: str) -> None:
        """End the call's answers and invalidate its token. May be repeated."""
        if responder := self._responders.pop(digest_of(bearer), None):
            responder.close()

    async def find(self, bearer: str) -> Responder | None:
        digest = digest_of(bearer)
        if digest in self._responders or not bearer:
            return self._responders.get(digest)
        return self._guest(digest, await self._elsewhere(digest))

    def _guest(self, digest: str, found: Responder | None) -> Responder | None:
        """
        One responder for all requests of a call, since equal requests share their answer; None once the call has ended.

        Replaced when the call turns out to be another caller's.
        """
        known = self._guests.pop(digest, None)
        if known is not None and (found is None or found.caller_key != known.caller_key):
            known.close()
            known = None
        if found is not None:
            self._guests[digest] = known or found
        if len(self._guests) > MOST_GUESTS:
            self._guests.popitem(last=False)[1].close()
        return self._guests.get(digest)


def digest_of(bearer: str) -> str:
    """The form of a token that may be stored and shared."""
    return hashlib.sha256(bearer.encode()).hexdigest()


@dataclass(frozen=True)
class CallLlm:
    """The language model of one call, and the endpoint at which the engine reaches it."""

    endpoint: LlmEndpoint
    responder: Responder


class ResponderFactory:
    """
    Makes responders for the calls of all agents that have their own language model.

    The engine may send a request to any node. Each can answer it, since a request holds the whole conversation.
    """

    def __init__(
        self,
        find_agent: Callable[[str], Agent | None],
        agent_llms: Mapping[str, AgentLlm],
        secret: Secret,
        *,
        public_url: str = "",
        search: RankedSearch | None = None,
        bearers: BearerDirectory,
    ) -> None:
        self._public_url = public_url
        self._find_agent = find_agent
        self._agent_llms = agent_llms
        self._secret = secret
        self._search = search
        self._bearers = bearers
        self.endpoint_tokens = EndpointTokens(self._of_another_node)

    def open(self, agent: Agent, caller: str, media_url: str, access: MemoryAccess) -> CallLlm | None:
        """None for an agent that uses the engine's model. The engine reaches us at the host that the carrier uses."""
        responder = self._responder(agent, caller, access)
        if responder is None:
            return None
        bearer = self.endpoint_tokens.open(responder)
        responder.caller_key = self._caller_key(agent, access, digest_of(bearer))
        self._bearers.share_bearer(digest_of(bearer), agent.name, caller, access.level)
        return CallLlm(LlmEndpoint(self._origin(media_url) + PATH, bearer, responder), responder)

    def _origin(self, media_url: str) -> str:
        """https, unless PUBLIC_URL is http; without PUBLIC_URL, http on loopback, where no proxy adds TLS."""
        parts = urlsplit(media_url)
        without_tls = self._public_url.startswith("http://") if self._public_url else _is_loopback(parts.hostname or "")
        prefix = parts.path.rpartition("/")[0].rpartition("/")[0]
        return f"{'http' if without_tls else 'https'}://{parts.netloc}{prefix}"

    def memory_changed(self, call_llm: CallLlm, agent: Agent, access: MemoryAccess, change: AccessChange) -> None:
        """Another person's memory, or none: only this node knows which, so no other node may look up any."""
        digest = digest_of(call_llm.endpoint.bearer)
        call_llm.responder.caller_key = self._caller_key(agent, access, digest)
        if change is AccessChange.LEVEL_RAISED:
            self._bearers.share_bearer(digest, agent.name, access.caller, access.level)
        elif change is not AccessChange.SPEAKER_CHANGED:
            call_llm.responder.forget()
            self._bearers.share_bearer(digest, agent.name, "", TrustLevel.NONE)

    def _caller_key(self, agent: Agent, access: MemoryAccess, digest: str) -> str:
        """
        The key of the conversation that a provider stores. Only a trusted call continues the caller's own one.

        Another call has a conversation to itself, by the digest of its bearer token; an unknown caller has none.
        """
        caller = access.caller if access.allows(TrustLevel.EVERYTHING) else access.caller and digest
        return hashed_caller(agent.name, caller, self._secret)

    def close(self, call_llm: CallLlm) -> None:
        """The call has ended: invalidate its token."""
        self.endpoint_tokens.close(call_llm.endpoint.bearer)
        self._bearers.withdraw_bearer(digest_of(call_llm.endpoint.bearer))

    def hosted(self, agent: Agent, access: MemoryAccess, token: str, tools: OwnTools) -> Responder | None:
        """
        For a call that another platform carries, with its one-call `token`. None for an agent without its own model.

        The platform's voice reads tags in the text, and distorts buffer words that do not end in "... ".
        """
        llm = self._agent_llms.get(agent.name)
        if llm is None:
            return None
        one_moment = f"{llm.one_moment.rstrip(' .…!')}..." if llm.one_moment else ""
        llm = replace(llm, one_moment=one_moment, filters_text=False)
        memory = self._recall(agent, access, llm) if access.caller else NO_RECALL
        key = self._caller_key(agent, access, digest_of(token))
        return Responder(agent.name, key, llm, memory=memory, tools=tools)

    def _responder(self, agent: Agent, caller: str, access: MemoryAccess) -> Responder | None:
        llm = self._agent_llms.get(agent.name)
        if llm is None:
            return None
        is_known = (caller or agent.repeat_caller.may_be_known_later) and wants_memory(agent.prompt)
        memory = self._recall(agent, access, llm) if is_known else NO_RECALL
        return Responder(agent.name, hashed_caller(agent.name, caller, self._secret), llm, memory=memory)

    def _recall(self, agent: Agent, access: MemoryAccess, llm: AgentLlm) -> TurnRecall | NoRecall:
        search = self._search
        if search is None:
            return NO_RECALL

        async def look(said: str) -> list[str]:
            if not access.caller or not access.allows(TrustLevel.EVERYTHING):
                return []
            return await search(agent.name, access.caller, said, person=access.person)

        return TurnRecall(look, seconds=llm.recall_seconds)

    async def _of_another_node(self, digest: str) -> Responder | None:
        found = await self._bearers.find_bearer(digest)
        agent = self._find_agent(found[0]) if found is not None else None
        if found is None or agent is None:
            return None
        _, caller, tier = found
        access = MemoryAccess(TrustLevel(tier), caller=caller)
        if responder := self._responder(agent, caller, access):
            responder.caller_key = self._caller_key(agent, access, digest)
        return responder


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
