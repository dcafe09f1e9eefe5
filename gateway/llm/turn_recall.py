"""What is known and fits what the caller has just said, told to the language model for this one turn."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.errors import StoreError
from gateway.memory.recall import render_known

PATIENCE: Final = 0.05
"""An answer waits no longer for its memory."""
SEARCH_SECONDS: Final = 5.0
BUDGET_TOKENS: Final = 250

_log = logging.getLogger(__name__)

Search = Callable[[str], Awaitable[list[str]]]
"""What fits these words, the best first. May raise StoreError."""


class TurnRecall:
    """
    One call's. Every turn is looked up once; what comes too late for a request is there for the turn's next one.

    Owns one task; `close` ends it.
    """

    def __init__(self, search: Search, *, budget_tokens: int = BUDGET_TOKENS, patience: float = PATIENCE) -> None:
        self._search = search
        self._budget_tokens = budget_tokens
        self._patience = patience
        self._said = ""
        self._looking_up: asyncio.Task[str] | None = None

    async def about(self, said: str) -> str:
        """Quoted text for a prompt; empty where nothing is known, or not yet."""
        if not said.strip():
            return ""
        if self._looking_up is None or said != self._said:
            self.close()
            self._said = said
            self._looking_up = asyncio.get_running_loop().create_task(self._look_up(said), name="turn memory")
        looking_up = self._looking_up
        if not looking_up.done():
            await asyncio.wait({looking_up}, timeout=self._patience)
        return looking_up.result() if looking_up.done() and not looking_up.cancelled() else ""

    def forget(self) -> None:
        """What was found may not be told any more, not even to the same question."""
        self.close()
        self._looking_up = None

    def close(self) -> None:
        if self._looking_up is not None:
            self._looking_up.cancel()

    async def _look_up(self, said: str) -> str:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                known = await self._search(said)
        except (StoreError, TimeoutError) as error:
            _log.warning("memory could not be searched", extra={"error": type(error).__name__})
            return ""
        return render_known(known, budget_tokens=self._budget_tokens)
