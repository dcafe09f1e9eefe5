"""The result of one run and whether it meets the limit. Arithmetic only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.bench.frame_stamps import FrameCount

LIMIT_MS: Final = 20.0
"""Added delay at p99, either way, up to which calls are sustained: the length of one frame."""

LATE_MS: Final = 5.0
DISTURBED_SHARE: Final = 0.01
"""One percent of the time is one percent of the frames, which alone can move the 99th percentile."""


@dataclass(frozen=True)
class Spread:
    """Percentiles of a set of times, by nearest rank. All zero if nothing was measured."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of_ns(cls, values: Iterable[int]) -> "Spread":
        ordered = sorted(values)
        if not ordered:
            return cls(0, 0.0, 0.0, 0.0)
        return cls(len(ordered), _ms(_rank(ordered, 50)), _ms(_rank(ordered, 99)), _ms(ordered[-1]))


def _rank(ordered: list[int], percent: int) -> int:
    """The smallest value that at least `percent` of the values do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


@dataclass(frozen=True)
class Measurement:
    """One run with `calls` simultaneous calls."""

    variant: str
    """How the gateway was started."""
    calls: int
    connected: int
    """Calls that came up, and were up at the end."""
    replaced: int
    """Calls that ended during the run; the same caller called again each time."""
    seconds: float
    delay_up: Spread
    """From the carrier to the engine."""
    delay_down: Spread
    """From the engine to the carrier."""
    start_to_settings: Spread
    hangup_to_document: Spread
    words_to_watcher: Spread
    """From a caller's final words to a viewer of the live feed; empty without viewers."""
    cpu_ms_per_call_second: float
    memory_kib_per_call: float
    turns_per_second: float
    """Of each side, all calls together."""
    disk_kib_per_second: float
    """Written by the gateway during the run, log included."""
    frames: FrameCount
    generator_lag: Spread
    """How late the load generator itself was; its lateness adds to every measured delay."""
    core_taken: float
    """Share of the time in which another process held the gateway's core while the gateway was ready to run."""

    @property
    def sustained(self) -> bool:
        return self.connected == self.calls and self.frames.faultless and self.slower_p99_ms < LIMIT_MS

    @property
    def slower_p99_ms(self) -> float:
        """The worse of both directions."""
        return max(self.delay_up.p99_ms, self.delay_down.p99_ms)

    @property
    def disturbed(self) -> bool:
        """Whether other load on the machine may explain a bad result."""
        return bool(self.disturbances)

    @property
    def disturbances(self) -> list[str]:
        return disturbances_of(self.generator_lag, self.core_taken)


def disturbances_of(generator_lag: Spread, core_taken: float) -> list[str]:
    found = []
    if generator_lag.p99_ms > LATE_MS:
        found.append(f"the load generator itself was {generator_lag.p99_ms:.1f} ms late at p99")
    if core_taken > DISTURBED_SHARE:
        found.append(f"something else had the gateway's core {core_taken:.0%} of the time")
    return found
