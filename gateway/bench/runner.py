"""Holds the bench: one run with so many calls, the search for the most, the comparison of both socket shells."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import uvloop

from gateway.bench.engine import start_engine
from gateway.bench.load import Load
from gateway.bench.measures import Measurement, Spread
from gateway.bench.processes import GatewayProcess, cores, pinned, running_gateway

FIRST_CALLS: Final = 100
COMPARED_CALLS: Final = 50
SHELLS: Final = ("picows", "websockets")
_SETTLE_SECONDS: Final = 1.5
"""After the last call was placed: what ringing costs is not what talking costs."""

Measure = Callable[[int], Measurement]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class _Usage:
    """What the gateway has taken of the machine."""

    cpu_seconds: float
    waited_seconds: float

    @classmethod
    def of(cls, process: GatewayProcess) -> "_Usage":
        return cls(process.cpu_seconds(), process.waited_seconds())

    def since(self, before: "_Usage") -> "_Usage":
        return _Usage(self.cpu_seconds - before.cpu_seconds, self.waited_seconds - before.waited_seconds)


@dataclass(frozen=True)
class Search:
    """Every step taken, and the best that held."""

    steps: list[Measurement]
    best: Measurement | None


def measure(calls: int, *, seconds: float, sockets: str) -> Measurement:
    """One run against a fresh gateway. BenchFailed if it can't be held."""
    core, others = cores()
    with pinned(others), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(calls, seconds, sockets, core))


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


def compare(measure: Callable[..., Measurement], calls: int, *, tell: Tell) -> list[Measurement]:
    """
    The same with each of SHELLS, given to `measure` as `sockets`; the better of two runs each, in turn.

    What else happens on the machine only ever makes a run worse.
    """
    runs: list[Measurement] = []
    for shell in SHELLS * 2:
        runs.append(measure(calls, sockets=shell))
        tell(summary(runs[-1]))
    return [min(runs[first :: len(SHELLS)], key=lambda run: run.cpu_ms_per_call_second) for first in range(len(SHELLS))]


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
    line = f"{result.calls} calls ({result.sockets}): {verdict}, p99 {up:.1f} ms up, {down:.1f} ms down"
    return "; ".join([f"{line}, {result.frames.lost} frames lost, {result.connected} up", *result.disturbances])


async def _measure(calls: int, seconds: float, sockets: str, core: int) -> Measurement:
    load = Load(calls)
    async with await start_engine(lambda number: load.calls[number]) as engine:
        engine_url = f"ws://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        async with running_gateway(engine_url, sockets=sockets, core=core) as process:
            return await _run(load, process, seconds, sockets)


async def _run(load: Load, process: GatewayProcess, seconds: float, sockets: str) -> Measurement:
    idle_bytes = process.resident_bytes()
    await load.place(process.url)
    await asyncio.sleep(_SETTLE_SECONDS)
    before = _Usage.of(process)
    lag = await load.measure(seconds)
    used = _Usage.of(process).since(before)
    grown_bytes = process.resident_bytes() - idle_bytes
    connected, calls = load.connected, len(load.calls)
    documents = await load.hang_up_some(process.url)
    frames = await load.finish()
    return Measurement(
        sockets=sockets,
        calls=calls,
        connected=connected,
        seconds=seconds,
        delay_up=Spread.of_ns(load.up.values_ns),
        delay_down=Spread.of_ns(load.down.values_ns),
        start_to_settings=load.start_to_settings(),
        hangup_to_document=documents,
        cpu_ms_per_call_second=round(used.cpu_seconds * 1000 / calls / seconds, 2),
        memory_kib_per_call=round(grown_bytes / 1024 / calls, 1),
        frames=frames,
        generator_lag=lag,
        core_taken=round(used.waited_seconds / seconds, 3),
    )
