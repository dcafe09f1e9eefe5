"""Holds the bench: one run with so many calls, the search for the most, the comparison of two variants."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Final

import httpx
import uvloop

from gateway.bench.engine import start_engine
from gateway.bench.load import Load, client
from gateway.bench.measures import Measurement, Spread
from gateway.bench.processes import GatewayProcess, cores, pinned, running_gateway
from gateway.bench.variants import Pair, Variant
from gateway.bench.watchers import Watchers

FIRST_CALLS: Final = 100
COMPARED_CALLS: Final = 50
_ROUNDS: Final = 3
_SETTLE_SECONDS: Final = 1.5
"""After the last call was placed: all of them ringing at once is not the load that is measured."""

Measure = Callable[[int], Measurement]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class _Usage:
    """What the gateway has taken of the machine until now, or between two moments, and the turns it has heard."""

    seconds: float
    cpu_seconds: float
    waited_seconds: float
    written_bytes: int
    turns: int

    @classmethod
    def of(cls, process: GatewayProcess, load: Load) -> "_Usage":
        cpu, waited, written = process.cpu_seconds(), process.waited_seconds(), process.written_bytes()
        return cls(time.monotonic(), cpu, waited, written, load.turns)

    def since(self, before: "_Usage") -> "_Usage":
        return _Usage(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


@dataclass(frozen=True)
class Search:
    """Every step taken, and the best that held."""

    steps: list[Measurement]
    best: Measurement | None


def measure(calls: int, variant: Variant, *, seconds: float) -> Measurement:
    """One run against a fresh gateway. BenchFailed if it can't be held."""
    core, others = cores()
    with pinned(others), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(calls, seconds, variant, core))


def search(measure: Measure, *, first: int = FIRST_CALLS, tell: Tell) -> Search:
    """The most calls that are sustained: double until it fails, then halve the gap down to a tenth."""
    steps: list[Measurement] = []
    best: Measurement | None = None
    failed: int | None = None
    calls: int | None = first
    while calls is not None:
        result = _undisturbed(measure, calls, tell)
        steps.append(result)
        if result.sustained:
            best = result
        else:
            failed = calls
        calls = next_step(best.calls if best is not None else 0, failed)
    return Search(steps, best)


def next_step(held: int, failed: int | None) -> int | None:
    """How many calls to try next; None when the answer is near enough."""
    if failed is None:
        return held * 2
    if failed - held <= max(held // 10, 5):
        return None
    middle = (held + failed) // 2
    return middle - middle % 5 if middle >= 20 else middle


def compare(measure: Callable[[Variant], Measurement], pair: Pair, *, tell: Tell) -> tuple[Measurement, Measurement]:
    """
    The same load on each of a pair, in turn; the best of a few runs each.

    What else happens on the machine only ever adds delay. It takes away CPU time, too: a starved gateway finds its
    work in heaps and looks cheap, so that the cheaper run is not the better one.
    """
    runs: list[Measurement] = []
    for variant in pair * _ROUNDS:
        runs.append(measure(variant))
        tell(summary(runs[-1]))
    return _best(runs[::2]), _best(runs[1::2])


def _best(runs: Sequence[Measurement]) -> Measurement:
    return min(runs, key=lambda run: run.slower_p99_ms)


def _undisturbed(measure: Measure, calls: int, tell: Tell) -> Measurement:
    """One result; a bad one that may be the machine's fault is tried once more."""
    result = measure(calls)
    tell(summary(result))
    if not result.sustained and result.disturbed:
        tell("disturbed, once more")
        result = measure(calls)
        tell(summary(result))
    return result


def summary(result: Measurement) -> str:
    """A run in one line."""
    verdict = "held" if result.sustained else "not held"
    up, down = result.delay_up.p99_ms, result.delay_down.p99_ms
    line = f"{result.calls} calls ({result.variant}): {verdict}, p99 {up:.1f} ms up, {down:.1f} ms down"
    return "; ".join([f"{line}, {result.frames.lost} frames lost, {result.connected} up", *result.disturbances])


async def _measure(calls: int, seconds: float, variant: Variant, core: int) -> Measurement:
    load = Load(calls)
    async with await start_engine(lambda number: load.calls[number]) as engine:
        engine_url = f"ws://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        async with running_gateway(engine_url, variant, core=core) as process, client(process.url) as http:
            return await _run(load, process, http, seconds, variant)


async def _run(
    load: Load, process: GatewayProcess, http: httpx.AsyncClient, seconds: float, variant: Variant
) -> Measurement:
    idle_bytes = process.resident_bytes()
    await load.place(http)
    await asyncio.sleep(_SETTLE_SECONDS)
    watchers = Watchers()
    async with watchers.watching(http) if variant.watched else contextlib.nullcontext():
        before = _Usage.of(process, load)
        lag = await load.measure(http, seconds)
        used = _Usage.of(process, load).since(before)
    grown_bytes = process.resident_bytes() - idle_bytes
    connected, calls = load.connected, len(load.calls)
    documents = await load.hang_up_some(http, variant.document_seconds)
    frames = await load.finish()
    return Measurement(
        variant=variant.name,
        calls=calls,
        connected=connected,
        replaced=len(load.past),
        seconds=seconds,
        delay_up=Spread.of_ns(load.up.values_ns),
        delay_down=Spread.of_ns(load.down.values_ns),
        start_to_settings=load.start_to_settings(),
        hangup_to_document=documents,
        words_to_watcher=Spread.of_ns(watchers.told_after_ns),
        cpu_ms_per_call_second=round(used.cpu_seconds * 1000 / calls / used.seconds, 2),
        memory_kib_per_call=round(grown_bytes / 1024 / calls, 1),
        turns_per_second=round(used.turns / used.seconds, 1),
        disk_kib_per_second=round(used.written_bytes / 1024 / used.seconds, 1),
        frames=frames,
        generator_lag=lag,
        core_taken=round(used.waited_seconds / used.seconds, 3),
    )
