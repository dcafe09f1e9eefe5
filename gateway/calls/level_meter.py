"""
How loud both sides of each call are, for whoever watches. Measured only while somebody does, and kept nowhere.

Nodes show each other their levels on the board, as long as one of them says that somebody wants to see them.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import orjson

from gateway.audio import BYTES_PER_SECOND
from gateway.cluster.store import SharedStore
from gateway.errors import SharedStoreUnavailable

SHOW_SECONDS: Final = 0.2
ASK_SECONDS: Final = 1.0
"""How often a node looks whether another one has somebody who watches."""
WANTED_SECONDS: Final = 3.0
STALE_SECONDS: Final = 1.0

_STRETCH_BYTES: Final = BYTES_PER_SECOND // 10
# A mu-law code without its sign grows with the logarithm of the sound, as loudness does.
_LOUDNESS: Final = bytes(~sample & 0x7F for sample in range(256))
_LOUDEST: Final = 127
_EVERY: Final = 8  # samples: enough to see who speaks, and next to nothing for two hundred calls
_WANTED: Final = "levels-wanted"


class LevelMeter:
    """One call's two sides, each from 0 to 1. The agent's sound comes in advance and counts when it is played."""

    def __init__(self) -> None:
        self._heard = 0
        self._stretches: deque[tuple[float, int]] = deque()  # until when it plays, and its peak

    def heard(self, audio: bytes) -> None:
        self._heard = max(self._heard, _peak(audio))

    def sent(self, audio: bytes, now: float) -> None:
        begins = max(now, self._stretches[-1][0] if self._stretches else 0.0)
        for start in range(0, len(audio), _STRETCH_BYTES):
            stretch = audio[start : start + _STRETCH_BYTES]
            begins += len(stretch) / BYTES_PER_SECOND
            self._stretches.append((begins, _peak(stretch)))

    def cleared(self) -> None:
        self._stretches.clear()

    def read(self, now: float) -> tuple[float, float]:
        """The caller's and the agent's peak since the last time."""
        heard, self._heard = self._heard, 0
        peak = 0
        while self._stretches:
            until, loudness = self._stretches[0]
            peak = max(peak, loudness)
            if until > now:
                break
            self._stretches.popleft()
        return round(heard / _LOUDEST, 2), round(peak / _LOUDEST, 2)


def _peak(audio: bytes) -> int:
    return max(audio[::_EVERY].translate(_LOUDNESS), default=0)


class Metered(Protocol):
    """One call's sound, which is measured from the first time on."""

    def levels(self, now: float) -> tuple[float, float]: ...
    def stop_measuring(self) -> None: ...


class LevelMeters:
    """The levels of this node's calls and, where there is a board, of all nodes'."""

    def __init__(
        self,
        shared_store: SharedStore | None = None,
        *,
        node: str = "",
        nodes: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._shared_store = shared_store
        self._node = node
        self._nodes = nodes
        self._watchers = 0
        self._wanted_elsewhere = False
        self._own: list[dict[str, Any]] = []
        self._others: list[dict[str, Any]] = []
        self._measures = False
        self._measured_at = -math.inf

    @property
    def wanted(self) -> bool:
        return self._watchers > 0 or self._wanted_elsewhere

    def measure(self, calls: Iterable[tuple[str, Metered]], now: float) -> None:
        """Show the levels of this node's calls, each with its session, while somebody watches."""
        if self.wanted and now >= self._measured_at + SHOW_SECONDS:
            self._measured_at, self._measures = now, True
            levels = [(session_id, *call.levels(now)) for session_id, call in calls]
            self.show([{"session": id_, "caller": caller, "agent": agent} for id_, caller, agent in levels])
        elif self._measures and not self.wanted:
            self._measures = False
            self.show([])
            for _, call in calls:
                call.stop_measuring()

    def show(self, levels: list[dict[str, Any]]) -> None:
        """This node's calls: `session`, `caller` and `agent` each."""
        self._own = levels

    @property
    def all(self) -> list[dict[str, Any]]:
        return self._own + self._others

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Somebody watches while the block runs."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    async def run(self) -> None:
        """Until cancelled: show other nodes what they want to see, and look at theirs."""
        while self._shared_store is not None:
            try:
                await self._exchange(self._shared_store)
            except SharedStoreUnavailable:
                self._wanted_elsewhere, self._others = False, []
            await asyncio.sleep(SHOW_SECONDS if self.wanted else ASK_SECONDS)

    async def _exchange(self, shared_store: SharedStore) -> None:
        if self._watchers:
            await shared_store.put(_WANTED, self._node.encode(), WANTED_SECONDS)
            found = [await shared_store.get(_name(node)) for node in self._nodes() if node != self._node]
            self._others = [level for stored in found if stored for level in orjson.loads(stored)]
        wanted_by = await shared_store.get(_WANTED)
        self._wanted_elsewhere = wanted_by is not None and wanted_by.decode() != self._node
        if self._wanted_elsewhere:
            await shared_store.put(_name(self._node), orjson.dumps(self._own), STALE_SECONDS)


def _name(node: str) -> str:
    return f"levels:{node}"
