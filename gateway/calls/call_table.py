"""Calls this node knows: ringing, live, over; and which webhook events it has seen. In memory, no I/O."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from gateway.calls.call import Call
from gateway.calls.pending_call import PendingCall
from gateway.session import CallKey

TOKEN_SECONDS: Final = 30.0
"""From the webhook to the media socket it takes a second or two; a token older than this is dead."""

RESUME_SECONDS: Final = 60.0
"""How long a call whose stream was lost is waited for. Carriers were seen to take up to 45 s to notice."""

ASK_SECONDS: Final = 5.0
"""How often a carrier that asks by itself for such a call is asked whether the caller is still there."""

UNHEARD_SECONDS: Final = 15.0
"""How long it is waited for from there, where the carrier does not say."""

RESUME_TRIES: Final = 3
"""New streams for one call in a row; a socket that fails at once must not keep a caller in silence."""

MEMORY_OF_ENDED: Final = 3600.0
MOST_EVENTS: Final = 10_000


class CallTable:
    """One node's calls. A call rings, is live, is over; when its stream is lost it is parked, and may ring again."""

    def __init__(self) -> None:
        self._pending_calls: dict[CallKey, PendingCall] = {}
        self._live: dict[CallKey, Call] = {}
        self._parked: dict[CallKey, PendingCall] = {}
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

    def add_ring(self, pending: PendingCall) -> None:
        self._pending_calls[pending.key] = pending

    def pending(self, key: CallKey) -> PendingCall | None:
        return self._pending_calls.get(key)

    def redeem(self, key: CallKey, token: str, account_id: str, now: float) -> PendingCall | None:
        """Spend a token. None for a wrong, used, expired or foreign one; the call keeps waiting for the right one."""
        pending = self._pending_calls.get(key)
        if pending is None or not pending.opens(token, account_id, now):
            return None
        pending.used = True
        return pending

    def unclaimed(self, now: float) -> list[PendingCall]:
        """Rings whose media never came; with this they are over."""
        late = [pending for pending in self._pending_calls.values() if not pending.used and now >= pending.expires]
        for pending in late:
            self.ended(pending.key, now)
        return late

    def park(self, pending: PendingCall, until: float) -> None:
        """The call has lost its stream. `ring` is what it had; it waits for another until then."""
        self._live.pop(pending.key, None)
        self._pending_calls.pop(pending.key, None)
        self._over.pop(pending.key, None)
        pending.expires = until
        self._parked[pending.key] = pending

    def to_ask_about(self, now: float) -> list[PendingCall]:
        """Parked calls about which the carrier is to be asked now; each comes again after a while."""
        due = [pending for pending in self._parked.values() if now >= pending.ask_at]
        for pending in due:
            pending.ask_at = now + ASK_SECONDS
        return due

    def unpark(self, key: CallKey) -> PendingCall | None:
        return self._parked.pop(key, None)

    def overdue(self, now: float) -> list[PendingCall]:
        """Parked calls that nobody came back for; with this they are over."""
        late = [pending for pending in self._parked.values() if now >= pending.expires]
        for pending in late:
            self.ended(pending.key, now)
        return late

    def went_live(self, key: CallKey, call: Call) -> None:
        self._live[key] = call

    def live(self, key: CallKey) -> Call | None:
        return self._live.get(key)

    def live_calls(self) -> Iterator[Call]:
        return iter(list(self._live.values()))

    def live_items(self) -> list[tuple[CallKey, Call]]:
        return list(self._live.items())

    def ended(self, key: CallKey, now: float) -> PendingCall | None:
        """The call is over: forget it, but know that it was. Returns what was still waiting, ringing or parked."""
        self._live.pop(key, None)
        parked = self._parked.pop(key, None)
        self._over[key] = now
        self._over.move_to_end(key)
        while self._over and next(iter(self._over.values())) < now - MEMORY_OF_ENDED:
            self._over.popitem(last=False)
        pending = self._pending_calls.pop(key, None)
        return parked or (pending if pending is not None and not pending.used else None)

    def forget(self, key: CallKey) -> PendingCall | None:
        """The call is another node's now. Returns what was ringing or parked here."""
        self._over.pop(key, None)
        return self._parked.pop(key, None) or self._pending_calls.pop(key, None)

    def handed_over(self, key: CallKey) -> PendingCall | None:
        """The call, if it waits for somebody else to pick up."""
        parked = self._parked.get(key)
        return parked if parked is not None and parked.handed_over else None

    def without_media(self) -> list[PendingCall]:
        """Calls that wait for their first stream, or for another."""
        return [
            *self._parked.values(),
            *(pending for pending in self._pending_calls.values() if not pending.used),
        ]

    @property
    def has_calls(self) -> bool:
        """Whether there is any call that is not over."""
        return bool(self._pending_calls or self._live or self._parked)

    def is_over(self, key: CallKey) -> bool:
        return key in self._over

    def is_parked(self, key: CallKey) -> bool:
        return key in self._parked

    def __len__(self) -> int:
        """Calls with a caller on the line, as far as we know."""
        return len(self._live) + len(self._parked)
