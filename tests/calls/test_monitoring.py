import asyncio
from pathlib import Path

import pytest

from gateway.audio import SILENCE_FRAME
from gateway.calls.monitoring import LATEST_BYTES, SHOW_SECONDS, AudioTap, CallMonitor, LevelMeter, LevelMeters
from gateway.cluster.store import NoSharedStore
from tests.fakes.shared_store import FakeSharedStore
from tests.stage import until

LOUD = bytes([0x80]) * 160


def test_first_read_starts_measuring():
    monitor = CallMonitor()
    monitor.caller_audio(LOUD)
    assert monitor.levels(0.0) == (0.0, 0.0)
    monitor.caller_audio(LOUD)
    monitor.agent_audio(LOUD, 0.0)
    assert monitor.levels(0.01) == (1.0, 1.0)


def test_measuring_stops():
    monitor = CallMonitor()
    monitor.levels(0.0)
    monitor.caller_audio(LOUD)
    monitor.stop_measuring()
    assert monitor.levels(0.1) == (0.0, 0.0)


def test_listeners_hear_both_until_they_go():
    monitor = CallMonitor()
    with monitor.tapped() as first, monitor.tapped() as second:
        monitor.caller_audio(LOUD)
        monitor.agent_audio(SILENCE_FRAME, 0.0)
        assert first.take(160) == second.take(160) == (LOUD, SILENCE_FRAME)
    monitor.caller_audio(LOUD)
    assert first.take(160) == (SILENCE_FRAME, SILENCE_FRAME)


def test_interrupted_answer_is_not_played_to_listeners():
    monitor = CallMonitor()
    monitor.levels(0.0)
    with monitor.tapped() as tap:
        monitor.agent_audio(LOUD * 50, 0.0)
        monitor.clear()
        assert tap.take(160)[1] == SILENCE_FRAME
    assert monitor.levels(0.2) == (0.0, 0.0)


def test_silence_has_no_level() -> None:
    meter = LevelMeter()
    meter.caller_audio(SILENCE_FRAME)
    meter.agent_audio(SILENCE_FRAME, 0.0)
    assert meter.read(0.01) == (0.0, 0.0)


def test_peak_counts_once() -> None:
    meter = LevelMeter()
    meter.caller_audio(SILENCE_FRAME)
    meter.caller_audio(LOUD)
    assert meter.read(0.0) == (1.0, 0.0)
    assert meter.read(0.2) == (0.0, 0.0)


def test_agent_is_loud_while_it_plays() -> None:
    """The engine sends faster than the phone plays."""
    meter = LevelMeter()
    meter.agent_audio(LOUD * 50, 0.0)
    assert [meter.read(now)[1] for now in (0.2, 0.8, 1.0, 1.2)] == [1.0, 1.0, 1.0, 0.0]


def test_cleared_sound_is_silent() -> None:
    meter = LevelMeter()
    meter.agent_audio(LOUD * 50, 0.0)
    meter.clear()
    assert meter.read(0.2) == (0.0, 0.0)


class MeteredCall:
    """A call with fixed levels."""

    def __init__(self) -> None:
        self.read_at: list[float] = []
        self.stopped = 0

    def levels(self, now: float) -> tuple[float, float]:
        self.read_at.append(now)
        return 0.5, 0.25

    def stop_measuring(self) -> None:
        self.stopped += 1


async def test_calls_are_measured_while_watched() -> None:
    levels, call = LevelMeters(NoSharedStore(), node="", nodes=list), MeteredCall()
    levels.measure([("s", call)], 1.0)
    async with levels.watched():
        for now in (2.0, 2.0 + SHOW_SECONDS):
            levels.measure([("s", call)], now)
        assert levels.all == [{"session": "s", "caller": 0.5, "agent": 0.25}]
    assert call.read_at == [2.0, 2.0 + SHOW_SECONDS]
    levels.measure([("s", call)], 3.0)
    levels.measure([("s", call)], 4.0)
    assert (levels.all, call.stopped) == ([], 1)


@pytest.mark.virtual_time
async def test_levels_are_measured_often() -> None:
    levels, call = LevelMeters(NoSharedStore(), node="", nodes=list), MeteredCall()
    async with levels.watched():
        measuring = asyncio.create_task(levels.measure_often(lambda: [("s", call)]))
        await asyncio.sleep(1.05)
        measuring.cancel()
    assert len(call.read_at) == 1 + round(1 / SHOW_SECONDS)


async def test_nodes_see_each_others_levels(tmp_path: Path) -> None:
    shared_store = FakeSharedStore()
    first, second = [LevelMeters(shared_store, node=name, nodes=lambda: ["a", "b"]) for name in ("a", "b")]
    running = [asyncio.create_task(levels.run()) for levels in (first, second)]
    async with first.watched():
        await until(lambda: second.wanted)
        second.measure([("s", MeteredCall())], 1.0)
        await until(lambda: first.all == [{"session": "s", "caller": 0.5, "agent": 0.25}])
    await until(lambda: not second.wanted)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await shared_store.close()


def test_tap_follows_playout():
    tap = AudioTap()
    tap.agent_audio(b"\x01" * 300, 0.0)
    tap.caller_audio(b"\x02" * 100)
    assert tap.take(200) == (b"\x02" * 100 + b"\xff" * 100, b"\x01" * 200)
    tap.clear()
    assert tap.take(10) == (b"\xff" * 10, b"\xff" * 10)


@pytest.mark.parametrize("times", [1, 5])
def test_slow_listener_misses_the_oldest_audio(times):
    tap = AudioTap()
    for _ in range(times):
        tap.caller_audio(b"\x02" * LATEST_BYTES)
    tap.caller_audio(b"\x03")
    caller, _ = tap.take(LATEST_BYTES + 10)
    assert caller.rstrip(b"\xff") == b"\x02" * (LATEST_BYTES - 1) + b"\x03"
