"""Which moments count."""

import asyncio
import contextlib
import os
import time

from gateway.bench.processes import GatewayProcess
from scripts.llm_bench.interference import Interference

HERE = GatewayProcess(os.getpid(), "", min(os.sched_getaffinity(0)))


def test_what_overlaps_a_disturbed_span_does_not_count():
    interference = Interference(HERE)
    interference.add(100, 200)
    interference.add(150, 300)
    interference.add(160, 170)
    interference.add(500, 600)

    clear = [(0, 99), (301, 499), (601, 10_000)]
    disturbed = [(0, 100), (120, 130), (250, 260), (290, 400), (400, 700), (600, 900)]
    assert all(interference.was_clear(*span) for span in clear)
    assert not any(interference.was_clear(*span) for span in disturbed)


async def test_an_event_loop_that_was_held_up_is_disturbed_interference():
    interference = Interference(HERE)
    watching = asyncio.get_running_loop().create_task(interference.watch())
    await asyncio.sleep(0.02)

    before_ns = time.monotonic_ns()
    time.sleep(0.05)  # noqa: ASYNC251  holding up the loop is the test
    after_ns = time.monotonic_ns()
    await asyncio.sleep(0.02)

    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert not interference.was_clear(before_ns, after_ns)
