"""
The gateway's Prometheus metrics. No label holds a call id, a phone number, or anything that was said.

With `gateway serve --workers` this is prometheus_client's multi-process mode: each worker writes its values to files
in PROMETHEUS_MULTIPROC_DIR, which the supervisor makes for them, and the one that is scraped adds up all of them. The
counts of a worker that died stay in the sum, or counters would fall.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

PREFIX: Final = "voice_gateway_"
FOLDER_VARIABLE: Final = "PROMETHEUS_MULTIPROC_DIR"
"""Must be set before prometheus_client is imported, so workers get it in their environment."""
SAMPLE_SECONDS: Final = 1.0
SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Fine enough that a quantile between 0.2 and 5 seconds is within 50 ms or an eighth of the exact one.
RESPONSE_SECONDS: Final = (
    *(0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0),
    *(2.25, 2.5, 2.75, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0),
)

REGISTRY: Final = CollectorRegistry()
disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter, which nothing reads

_gauges: dict[Gauge, Callable[[], float]] = {}


def render() -> str:
    """Everything in the text format, over all workers if there are several. Takes milliseconds: use a thread."""
    registry = REGISTRY
    if folder := os.environ.get(FOLDER_VARIABLE):
        registry = CollectorRegistry()
        MultiProcessCollector(registry, folder)  # type: ignore[no-untyped-call]
    return generate_latest(registry).decode()


@contextlib.contextmanager
def gauges(read: Mapping[Gauge, Callable[[], float]]) -> Iterator[None]:
    """Take the values of these gauges from functions while the block runs."""
    _gauges.update(read)
    try:
        yield
    finally:
        for gauge in read:
            _gauges.pop(gauge, None)


def sample() -> None:
    """Update the gauges."""
    for gauge, read in _gauges.items():
        gauge.set(read())


async def sample_often() -> None:
    """Update the gauges until cancelled, for a worker: another one may be scraped."""
    while True:
        sample()
        await asyncio.sleep(SAMPLE_SECONDS)


def _counter(name: str, meaning: str, labels: Sequence[str] = ()) -> Counter:
    return Counter(PREFIX + name, meaning, labels, registry=REGISTRY)


def _gauge(
    name: str, meaning: str, over_workers: Literal["livesum", "livemax"] = "livesum", labels: Sequence[str] = ()
) -> Gauge:
    return Gauge(PREFIX + name, meaning, labels, registry=REGISTRY, multiprocess_mode=over_workers)


def _histogram(name: str, meaning: str, labels: Sequence[str] = (), *, buckets: Sequence[float] = SECONDS) -> Histogram:
    return Histogram(PREFIX + name, meaning, labels, registry=REGISTRY, buckets=buckets)


# All metrics are defined here: a name can be registered once.

WATCHDOG: Final = _counter("watchdog_total", "times something stuck was noticed and acted on", ["what"])
CALLS: Final = _counter("calls_total", "calls that have ended", ["carrier", "reason"])
LIVE_CALLS: Final = _gauge("live_calls", "callers on the line")
ENDINGS: Final = _gauge("unfinished_endings", "calls whose archive, summary or document is not done")
OLDEST_ENDING: Final = _gauge("oldest_ending_seconds", "age of the oldest unfinished finalization job", "livemax")
RESTING: Final = _gauge("resting_endings", "finalization jobs parked until they are retried manually", "livemax")
LOOP_LAG: Final = _gauge("loop_lag_seconds", "the longest delay of the event loop in the last minute", "livemax")
REDIS_AWAY: Final = _gauge("redis_away", "1 while Redis does not answer", "livemax")
DATABASE_AWAY: Final = _gauge("database_away", "1 while PostgreSQL does not answer", "livemax")
CALL_SECONDS: Final = _histogram(
    "call_seconds", "duration of calls", ["carrier", "engine"], buckets=(5, 15, 30, 60, 120, 300, 600, 1800, 3600)
)
PIN_TRIES: Final = _counter("pin_tries_total", "attempts at a caller's PIN", ["result"])
for _result in ("right", "wrong", "locked"):
    PIN_TRIES.labels(_result)  # so that the first one is an increase
AUDIT_FAILURES: Final = _counter("audit_failures_total", "audit entries that could not be stored")
REFUSED: Final = _counter("refused_calls_total", "calls that were not admitted", ["carrier", "reason"])
ADDED_DELAY: Final = _histogram(
    "added_delay_seconds",
    "time from receiving a frame of audio to passing it on; one frame a second is measured",
    ["direction", "sender"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1),
)
BARGE_INS: Final = _counter("barge_ins_total", "answers that callers interrupted", ["carrier"])
TURN_STAGE_SECONDS: Final = _histogram(
    "turn_stage_seconds",
    "from the caller's last voiced frame to each stage of the answer",
    ["stage", "engine"],
    buckets=RESPONSE_SECONDS,
)
UNMEASURED_TURNS: Final = _counter(
    "unmeasured_turns_total", "turns without a voiced frame to count from", ["engine", "counted_from"]
)
FIRST_AUDIO_SECONDS: Final = _histogram(
    "first_audio_seconds",
    "from the answer of a call to the agent's first audio",
    ["carrier", "engine"],
    buckets=RESPONSE_SECONDS,
)
MEMORY_LOAD: Final = _histogram(
    "memory_load_seconds", "from the incoming call to the caller's memory being loaded", ["outcome"]
)
ENGINE_LOSSES: Final = _counter("engine_losses_total", "connections to the voice engine that were lost", ["engine"])
ENGINE_FAILING: Final = _gauge("engine_failing", "1 while calls avoid this voice engine", "livemax", ["engine"])
ENGINE_FAILOVERS: Final = _counter(
    "engine_failovers_total", "times a voice engine took over from another one", ["engine", "successor"]
)
FUNCTIONS: Final = _counter("functions_total", "functions that agents have called", ["outcome"])
ENDING_SECONDS: Final = _histogram(
    "ending_seconds", "from the end of a call to its document", buckets=(0.5, 1, 2, 5, 10, 30, 60, 600, 3600)
)
WEBHOOKS: Final = _counter("webhooks_total", "attempts to deliver a webhook", ["event", "result"])
REPEAT_CALLERS: Final = _counter(
    "repeat_callers_total", "calls, by whether their caller had called before", ["agent", "who"]
)
DAYS_BETWEEN_CALLS: Final = _histogram(
    "days_between_calls",
    "days from one call of a caller to the next",
    ["agent"],
    buckets=(0.04, 0.5, 1, 2, 4, 7, 14, 30, 90, 365),
)
STATE_KEYS: Final = _counter("state_keys_filled_total", "calls in which a function stored a value", ["agent", "key"])
RECALL_USED: Final = _counter("recall_used_total", "calls whose agent was given memory of earlier ones", ["agent"])
