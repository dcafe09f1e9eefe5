"""The load generator's pace."""

import asyncio
import itertools

from gateway.audio import FRAME_MS
from gateway.bench.load import Load, Pacer


async def test_load_that_is_late_lets_others_in_between():
    """A late load that sends all due frames at once would read its incoming frames too late."""
    beats: list[int] = []
    pacer = Pacer()
    for slot in range(FRAME_MS):
        pacer.add(lambda: beats.append(1), slot)
    pacer.start()
    pacer._due_ns -= 30_000_000
    seen = [len(beats)]
    while len(beats) < 30:
        await asyncio.sleep(0)
        seen.append(len(beats))
    pacer.stop()
    assert {later - earlier for earlier, later in itertools.pairwise(seen)} <= {0, 1}
    assert max(pacer.lags_ns) >= 29_000_000


async def test_turns_are_spread_and_the_same_in_every_run():
    """Independent of when a call was placed: in step, all turns would come at once."""
    first, second = ([call._phase for call in Load(200).calls] for _ in range(2))
    assert first == second
    tenths = [int(phase * 10) for phase in first]
    assert all(10 <= tenths.count(tenth) <= 32 for tenth in range(10))
