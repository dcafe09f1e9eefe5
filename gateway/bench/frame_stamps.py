"""
Stamped audio: each 20 ms frame carries its call, its number and the time it was sent.

A `FrameLedger` writes such frames for one direction of one call and checks that each arrives once, in order, unchanged.
"""

import struct
from array import array
from dataclasses import dataclass
from typing import Final

from gateway.audio import FRAME_BYTES

_STAMP: Final = struct.Struct(">HIQ")  # call, number, nanoseconds of the monotonic clock
_FILLER: Final = bytes((37 * sample + 11) % 256 for sample in range(FRAME_BYTES - _STAMP.size))


def stamped(call: int, number: int, at_ns: int) -> bytes:
    return _STAMP.pack(call, number, at_ns) + _FILLER


def call_of(audio: bytes) -> int | None:
    """The call whose frame this is; None for audio without a stamp."""
    if len(audio) != FRAME_BYTES or not audio.endswith(_FILLER):
        return None
    call: int = _STAMP.unpack_from(audio)[0]
    return call


class Delays:
    """Transit times of the frames sent within a time window."""

    def __init__(self) -> None:
        self.values_ns = array("q")
        self._since_ns = self._until_ns = 0

    def open_window(self, since_ns: int, until_ns: int) -> None:
        self._since_ns, self._until_ns = since_ns, until_ns

    def add(self, sent_ns: int, arrived_ns: int) -> None:
        if self._since_ns <= sent_ns < self._until_ns:
            self.values_ns.append(arrived_ns - sent_ns)


class FrameLedger:
    """The frames of one direction of one call."""

    __slots__ = ("_call", "_delays", "arrived", "changed", "expected", "reordered", "sent")

    def __init__(self, call: int, delays: Delays) -> None:
        self._call = call
        self._delays = delays
        self.sent = self.arrived = self.expected = self.reordered = self.changed = 0

    def send(self, now_ns: int) -> bytes:
        """Stamp the next frame."""
        frame = stamped(self._call, self.sent, now_ns)
        self.sent += 1
        return frame

    def receive(self, audio: bytes, now_ns: int) -> None:
        if len(audio) != FRAME_BYTES or not audio.endswith(_FILLER):
            self.changed += 1
            return
        call, number, sent_ns = _STAMP.unpack_from(audio)
        if call != self._call or number >= self.sent:
            self.changed += 1
        elif number < self.expected:
            self.reordered += 1
        else:
            self.expected = number + 1
            self.arrived += 1
            self._delays.add(sent_ns, now_ns)


@dataclass(frozen=True)
class FrameCount:
    """The fate of all frames of a run."""

    sent: int
    lost: int
    """Not received in order and unchanged."""
    reordered: int
    """Received after a later one, or twice."""
    changed: int

    @classmethod
    def of(cls, ledgers: list[FrameLedger]) -> "FrameCount":
        sent = sum(ledger.sent for ledger in ledgers)
        return cls(
            sent=sent,
            lost=sent - sum(ledger.arrived for ledger in ledgers),
            reordered=sum(ledger.reordered for ledger in ledgers),
            changed=sum(ledger.changed for ledger in ledgers),
        )

    @property
    def faultless(self) -> bool:
        return self.lost == self.reordered == self.changed == 0
