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
        for audio_tap in self._taps:
            audio_tap.heard(audio)

    def sent(self, audio: bytes, now: float) -> None:
        if self._meter is not None:
            self._meter.sent(audio, now)
        for audio_tap in self._taps:
            audio_tap.sent(audio)

    def cleared(self) -> None:
        """What was sent and not played yet will not be."""
        if self._meter is not None:
            self._meter.cleared()
        for audio_tap in self._taps:
            audio_tap.cleared()

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
        audio_tap = AudioTap()
        self._taps = (*self._taps, audio_tap)
        try:
            yield audio_tap
        finally:
            self._taps = tuple(other for other in self._taps if other is not audio_tap)
