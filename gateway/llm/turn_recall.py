"""Memory that fits the caller's last words, for the language model and for this turn only."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from gateway.errors import StoreError
from gateway.memory.recall import render_known

RECALL_SECONDS: Final = 0.05
"""The longest that an answer waits for memory."""
SEARCH_SECONDS: Final = 5.0
BUDGET_TOKENS: Final = 250

_log = logging.getLogger(__name__)

Search = Callable[[str], Awaitable[list[str]]]
"""Returns memory that fits these words, the best first. May raise StoreError."""


class TurnRecaller(Protocol):
    """Memory for the turns of one call."""

    async def about(self, said: str) -> str: ...
    def forget(self) -> None: ...
    def close(self) -> None: ...


class NoRecall:
    """For a call that uses no memory."""

    async def about(self, said: str) -> str:
        return ""

    def forget(self) -> None: ...
    def close(self) -> None: ...


NO_RECALL: Final = NoRecall()


class TurnRecall:
    """
    Searches memory once per turn of one call. A result that is too late for one request serves the turn's next one.

    Owns one task; `close` cancels it.
    """

    def __init__(self, search: Search, *, budget_tokens: int = BUDGET_TOKENS, seconds: float = RECALL_SECONDS) -> None:
        self._search = search
        self._budget_tokens = budget_tokens
        self._seconds = seconds
        self._said = ""
        self._search_task: asyncio.Task[str] | None = None

    async def about(self, said: str) -> str:
        """Quoted text for a prompt; empty if nothing was found, or not yet."""
        if not said.strip():
            return ""
        if self._search_task is None or said != self._said:
            self.close()
            self._said = said
            self._search_task = asyncio.get_running_loop().create_task(self._run_search(said), name="turn memory")
        task = self._search_task
        if not task.done():
            await asyncio.wait({task}, timeout=self._seconds)
        return task.result() if task.done() and not task.cancelled() else ""

    def forget(self) -> None:
        """Drop what was found: it must not be used any more, not even for the same question."""
        self.close()
        self._search_task = None

    def close(self) -> None:
        if self._search_task is not None:
            self._search_task.cancel()

    async def _run_search(self, said: str) -> str:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                known = await self._search(said)
        except (StoreError, TimeoutError) as error:
            _log.warning("memory could not be searched", extra={"error": type(error).__name__})
            return ""
        return render_known(known, budget_tokens=self._budget_tokens)
