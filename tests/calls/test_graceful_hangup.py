import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.calls.graceful_hangup import GracefulHangup
from tests.stage import until


class Goodbye:
    """A farewell in a call that has nothing else to do."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.played = asyncio.Event()
        self.hangups = 0
        self.graceful_hangup = GracefulHangup(tasks, self._everything_played)

    async def _everything_played(self) -> None:
        await self.played.wait()

    def hang_up(self) -> None:
        self.hangups += 1


@pytest.fixture
async def goodbye() -> AsyncIterator[Goodbye]:
    async with asyncio.TaskGroup() as tasks:
        goodbye = Goodbye(tasks)
        yield goodbye
        goodbye.graceful_hangup.cancel()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_hangup_waits_for_the_last_sound(goodbye: Goodbye) -> None:
    goodbye.graceful_hangup.wished("f1", goodbye.hang_up)
    goodbye.graceful_hangup.sound_began()
    goodbye.played.set()
    await settle()
    assert goodbye.hangups == 0
    goodbye.graceful_hangup.sound_done()
    await until(lambda: goodbye.hangups == 1)


async def test_wish_said_twice_is_one(goodbye: Goodbye) -> None:
    goodbye.played.set()
    for _ in range(2):
        goodbye.graceful_hangup.wished("f1", goodbye.hang_up)
    goodbye.graceful_hangup.sound_began()
    goodbye.graceful_hangup.sound_done()
    await until(lambda: goodbye.hangups == 1)
    await settle()
    assert goodbye.hangups == 1


async def test_wish_taken_back_is_none(goodbye: Goodbye) -> None:
    goodbye.played.set()
    goodbye.graceful_hangup.wished("f1", goodbye.hang_up)
    goodbye.graceful_hangup.taken_back(("f0",))
    goodbye.graceful_hangup.taken_back(("f1",))
    goodbye.graceful_hangup.sound_began()
    goodbye.graceful_hangup.sound_done()
    await settle()
    assert goodbye.hangups == 0


async def test_caller_may_go_on_once(goodbye: Goodbye) -> None:
    goodbye.played.set()
    goodbye.graceful_hangup.wished("f1", goodbye.hang_up)
    goodbye.graceful_hangup.caller_went_on()
    goodbye.graceful_hangup.wished("f2", goodbye.hang_up)
    goodbye.graceful_hangup.caller_went_on()
    goodbye.graceful_hangup.sound_began()
    goodbye.graceful_hangup.sound_done()
    await until(lambda: goodbye.hangups == 1)
