"""Which moments count."""

import asyncio
import contextlib
import os
import time

from gateway.bench.interference import Interference
from gateway.bench.processes import GatewayProcess

HERE = GatewayProcess(os.getpid(), "", min(os.sched_getaffinity(0)))


def test_what_overlaps_a_foul_span_does_not_count():
    weather = Interference(HERE)
    weather.was_foul(100, 200)
    weather.was_foul(150, 300)
    weather.was_foul(160, 170)
    weather.was_foul(500, 600)

    clear = [(0, 99), (301, 499), (601, 10_000)]
    foul = [(0, 100), (120, 130), (250, 260), (290, 400), (400, 700), (600, 900)]
    assert all(weather.was_clear(*span) for span in clear)
    assert not any(weather.was_clear(*span) for span in foul)


async def test_an_event_loop_that_was_held_up_is_foul_weather():
    weather = Interference(HERE)
    watching = asyncio.get_running_loop().create_task(weather.watch())
    await asyncio.sleep(0.02)

    before_ns = time.monotonic_ns()
    time.sleep(0.05)  # noqa: ASYNC251  holding up the loop is the test
    after_ns = time.monotonic_ns()
    await asyncio.sleep(0.02)

    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert not weather.was_clear(before_ns, after_ns)
