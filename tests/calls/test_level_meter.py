import asyncio
from pathlib import Path

from gateway.audio import SILENCE_FRAME
from gateway.calls.level_meter import SHOW_SECONDS, LevelMeter, LevelMeters
from gateway.cluster.file_store import FileStore
from tests.stage import until

LOUD = bytes([0x80]) * 160


def test_silence_has_no_level() -> None:
    meter = LevelMeter()
    meter.heard(SILENCE_FRAME)
    meter.sent(SILENCE_FRAME, 0.0)
    assert meter.read(0.01) == (0.0, 0.0)


def test_peak_counts_once() -> None:
    meter = LevelMeter()
    meter.heard(SILENCE_FRAME)
    meter.heard(LOUD)
    assert meter.read(0.0) == (1.0, 0.0)
    assert meter.read(0.2) == (0.0, 0.0)


def test_agent_is_loud_while_it_plays() -> None:
    """The engine sends faster than the phone plays."""
    meter = LevelMeter()
    meter.sent(LOUD * 50, 0.0)
    assert [meter.read(now)[1] for now in (0.2, 0.8, 1.0, 1.2)] == [1.0, 1.0, 1.0, 0.0]


def test_cleared_sound_is_silent() -> None:
    meter = LevelMeter()
    meter.sent(LOUD * 50, 0.0)
    meter.cleared()
    assert meter.read(0.2) == (0.0, 0.0)


class MeteredCall:
    """A call as loud as it is told to be."""

    def __init__(self) -> None:
        self.read_at: list[float] = []
        self.stopped = 0

    def levels(self, now: float) -> tuple[float, float]:
        self.read_at.append(now)
        return 0.5, 0.25

    def stop_measuring(self) -> None:
        self.stopped += 1


async def test_calls_are_measured_while_somebody_watches() -> None:
    levels, call = LevelMeters(), MeteredCall()
    levels.measure([("s", call)], 1.0)
    async with levels.watched():
        for now in (2.0, 2.0 + SHOW_SECONDS / 2, 2.0 + SHOW_SECONDS):
            levels.measure([("s", call)], now)
        assert levels.all == [{"session": "s", "caller": 0.5, "agent": 0.25}]
    assert call.read_at == [2.0, 2.0 + SHOW_SECONDS]
    levels.measure([("s", call)], 3.0)
    levels.measure([("s", call)], 4.0)
    assert (levels.all, call.stopped) == ([], 1)


async def test_nodes_see_each_others_levels(tmp_path: Path) -> None:
    shared_store = await FileStore.open(tmp_path / "board.db")
    first, second = [LevelMeters(shared_store, node=name, nodes=lambda: ["a", "b"]) for name in ("a", "b")]
    running = [asyncio.create_task(levels.run()) for levels in (first, second)]
    shown = [{"session": "s", "caller": 0.5, "agent": 0.0}]
    async with first.watched():
        await until(lambda: second.wanted)
        second.show(shown)
        await until(lambda: first.all == shown)
    await until(lambda: not second.wanted)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await shared_store.close()
