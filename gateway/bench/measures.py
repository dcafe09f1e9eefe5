"""What a run found out, and whether it is good enough. Arithmetic only."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gateway.bench.frame_stamps import FrameCount

LIMIT_MS: Final = 20.0
"""Added delay at p99, either way, up to which calls are sustained: the length of one frame."""

BRAIN_LIMIT_MS: Final = 3.0
"""Added at p99 to the first word of an answer."""

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

    variant: str
    """How the gateway was started."""
    calls: int
    connected: int
    """Calls that came up, and were up at the end."""
    replaced: int
    """Calls that ended meanwhile, each for another one of the same caller."""
    seconds: float
    delay_up: Spread
    """From the carrier to the engine."""
    delay_down: Spread
    """From the engine to the carrier."""
    start_to_settings: Spread
    hangup_to_document: Spread
    words_to_watcher: Spread
    """From a caller's final words to whoever watches; nothing where nobody does."""
    cpu_ms_per_call_second: float
    memory_kib_per_call: float
    turns_per_second: float
    """Of each side, all calls together."""
    disk_kib_per_second: float
    """What the gateway had written meanwhile, its log included."""
    frames: FrameCount
    generator_lag: Spread
    """How late the load generator was itself. It stands between the gateway and the clock."""
    core_taken: float
    """Share of the time in which the gateway could have run, and something else had its core."""

    @property
    def sustained(self) -> bool:
        return self.connected == self.calls and self.frames.faultless and self.slower_p99_ms < LIMIT_MS

    @property
    def slower_p99_ms(self) -> float:
        """Of both directions."""
        return max(self.delay_up.p99_ms, self.delay_down.p99_ms)

    @property
    def disturbed(self) -> bool:
        """Whether a bad result may not be the gateway's fault."""
        return bool(self.disturbances)

    @property
    def disturbances(self) -> list[str]:
        return _disturbances(self.generator_lag, self.core_taken)


@dataclass(frozen=True)
class BrainMeasurement:
    """One run with so many answers of a language model at once, each in a call of its own."""

    turns: int
    seconds: float
    answers: int
    """That were asked for through the gateway."""
    failed: int
    """Answers that did not come, or without the language model's words."""
    left_out: int
    """Of `answers`, from `through`: the machine was taken away while their first word was on its way."""
    direct: Spread
    """From the language model's first word to where the engine can read it, without the gateway."""
    through: Spread
    """The same through the gateway."""
    cpu_ms_per_turn: float
    """What the gateway needs beside the sound of the calls."""
    frames: FrameCount
    """That sound, in both directions."""
    generator_lag: Spread
    core_taken: float
    ahead: bool
    """Whether the gateway and its load went before everything else on their cores."""

    @property
    def added_ms(self) -> dict[str, float]:
        """What the gateway adds."""
        return {
            "p50": round(self.through.p50_ms - self.direct.p50_ms, 3),
            "p99": round(self.through.p99_ms - self.direct.p99_ms, 3),
            "max": round(self.through.max_ms - self.direct.max_ms, 3),
        }

    @property
    def held(self) -> bool:
        return not self.failed and bool(self.through.count) and self.added_ms["p99"] < BRAIN_LIMIT_MS

    @property
    def disturbances(self) -> list[str]:
        few = [f"only {self.through.count} answers count"] if self.left_out > self.through.count else []
        return [*few, *_disturbances(self.generator_lag, self.core_taken)]


def _disturbances(generator_lag: Spread, core_taken: float) -> list[str]:
    found = []
    if generator_lag.p99_ms > LATE_MS:
        found.append(f"the load generator itself was {generator_lag.p99_ms:.1f} ms late at p99")
    if core_taken > DISTURBED_SHARE:
        found.append(f"something else had the gateway's core {core_taken:.0%} of the time")
    return found
