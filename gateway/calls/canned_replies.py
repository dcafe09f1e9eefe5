"""
Answers of our own that the engine fetches like any other: where it asks us what the agent says.

It asks before it tells us what the caller said, and perhaps for half of it. So whoever asks for what may be ours waits
until the turn is final.
"""

import asyncio
import contextlib
import re
from typing import Final

FINAL_SECONDS: Final = 3.0
"""Who asked for a turn that has not become final by then gets an answer from the language model."""
FETCH_SECONDS: Final = 0.3
"""An answer that nobody has asked for by then will not be asked for here."""


class CannedReplies:
    """One call's. Used on the loop."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[str]] = {}
        self._final = ""
        self._fetched = asyncio.Event()

    # The call's side

    def caller_speaks(self) -> None:
        """What was answered before is of no use for what comes."""
        self._final = ""
        self._drop(answered=True)

    def turn_is_final(self, said: str, *, ours: bool) -> None:
        """The caller said exactly this. `ours`: an answer of ours follows."""
        self._final = _key(said) if ours else ""
        self._fetched.clear()
        self._drop(answered=False)
        if ours:
            self._future(self._final)

    async def give(self, said: str, text: str) -> bool:
        """The answer to it. Whether somebody has fetched it, or does so in a moment."""
        reply = self._future(_key(said))
        if not reply.done():
            reply.set_result(text)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCH_SECONDS):
                await self._fetched.wait()
        return self._fetched.is_set()

    # The thinker's side

    def expects(self, said: str) -> bool:
        return _key(said) == self._final

    async def to(self, said: str) -> str:
        """Our answer to these words; empty where there is none after all."""
        reply = self._future(_key(said))
        if not self.expects(said):
            await asyncio.wait({reply}, timeout=FINAL_SECONDS)
        if not (reply.done() or self.expects(said)):
            return ""
        text = await asyncio.shield(reply)
        if text:
            self._fetched.set()
        return text

    def _future(self, key: str) -> "asyncio.Future[str]":
        return self._asked.setdefault(key, asyncio.get_running_loop().create_future())

    def _drop(self, *, answered: bool) -> None:
        """Those for other words; and where told so, those that have their answer."""
        for key, reply in list(self._asked.items()):
            if reply.done() and answered:
                del self._asked[key]
            elif not reply.done() and not answered and key != self._final:
                reply.set_result("")
                del self._asked[key]


def _key(said: str) -> str:
    """The words alone: the engine's two ways to tell them may differ in punctuation."""
    return " ".join(re.findall(r"\w+", said.casefold()))
