"""One bench run, the search for the highest sustained load, and the comparison of two variants."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import httpx
import uvloop

from gateway.bench.load import Load, client, watching
from gateway.bench.peers import start_engine
from gateway.bench.processes import GatewayProcess, Pair, Variant, reserved_core, running_gateway
from gateway.bench.results import Measurement, Search, Spread

COMPARED_CALLS: Final = 50
_ROUNDS: Final = 3
_SETTLE_SECONDS: Final = 1.5
"""Pause after the last call was placed: call set-up is not part of the measured load."""

Measure = Callable[[int], Measurement]
Progress = Callable[[str], None]


def measure(calls: int, variant: Variant, *, seconds: float) -> Measurement:
    """Run once against a fresh gateway. Raises BenchFailed if calls cannot be placed."""
    with reserved_core() as core, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(calls, seconds, variant, core))


def search(measure: Measure, *, progress: Progress) -> Search:
    """Find the most sustained calls: double until a run fails, then bisect down to a tenth."""
    steps: list[Measurement] = []
    best: Measurement | None = None
    failed: int | None = None
    calls: int | None = 100
    while calls is not None:
        result = measure(calls)
        progress(_summary(result))
        if not result.sustained and result.disturbances:
            progress("disturbed, repeating")
            result = measure(calls)
            progress(_summary(result))
        steps.append(result)
        if result.sustained:
            best = result
        else:
            failed = calls
        calls = _next_step(best.calls if best is not None else 0, failed)
    return Search(steps, best)


def _next_step(held: int, failed: int | None) -> int | None:
    """Number of calls to try next; None when the result is precise enough."""
    if failed is None:
        return held * 2
    if failed - held <= max(held // 10, 5):
        return None
    middle = (held + failed) // 2
    return middle - middle % 5 if middle >= 20 else middle


def compare(
    measure: Callable[[Variant], Measurement], pair: Pair, *, progress: Progress
) -> tuple[Measurement, Measurement]:
    """
    Run the same load on both variants alternately and keep the best run of each.

    Other load on the machine only adds delay, so the run with the lowest delay is the best one. The run with the lowest
    CPU time is not: a starved gateway processes frames in batches and looks cheap.
    """
    runs: list[Measurement] = []
    for variant in pair * _ROUNDS:
        runs.append(measure(variant))
        progress(_summary(runs[-1]))

    def best(runs: Sequence[Measurement]) -> Measurement:
        return min(runs, key=lambda run: run.slower_p99_ms)

    return best(runs[::2]), best(runs[1::2])


def _summary(result: Measurement) -> str:
    """Describe a run in one line."""
    verdict = "sustained" if result.sustained else "not sustained"
    up, down = result.delay_up.p99_ms, result.delay_down.p99_ms
    line = f"{result.calls} calls ({result.variant}): {verdict}, p99 {up:.1f} ms up, {down:.1f} ms down"
    return "; ".join([f"{line}, {result.frames.lost} frames lost, {result.connected} connected", *result.disturbances])


async def _measure(calls: int, seconds: float, variant: Variant, core: int) -> Measurement:
    load = Load(calls)
    async with await start_engine(lambda number: load.calls[number], variant.engine) as engine:
        engine_url = f"ws://127.0.0.1:{engine.sockets[0].getsockname()[1]}"
        async with running_gateway(engine_url, variant, core=core) as process, client(process.url) as http:
            return await _run(load, process, http, seconds, variant)


async def _run(
    load: Load, process: GatewayProcess, http: httpx.AsyncClient, seconds: float, variant: Variant
) -> Measurement:
    def usage() -> tuple[float, float, float, int, int]:
        waited, written = process.waited_seconds(), process.written_bytes()
        return time.monotonic(), process.cpu_seconds(), waited, written, load.turns

    idle_bytes = process.resident_bytes()
    await load.place(http)
    await asyncio.sleep(_SETTLE_SECONDS)
    viewer_delays_ns: list[int] = []
    async with watching(http, viewer_delays_ns) if variant.viewers else contextlib.nullcontext():
        before = usage()
        lag = await load.talk_while(partial(load.measure_delays, http, seconds))
        used = (now - then for now, then in zip(usage(), before, strict=True))
        elapsed, cpu_seconds, waited_seconds, written_bytes, turns = used
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
        words_to_watcher=Spread.of_ns(viewer_delays_ns),
        cpu_ms_per_call_second=round(cpu_seconds * 1000 / calls / elapsed, 2),
        memory_kib_per_call=round(grown_bytes / 1024 / calls, 1),
        turns_per_second=round(turns / elapsed, 1),
        disk_kib_per_second=round(written_bytes / 1024 / elapsed, 1),
        frames=frames,
        generator_lag=lag,
        core_taken=round(waited_seconds / elapsed, 3),
    )
