import asyncio
from pathlib import Path

from gateway.audio import SILENCE_FRAME
from gateway.calls.levels import LevelMeter, Levels
from gateway.calls.nodes.file_board import FileBoard
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


async def test_nodes_see_each_others_levels(tmp_path: Path) -> None:
    board = await FileBoard.open(tmp_path / "board.db")
    first, second = [Levels(board, node=name, nodes=lambda: ["a", "b"]) for name in ("a", "b")]
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
    await board.close()
