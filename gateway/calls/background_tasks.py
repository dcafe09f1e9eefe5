"""Work that comes up between calls, and belongs to none of them."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """Owns the tasks of such work; `under_way` is what a closing desk waits for."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="errand")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return set(self._tasks)
