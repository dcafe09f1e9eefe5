"""
The state of a call, and the only place that says which steps are possible.

    RINGING ──media attached──► ACTIVE ──stream lost──► RECONNECTING ──media attached──► ACTIVE
    RINGING, ACTIVE, RECONNECTING, TRANSFERRING ──over──► ENDED
    ACTIVE ──agent transfers──► TRANSFERRING ──transfer failed──► RECONNECTING
"""

import enum
from collections.abc import Mapping
from typing import Final


class CallState(enum.StrEnum):
    RINGING = "ringing"
    """Accepted; the carrier has a stream token and has not attached media yet."""
    ACTIVE = "active"
    """Media is attached, or is being attached."""
    RECONNECTING = "reconnecting"
    """The media stream was lost while the caller may still be there."""
    TRANSFERRING = "transferring"
    """The carrier is calling the transfer target, which has not answered yet."""
    ENDED = "ended"


TRANSITIONS: Final[Mapping[CallState, frozenset[CallState]]] = {
    # A stream can fail before its first frame.
    CallState.RINGING: frozenset({CallState.ACTIVE, CallState.RECONNECTING, CallState.ENDED}),
    CallState.ACTIVE: frozenset({CallState.RECONNECTING, CallState.TRANSFERRING, CallState.ENDED}),
    # A new stream can fail too: the next attempt is the same state again.
    CallState.RECONNECTING: frozenset({CallState.RECONNECTING, CallState.ACTIVE, CallState.ENDED}),
    # After a failed transfer the caller needs a new media stream first.
    CallState.TRANSFERRING: frozenset({CallState.RECONNECTING, CallState.ENDED}),
    CallState.ENDED: frozenset(),
}


class IllegalTransition(RuntimeError):
    """A bug: the call can't get from the one state to the other."""

    def __init__(self, before: CallState, after: CallState) -> None:
        super().__init__(f"a call can't go from {before} to {after}")


def checked(before: CallState, after: CallState) -> CallState:
    """Return `after`. Raises IllegalTransition unless it may follow `before`."""
    if after not in TRANSITIONS[before]:
        raise IllegalTransition(before, after)
    return after
