"""
Requests for outbound calls: the number, the agent, and the reason for the call.

Until the call is answered, its webhooks may reach any node, so requests are kept where all nodes see them. They are
sealed with a key derived from the admin token, because they name who is called and why.
"""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from gateway.agents import Agent, AgentDirectory, with_context
from gateway.cluster.store import ExpiringStore
from gateway.sealing import Sealer
from gateway.session import new_session_id
from gateway.settings import Secret

HOUR: Final = 3600.0
ORDER_SECONDS: Final = 15 * 60.0
"""Carriers queue a call, and let it ring, for less than this."""


@dataclass(frozen=True)
class OutboundCall:
    """A call to place. The called person counts as the caller: their memory is read and written."""

    to: str
    """The number to dial, in E.164."""
    called: str
    """The number to call from, or the name of an agent; selects the agent."""
    context: str = ""
    """Given to the agent."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """The context by name, if it was given so. It may contain the identity of the caller."""
    greeting: str = ""
    """Replaces the agent's greeting, unless empty."""
    voicemail: str | None = None
    """What to say to a mailbox, word for word; empty: hang up. None: mailboxes are not detected."""
    session_id: str = field(default_factory=new_session_id)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any] | None) -> "OutboundCall | None":
        return cls(**stored) if stored else None


def speaker(agents: AgentDirectory, called: str, order: OutboundCall | None, user_name: str = "") -> Agent:
    """The agent of a call. Its prompt contains the reason for an outbound one, and the name of a website's user."""
    agent = agents.answering(called)
    if user_name:
        about = f"The caller is logged in to the website as {user_name}."
        return replace(agent, prompt=f"{agent.prompt.rstrip()}\n\n{about}")
    if order is None:
        return agent
    return replace(agent, prompt=with_context(agent.prompt, order.context), greeting=order.greeting or agent.greeting)


class OutboundCallStore:
    """
    Requests whose calls were not answered yet. Every method raises SharedStoreUnavailable.

    `per_hour`: as many calls may be placed within any hour, on all nodes; 0: any number.
    """

    def __init__(self, store: ExpiringStore, token: Secret, *, per_hour: int = 0) -> None:
        self._store = store
        self._sealer = Sealer(token, "orders")
        self._per_hour = per_hour

    async def count_one_more(self) -> float:
        """Count this call, unless it is one too many. Returns how many seconds to wait then, else 0."""
        return await self._store.admit("outbound-calls", self._per_hour, HOUR) if self._per_hour else 0.0

    async def keep(self, order: OutboundCall) -> None:
        sealed = self._sealer.seal_json(order.as_json(), order.id)
        await self._store.put(_name(order.id), sealed, ORDER_SECONDS)

    async def find(self, order_id: str) -> OutboundCall | None:
        sealed = await self._store.get(_name(order_id))
        return OutboundCall.from_json(self._sealer.open_json(sealed, order_id)) if sealed is not None else None

    async def drop(self, order_id: str) -> None:
        await self._store.delete(_name(order_id))


def _name(order_id: str) -> str:
    return f"order:{order_id}"
