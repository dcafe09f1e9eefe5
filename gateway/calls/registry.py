"""Calls this node knows: ringing, live, over; and which webhook events it has seen. In memory, no I/O."""

import asyncio
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import quote

from gateway.calls.agents import Agent
from gateway.calls.functions.kit import Kit
from gateway.calls.pipeline import Call
from gateway.calls.remembering import Remembering
from gateway.calls.session import CallKey, VoiceSession, new_session_id
from gateway.links.recorder import CallRecorder
from gateway.memory.trust import Clearance

TOKEN_SECONDS: Final = 30.0
"""From the webhook to the media socket it takes a second or two; a token older than this is dead."""

RESUME_SECONDS: Final = 60.0
"""How long a call whose stream was lost is waited for. Carriers were seen to take up to 45 s to notice."""

RESUME_TRIES: Final = 3
"""New streams for one call in a row; a socket that fails at once must not keep a caller in silence."""

MEMORY_OF_ENDED: Final = 3600.0
MOST_EVENTS: Final = 10_000


@dataclass(eq=False)
class Ring:
    """
    A call that was let in and has no media yet. Its token opens one media socket, once.

    `session` is there for a caller who is remembered, and for every call that goes on after it lost its media.
    """

    key: CallKey
    account_id: str
    caller: str
    """Under whom its memory is kept; empty: nothing is kept, or read."""
    called: str
    agent: Agent
    media_url: str
    expires: float
    memory: Remembering | None = None
    kit: asyncio.Task[Kit] | None = None
    session: VoiceSession | None = None
    session_id: str = field(default_factory=new_session_id)
    """What its session has as id, or will have."""
    recorder: CallRecorder | None = None
    attempt: int = 0
    number: str = ""
    """The caller's, as the network tells it."""
    clearance: Clearance = field(default_factory=Clearance)
    """How much of the caller's memory may be told."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    used: bool = False
    shared: bool = False
    """Other nodes know of it: its token may be spent at any of them."""
    handed_over: bool = False
    """The caller was put through to somebody who has not picked up yet."""
    picked_up: bool | None = None
    """Whether they have, when that was told before the call with us had ended."""
    taken: bool = False
    """Another node has the call now; nothing is to be done about it here."""
    adopted: bool = False
    """Another node had it that could not be asked, and may have its media still."""

    @property
    def stream_url(self) -> str:
        """The media socket's address with the token in it, for carriers that keep it there."""
        return f"{self.media_url}?token={quote(self.token, safe='')}"

    def again(self, *, expires: float) -> "Ring":
        """The same call once more, after its stream was lost: another token, one more attempt."""
        return replace(
            self,
            expires=expires,
            memory=None,
            kit=None,
            attempt=self.attempt + 1,
            token=secrets.token_urlsafe(32),
            used=False,
            shared=False,
            handed_over=False,
            picked_up=None,
        )

    def cancel(self) -> None:
        """Nobody will need what is being loaded for it."""
        for loading in (self.memory, self.kit):
            if loading is not None:
                loading.cancel()

    def opens(self, token: str, account_id: str, now: float) -> bool:
        """Whether this token, from this account, opens the call's media now. Constant time for the token."""
        right = hmac.compare_digest(self.token.encode(), token.encode())
        return right and not self.used and now < self.expires and account_id in ("", self.account_id)


class Registry:
    """One node's calls. A call rings, is live, is over; when its stream is lost it is parked, and may ring again."""

    def __init__(self) -> None:
        self._rings: dict[CallKey, Ring] = {}
        self._live: dict[CallKey, Call] = {}
        self._parked: dict[CallKey, Ring] = {}
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

    def park(self, ring: Ring, until: float) -> None:
        """The call has lost its stream. `ring` is what it had; it waits for another until then."""
        self._live.pop(ring.key, None)
        self._rings.pop(ring.key, None)
        self._over.pop(ring.key, None)
        ring.expires = until
        self._parked[ring.key] = ring

    def unpark(self, key: CallKey) -> Ring | None:
        return self._parked.pop(key, None)

    def overdue(self, now: float) -> list[Ring]:
        """Parked calls that nobody came back for; with this they are over."""
        late = [ring for ring in self._parked.values() if now >= ring.expires]
        for ring in late:
            self.ended(ring.key, now)
        return late

    def went_live(self, key: CallKey, call: Call) -> None:
        self._live[key] = call

    def live(self, key: CallKey) -> Call | None:
        return self._live.get(key)

    def live_calls(self) -> Iterator[Call]:
        return iter(list(self._live.values()))

    def live_items(self) -> list[tuple[CallKey, Call]]:
        return list(self._live.items())

    def ended(self, key: CallKey, now: float) -> Ring | None:
        """The call is over: forget it, but know that it was. Returns what was still waiting, ringing or parked."""
        self._live.pop(key, None)
        parked = self._parked.pop(key, None)
        self._over[key] = now
        self._over.move_to_end(key)
        while self._over and next(iter(self._over.values())) < now - MEMORY_OF_ENDED:
            self._over.popitem(last=False)
        ring = self._rings.pop(key, None)
        return parked or (ring if ring is not None and not ring.used else None)

    def forget(self, key: CallKey) -> Ring | None:
        """The call is another node's now. Returns what was ringing or parked here."""
        self._over.pop(key, None)
        return self._parked.pop(key, None) or self._rings.pop(key, None)

    def handed_over(self, key: CallKey) -> Ring | None:
        """The call, if it waits for somebody else to pick up."""
        parked = self._parked.get(key)
        return parked if parked is not None and parked.handed_over else None

    def is_over(self, key: CallKey) -> bool:
        return key in self._over

    def is_parked(self, key: CallKey) -> bool:
        return key in self._parked

    def is_empty(self, now: float) -> bool:
        """Whether there is no call: none that rings, has its media, or waits for it."""
        return not (self._live or self._parked) and all(now >= ring.expires for ring in self._rings.values())

    def __len__(self) -> int:
        """Calls with a caller on the line, as far as we know."""
        return len(self._live) + len(self._parked)
