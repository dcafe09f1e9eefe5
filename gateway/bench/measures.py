"""What a run found out, and whether it is good enough. Arithmetic only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.bench.stamps import FrameCount

LIMIT_MS: Final = 20.0
"""Added delay at p99, either way, up to which calls are sustained: the length of one frame."""

LATE_MS: Final = 5.0
DISTURBED_SHARE: Final = 0.01
"""A hundredth of the time is a hundredth of the frames: it can move the 99th percentile by itself."""


@dataclass(frozen=True)
class Spread:
    """A set of times in milliseconds, by nearest rank. All zero where nothing was measured."""

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
    """The smallest value that so many percent do not exceed."""
    return ordered[max(-(-len(ordered) * percent // 100), 1) - 1]


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)


@dataclass(frozen=True)
class Measurement:
    """One run with so many calls at once."""

    sockets: str
    calls: int
    connected: int
    """Calls that came up, and were up at the end."""
    seconds: float
    delay_up: Spread
    """From the carrier to the engine."""
    delay_down: Spread
    """From the engine to the carrier."""
    start_to_settings: Spread
    hangup_to_document: Spread
    cpu_ms_per_call_second: float
    memory_kib_per_call: float
    frames: FrameCount
    generator_lag: Spread
    """How late the load generator was itself. It stands between the gateway and the clock."""
    core_taken: float
    """Share of the time in which the gateway could have run, and something else had its core."""

    @property
    def sustained(self) -> bool:
        slowest = max(self.delay_up.p99_ms, self.delay_down.p99_ms)
        return self.connected == self.calls and self.frames.faultless and slowest < LIMIT_MS

    @property
    def disturbed(self) -> bool:
        """Whether a bad result may not be the gateway's fault."""
        return bool(self.disturbances)

    @property
    def disturbances(self) -> list[str]:
        found = []
        if self.generator_lag.p99_ms > LATE_MS:
            found.append(f"the load generator itself was {self.generator_lag.p99_ms:.1f} ms late at p99")
        if self.core_taken > DISTURBED_SHARE:
            found.append(f"something else had the gateway's core {self.core_taken:.0%} of the time")
        return found
