"""Saying goodbye: the agent wishes to hang up, and the caller shall hear its last words first."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

FAREWELL_SECONDS: Final = 10.0
"""At most, from the agent's wish to hang up until we do."""
FAREWELL_STARTS_SECONDS: Final = 3.0
"""An agent that has said nothing more by then said its goodbye before."""


class GracefulHangup:
    """The end of a call by its agent. The agent may take its wish back; so may, once, a caller who goes on talking."""

    def __init__(self, tasks: asyncio.TaskGroup, everything_played: Callable[[], Awaitable[None]]) -> None:
        self._tasks = tasks
        self._everything_played = everything_played
        self._begun = asyncio.Event()
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wish = ""
        self._memory_commands = 0

    def wished(self, wish: str, then: Callable[[], None]) -> None:
        """The agent asked to hang up. `then` is called when its farewell has been played; asked again, once."""
        if self._task is None:
            self._begun.clear()
            self._done.clear()
            self._wish = wish
            self._memory_commands += 1
            self._task = self._tasks.create_task(self._say_goodbye(then), name="goodbye")

    def sound_began(self) -> None:
        self._begun.set()

    def sound_done(self) -> None:
        self._done.set()

    def taken_back(self, memory_commands: tuple[str, ...]) -> None:
        if self._wish in memory_commands:
            self.cancel()

    def caller_went_on(self) -> None:
        """Somebody who goes on talking has not finished. The second time, the agent is believed."""
        if self._memory_commands == 1:
            self.cancel()

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _say_goodbye(self, then: Callable[[], None]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                if await wait_for_event(self._begun, FAREWELL_STARTS_SECONDS):
                    await self._done.wait()
                await self._everything_played()
        then()


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Whether it happens within so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # wait_for would swallow a cancellation that comes with the event
            await event.wait()
    return event.is_set()
