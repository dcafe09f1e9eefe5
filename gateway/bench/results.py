"""
What a run measured, whether the load was sustained, and the output: a table for people, one JSON object with `--json`.

The object has `limit_ms`, `calls_sustained` (null unless searched for), `measurements` and, for a comparison, `ratio`:
`cpu`, `memory`, `delay_up_p99` and `delay_down_p99` of the second measurement divided by the first. A measurement:

- the load: `variant`, `calls`, `connected` (at the end of the run), `replaced` (ended during the run; the same caller
  called again), `seconds`, `turns_per_second` (of each side, all calls together)
- times, each with `count`, `p50_ms`, `p99_ms`, `max_ms`: `delay_up` (caller to engine), `delay_down`,
  `start_to_settings`, `hangup_to_document`, `words_to_watcher` (a caller's final words to a live viewer)
- cost: `cpu_ms_per_call_second`, `memory_kib_per_call`, `disk_kib_per_second` (log included)
- verdict: `sustained`, `frames` (`sent`, `lost`, `reordered`, `changed`)
- interference: `generator_lag` (times; its lateness adds to every delay), `core_taken` (the share of the time in which
  another process held the gateway's core while the gateway was ready to run), `disturbances` (both in words)
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

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
        # The smallest value that at least so many percent of the values do not exceed.
        ranks = [max(-(-len(ordered) * percent // 100), 1) - 1 for percent in (50, 99, 100)]
        return cls(len(ordered), *(round(ordered[rank] / 1e6, 3) if ordered else 0.0 for rank in ranks))


@dataclass(frozen=True)
class FrameCount:
    """The fate of all frames of a run."""

    sent: int
    lost: int
    """Not received in order and unchanged."""
    reordered: int
    """Received after a later one, or twice."""
    changed: int

    @property
    def faultless(self) -> bool:
        return self.lost == self.reordered == self.changed == 0


@dataclass(frozen=True)
class Measurement:
    """One run with `calls` simultaneous calls. The module's docstring explains the fields."""

    variant: str
    calls: int
    connected: int
    replaced: int
    seconds: float
    delay_up: Spread
    delay_down: Spread
    start_to_settings: Spread
    hangup_to_document: Spread
    words_to_watcher: Spread
    cpu_ms_per_call_second: float
    memory_kib_per_call: float
    turns_per_second: float
    disk_kib_per_second: float
    frames: FrameCount
    generator_lag: Spread
    core_taken: float

    @property
    def sustained(self) -> bool:
        return self.connected == self.calls and self.frames.faultless and self.slower_p99_ms < LIMIT_MS

    @property
    def slower_p99_ms(self) -> float:
        """The worse of both directions."""
        return max(self.delay_up.p99_ms, self.delay_down.p99_ms)

    @property
    def disturbances(self) -> list[str]:
        """Other load on the machine that may explain a bad result."""
        return disturbances_of(self.generator_lag, self.core_taken)


@dataclass(frozen=True)
class Search:
    """All steps and the highest load that was sustained."""

    steps: list[Measurement]
    best: Measurement | None


def disturbances_of(generator_lag: Spread, core_taken: float) -> list[str]:
    found = []
    if generator_lag.p99_ms > LATE_MS:
        found.append(f"the load generator itself was {generator_lag.p99_ms:.1f} ms late at p99")
    if core_taken > DISTURBED_SHARE:
        found.append(f"something else had the gateway's core {core_taken:.0%} of the time")
    return found


def ratios(first: Measurement, second: Measurement) -> dict[str, float]:
    """Second measurement divided by the first."""
    pairs = {
        "cpu": (first.cpu_ms_per_call_second, second.cpu_ms_per_call_second),
        "memory": (first.memory_kib_per_call, second.memory_kib_per_call),
        "delay_up_p99": (first.delay_up.p99_ms, second.delay_up.p99_ms),
        "delay_down_p99": (first.delay_down.p99_ms, second.delay_down.p99_ms),
    }
    return {name: round(more / one, 2) if one else 0.0 for name, (one, more) in pairs.items()}


# Output


def as_json(measurements: Sequence[Measurement], *, calls_sustained: int | None = None) -> dict[str, Any]:
    """See the module's docstring."""
    runs = [{**asdict(run), "sustained": run.sustained, "disturbances": run.disturbances} for run in measurements]
    return {"limit_ms": LIMIT_MS, "calls_sustained": calls_sustained, "measurements": runs}


def search_as_text(found: Search) -> str:
    if found.best is None:
        return "\n".join([line("calls sustained", "none"), "", run_as_text(found.steps[-1])])
    failed = min((step.calls for step in found.steps if not step.sustained), default=0)
    is_disturbed = any(step.disturbances for step in found.steps if step.calls == failed)
    least = " or more: the load generator or the machine was the limit" if is_disturbed else ""
    headline = line("calls sustained", f"{found.best.calls}{least}")
    limit = line("", f"p99 added delay under {LIMIT_MS:.0f} ms, no frame lost")
    return "\n".join([headline, limit, "", run_as_text(found.best)])


def run_as_text(run: Measurement) -> str:
    """The table of one run."""
    to_disk = f"{run.disk_kib_per_second:.1f} KiB a second to disk"
    lines = [
        f"{run.calls} calls at once for {run.seconds:g} s ({run.variant}), gateway on one core",
        f"{run.replaced} of them ended during the run, and their callers called again",
        line("", f"{'p50':>9} {'p99':>12}"),
        times("added delay, caller to engine", run.delay_up),
        times("added delay, engine to caller", run.delay_down),
        times("start to Settings", run.start_to_settings),
        times("hangup to document", run.hangup_to_document),
        *([times("words to live viewer", run.words_to_watcher)] if run.words_to_watcher.count else []),
        line("CPU per call", f"{run.cpu_ms_per_call_second:9.2f} ms a second"),
        line("memory per call", f"{run.memory_kib_per_call:9.1f} KiB"),
        line("turns of each side", f"{run.turns_per_second:9.1f} a second, {to_disk}"),
        line("frames sent", f"{run.frames.sent:9} ({faults(run.frames)})"),
        times("load generator late by", run.generator_lag),
    ]
    if run.connected != run.calls:
        lines.append(line("calls that came up", f"{run.connected:9} of {run.calls}"))
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def comparison_as_text(first: Measurement, second: Measurement) -> str:
    names = ("CPU per call", "memory per call", "p99 delay, caller to engine", "p99 delay, engine to caller")
    found = zip(names, ratios(first, second).values(), strict=True)
    lines = [f"{second.variant} to {first.variant}", *(line(name, f"{ratio:9.2f} times") for name, ratio in found)]
    return "\n\n".join([run_as_text(first), run_as_text(second), "\n".join(lines)])


def line(name: str, value: str) -> str:
    return f"{name:34}{value}"


def times(name: str, spread: Spread) -> str:
    return line(name, f"{spread.p50_ms:9.2f} ms {spread.p99_ms:9.2f} ms" if spread.count else "not measured")


def faults(frames: FrameCount) -> str:
    if frames.faultless:
        return "all arrived once, in order, unchanged"
    return f"{frames.lost} lost, {frames.reordered} out of order, {frames.changed} changed"
