"""Whoever follows the sound of a call without being part of it: level meters, and people who listen in."""

import contextlib
from collections.abc import Iterator

from gateway.calls.audio_tap import AudioTap
from gateway.calls.level_meter import LevelMeter


class CallMonitor:
    """One call's; mostly nobody. They get what they take in time, and hold nobody up."""

    def __init__(self) -> None:
        self._meter: LevelMeter | None = None
        self._taps: tuple[AudioTap, ...] = ()

    # The call's side

    def heard(self, audio: bytes) -> None:
        if self._meter is not None:
            self._meter.heard(audio)
        for tap in self._taps:
            tap.heard(audio)

    def sent(self, audio: bytes, now: float) -> None:
        if self._meter is not None:
            self._meter.sent(audio, now)
        for tap in self._taps:
            tap.sent(audio)

    def cleared(self) -> None:
        """What was sent and not played yet will not be."""
        if self._meter is not None:
            self._meter.cleared()
        for tap in self._taps:
            tap.cleared()

    # Theirs

    def levels(self, now: float) -> tuple[float, float]:
        """How loud caller and agent have been since the last time; measured from the first time on."""
        if self._meter is None:
            self._meter = LevelMeter()
        return self._meter.read(now)

    def stop_measuring(self) -> None:
        self._meter = None

    @contextlib.contextmanager
    def tapped(self) -> Iterator[AudioTap]:
        """Somebody listens while the block runs."""
        tap = AudioTap()
        self._taps = (*self._taps, tap)
        try:
            yield tap
        finally:
            self._taps = tuple(other for other in self._taps if other is not tap)
