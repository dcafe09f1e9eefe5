"""
Counters, gauges and histograms, in the text format that Prometheus reads.

Made once, at import, by whoever counts. To count is a dictionary's work: it may stand beside the audio path. No label
holds a call's id, a number, or anything that was said.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

PREFIX: Final = "voice_gateway_"
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labels = tuple[str, ...]
Merge = Literal["sum", "max"]
Snapshot = Mapping[str, Sequence[tuple[str, str, float]]]
"""By name: suffix, rendered labels, value."""


class Metric:
    """One name, with a value for each combination of its labels."""

    kind = ""
    merge: Merge = "sum"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        self.name = PREFIX + name
        self.meaning = meaning
        self.labels = tuple(labels)
        METRICS[self.name] = self

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Suffix of the name, rendered labels, value."""
        raise NotImplementedError

    def render(self, others: Iterable[Snapshot] = ()) -> str:
        """As Prometheus reads it, together with what other processes have."""
        values = {(suffix, labels): value for suffix, labels, value in self.samples()}
        for snapshot in others:
            for suffix, labels, value in snapshot.get(self.name, ()):
                before = values.get((suffix, labels), 0.0)
                values[suffix, labels] = max(before, value) if self.merge == "max" else before + value
        head = f"# HELP {self.name} {self.meaning}\n# TYPE {self.name} {self.kind}\n"
        lines = [f"{self.name}{suffix}{labels} {value:.15g}\n" for (suffix, labels), value in values.items()]
        return head + "".join(lines)

    def _rendered(self, values: Labels, **more: str) -> str:
        pairs = [*zip(self.labels, values, strict=True), *more.items()]
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}" if pairs else ""


METRICS: Final[dict[str, Metric]] = {}


class Counter(Metric):
    kind = "counter"

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, meaning, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0.0}

    def count(self, *labels: str, by: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0.0) + by

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0.0)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        for labels, value in list(self._values.items()):
            yield "", self._rendered(labels), value


class Gauge(Metric):
    """A value that is asked for when somebody looks. Of several processes, `merge` makes one of theirs."""

    kind = "gauge"

    def __init__(self, name: str, meaning: str, *, merge: Merge = "sum") -> None:
        super().__init__(name, meaning)
        self.merge = merge
        self._read: Callable[[], float] = lambda: 0.0

    def reads(self, read: Callable[[], float]) -> None:
        self._read = read

    def samples(self) -> Iterator[tuple[str, str, float]]:
        yield "", "", self._read()


class Histogram(Metric):
    """How often values were at most so large."""

    kind = "histogram"

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS
    ) -> None:
        super().__init__(name, meaning, labels)
        self._buckets = tuple(buckets)
        self._counts: dict[Labels, list[int]] = {}
        self._sums: dict[Labels, float] = {}

    def observe(self, value: float, *labels: str) -> None:
        counts = self._counts.setdefault(labels, [0] * (len(self._buckets) + 1))
        counts[bisect_left(self._buckets, value)] += 1
        self._sums[labels] = self._sums.get(labels, 0.0) + value

    def samples(self) -> Iterator[tuple[str, str, float]]:
        for labels, counts in list(self._counts.items()):
            total = 0
            for bound, count in zip((*map(str, self._buckets), "+Inf"), counts, strict=True):
                total += count
                yield "_bucket", self._rendered(labels, le=bound), total
            yield "_sum", self._rendered(labels), self._sums[labels]
            yield "_count", self._rendered(labels), total


def render(others: Sequence[Snapshot] = ()) -> str:
    """Everything, as Prometheus reads it; of several processes as if they were one."""
    return "".join(metric.render(others) for _, metric in sorted(METRICS.items()))


def snapshot() -> Snapshot:
    """Everything that this process has counted."""
    return {name: [*metric.samples()] for name, metric in METRICS.items()}


def without_gauges(taken: Snapshot) -> Snapshot:
    """What a process that is gone has counted: it has nothing in hand any more."""
    return {name: samples for name, samples in taken.items() if name in METRICS and METRICS[name].kind != "gauge"}


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# What every room may count. Here, because a name must be made once.

WATCHDOG: Final = Counter("watchdog_total", "times something stuck was noticed and acted on", ("what",))
CALLS: Final = Counter("calls_total", "calls that are over", ("carrier", "reason"))
LIVE_CALLS: Final = Gauge("live_calls", "callers on the line")
ENDINGS: Final = Gauge("unfinished_endings", "calls whose archive, summary or document is not done")
OLDEST_ENDING: Final = Gauge("oldest_ending_seconds", "age of the call that waits longest for its ending", merge="max")
RESTING: Final = Gauge("resting_endings", "endings that wait until somebody has them tried again", merge="max")
LOOP_LAG: Final = Gauge(
    "loop_lag_seconds", "the longest that the event loop was held up in the last minute", merge="max"
)
CALL_SECONDS: Final = Histogram(
    "call_seconds", "how long calls lasted", ("carrier", "engine"), buckets=(5, 15, 30, 60, 120, 300, 600, 1800, 3600)
)
REFUSED: Final = Counter("refused_calls_total", "calls that were not let in", ("carrier", "reason"))
ADDED_DELAY: Final = Histogram(
    "added_delay_seconds",
    "what the gateway takes to pass a frame of sound on; one frame a second is measured",
    ("direction", "sender"),
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1),
)
BARGE_INS: Final = Counter("barge_ins_total", "answers that callers cut off", ("carrier",))
MEMORY_LOAD: Final = Histogram(
    "memory_load_seconds", "from the ring to everything that is known of the caller", ("outcome",)
)
ENGINE_LOSSES: Final = Counter("engine_losses_total", "connections to the voice engine that were lost", ("engine",))
FUNCTIONS: Final = Counter("functions_total", "functions that agents have called", ("outcome",))
ENDING_SECONDS: Final = Histogram(
    "ending_seconds", "from the call's end to its document", buckets=(0.5, 1, 2, 5, 10, 30, 60, 600, 3600)
)
REPEAT_CALLERS: Final = Counter(
    "repeat_callers_total", "calls, by whether their caller had called before", ("agent", "who")
)
DAYS_BETWEEN_CALLS: Final = Histogram(
    "days_between_calls",
    "from one call of a caller to their next",
    ("agent",),
    buckets=(0.04, 0.5, 1, 2, 4, 7, 14, 30, 90, 365),
)
STATE_KEYS: Final = Counter("state_keys_filled_total", "calls in which a function kept a value", ("agent", "key"))
RECALL_USED: Final = Counter("recall_used_total", "calls whose agent was told something of earlier ones", ("agent",))
