"""Calls this node knows: ringing, live, over; and which webhook events it has seen. In memory, no I/O."""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.calls.agents import Agent
from gateway.calls.pipeline import Call
from gateway.calls.remembering import Remembering

TOKEN_SECONDS: Final = 30.0
"""From the webhook to the media socket it takes a second or two; a token older than this is dead."""

MEMORY_OF_ENDED: Final = 3600.0
MOST_EVENTS: Final = 10_000

CallKey = tuple[str, str]
"""Carrier and its id of the call."""


@dataclass(eq=False)
class Ring:
    """A call that was let in and has no media yet. Its token opens one media socket, once."""

    key: CallKey
    account_id: str
    caller: str
    called: str
    agent: Agent
    expires: float
    memory: Remembering | None
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False

    def opens(self, token: str, account_id: str, now: float) -> bool:
        """Whether this token, from this account, opens the call's media now. Constant time for the token."""
        right = hmac.compare_digest(self.token.encode(), token.encode())
        return right and not self.used and now < self.expires and account_id in ("", self.account_id)


class Registry:
    """One node's calls. A call is ringing, then live, then over, and never goes back."""

    def __init__(self) -> None:
        self._rings: dict[CallKey, Ring] = {}
        self._live: dict[CallKey, Call] = {}
        self._over: OrderedDict[CallKey, float] = OrderedDict()
        self._events: OrderedDict[str, None] = OrderedDict()

    def is_new_event(self, event_id: str) -> bool:
        """Whether this event was not seen before. One without an id is always new."""
        if not event_id:
            return True
        if event_id in self._events:
            return False
        self._events[event_id] = None
        if len(self._events) > MOST_EVENTS:
            self._events.popitem(last=False)
        return True

    def add_ring(self, ring: Ring) -> None:
        self._rings[ring.key] = ring

    def ring(self, key: CallKey) -> Ring | None:
        return self._rings.get(key)

    def redeem(self, key: CallKey, token: str, account_id: str, now: float) -> Ring | None:
        """Spend a token. None for a wrong, used, expired or foreign one; the call keeps waiting for the right one."""
        ring = self._rings.get(key)
        if ring is None or not ring.opens(token, account_id, now):
            return None
        ring.used = True
        return ring

    def unclaimed(self, now: float) -> list[Ring]:
        """Rings whose media never came; with this they are over."""
        late = [ring for ring in self._rings.values() if not ring.used and now >= ring.expires]
        for ring in late:
            self.ended(ring.key, now)
        return late

    def went_live(self, key: CallKey, call: Call) -> None:
        self._live[key] = call

    def live(self, key: CallKey) -> Call | None:
        return self._live.get(key)

    def live_calls(self) -> Iterator[Call]:
        return iter(list(self._live.values()))

    def ended(self, key: CallKey, now: float) -> Ring | None:
        """The call is over: forget it, but know that it was. Returns the ring that was still waiting, if any."""
        self._live.pop(key, None)
        self._over[key] = now
        self._over.move_to_end(key)
        while self._over and next(iter(self._over.values())) < now - MEMORY_OF_ENDED:
            self._over.popitem(last=False)
        ring = self._rings.pop(key, None)
        return ring if ring is not None and not ring.used else None

    def is_over(self, key: CallKey) -> bool:
        return key in self._over

    def __len__(self) -> int:
        return len(self._live)
