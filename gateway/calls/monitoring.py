"""
Listen-in and level meters: the audio of a live call for people who are not part of it.

The call pushes frames and returns at once. Listeners read at their own pace; late frames are dropped. Levels are
measured only while someone watches, and are never stored.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from gateway.audio import BYTES_PER_SECOND, SILENCE_BYTE
from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable

LATEST_BYTES: Final = BYTES_PER_SECOND * 2
"""Caller audio buffered for a slow listener; the oldest is dropped first."""
_LONGEST_ANSWER: Final = BYTES_PER_SECOND * 60

SHOW_SECONDS: Final = 0.2
ASK_SECONDS: Final = 1.0
"""How often a node checks whether another node has watchers."""
WANTED_SECONDS: Final = 3.0
STALE_SECONDS: Final = 1.0

_WINDOW_BYTES: Final = BYTES_PER_SECOND // 10
# Without its sign bit, a mu-law code grows with the logarithm of the amplitude, as loudness does.
_LOUDNESS: Final = bytes(~sample & 0x7F for sample in range(256))
_LOUDEST: Final = 127
_LOUD: Final = 45  # an amplitude of 800 of 32767: above the noise of a line, below quiet speech
_EVERY: Final = 8  # every eighth sample shows who speaks and costs next to nothing for two hundred calls
_WANTED: Final = "levels-wanted"


class CallMonitor:
    """The taps and the level meter of one call; usually there are none."""

    __slots__ = ("_meter", "listeners")  # used for each frame

    def __init__(self) -> None:
        self._meter: LevelMeter | None = None
        self.listeners: tuple[AudioTap | LevelMeter, ...] = ()
        """While there are none, the call may leave out `caller_audio` and `agent_audio`."""

    # Called by the call

    def caller_audio(self, audio: bytes) -> None:
        for listener in self.listeners:
            listener.caller_audio(audio)

    def agent_audio(self, audio: bytes, now: float) -> None:
        for listener in self.listeners:
            listener.agent_audio(audio, now)

    def clear(self) -> None:
        """Drop agent audio that was sent and not yet played."""
        for listener in self.listeners:
            listener.clear()

    # Called by watchers

    def levels(self, now: float) -> tuple[float, float]:
        """Peak levels of caller and agent since the previous call. The first call starts measuring."""
        if self._meter is None:
            self._meter = LevelMeter()
            self.listeners += (self._meter,)
        return self._meter.read(now)

    def stop_measuring(self) -> None:
        self.listeners = tuple(listener for listener in self.listeners if listener is not self._meter)
        self._meter = None

    @contextlib.contextmanager
    def tapped(self) -> Iterator["AudioTap"]:
        """Listen in while the block runs."""
        tap = AudioTap()
        self.listeners += (tap,)
        try:
            yield tap
        finally:
            self.listeners = tuple(listener for listener in self.listeners if listener is not tap)


class AudioTap:
    """Both voices for one listener. Agent audio arrives ahead of time and is read at playout speed."""

    def __init__(self) -> None:
        self._caller = bytearray()
        self._agent = bytearray()

    def caller_audio(self, audio: bytes) -> None:
        self._caller += audio
        if len(self._caller) > LATEST_BYTES:
            del self._caller[:-LATEST_BYTES]

    def agent_audio(self, audio: bytes, now: float) -> None:
        if len(self._agent) < _LONGEST_ANSWER:
            self._agent += audio

    def clear(self) -> None:
        """Drop the rest of an interrupted answer."""
        self._agent.clear()

    def take(self, size: int) -> tuple[bytes, bytes]:
        """The next `size` bytes of caller and agent, mu-law, padded with silence."""
        return _take(self._caller, size), _take(self._agent, size)


def _take(buffer: bytearray, size: int) -> bytes:
    taken = bytes(buffer[:size])
    del buffer[:size]
    return taken.ljust(size, bytes([SILENCE_BYTE]))


class LevelMeter:
    """Peak levels of caller and agent, 0 to 1. Agent audio arrives ahead of time and counts when it is played."""

    def __init__(self) -> None:
        self._caller_peak = 0
        self._windows: deque[tuple[float, int]] = deque()  # (end of playout, peak)

    def caller_audio(self, audio: bytes) -> None:
        self._caller_peak = max(self._caller_peak, peak(audio))

    def agent_audio(self, audio: bytes, now: float) -> None:
        end = max(now, self._windows[-1][0] if self._windows else 0.0)
        for start in range(0, len(audio), _WINDOW_BYTES):
            window = audio[start : start + _WINDOW_BYTES]
            end += len(window) / BYTES_PER_SECOND
            self._windows.append((end, peak(window)))

    def clear(self) -> None:
        self._windows.clear()

    def read(self, now: float) -> tuple[float, float]:
        """Peaks of caller and agent since the previous call."""
        caller_peak, self._caller_peak = self._caller_peak, 0
        agent_peak = 0
        while self._windows:
            end, peak = self._windows[0]
            agent_peak = max(agent_peak, peak)
            if end > now:
                break
            self._windows.popleft()
        return round(caller_peak / _LOUDEST, 2), round(agent_peak / _LOUDEST, 2)


def is_loud(audio: bytes) -> bool:
    """Whether this frame may be speech."""
    return peak(audio) >= _LOUD


def peak(audio: bytes) -> int:
    """The loudness of a frame, 0 to 127."""
    return max(audio[::_EVERY].translate(_LOUDNESS), default=0)


class LevelMeters:
    """Levels of all live calls of this node, and of all nodes that use the same `shared_store`."""

    def __init__(self, shared_store: ExpiringStore, *, node: str, nodes: Callable[[], Sequence[str]]) -> None:
        self._shared_store = shared_store
        self._node = node
        self._nodes = nodes
        self._watchers = 0
        self._wanted_elsewhere = False
        self._own: list[dict[str, Any]] = []
        self._others: list[dict[str, Any]] = []
        self._measuring = False

    @property
    def wanted(self) -> bool:
        return self._watchers > 0 or self._wanted_elsewhere

    async def measure_often(self, calls: Callable[[], Iterable[tuple[str, CallMonitor]]]) -> None:
        """Measure this node's calls until cancelled."""
        while True:
            if self.wanted or self._measuring:
                self.measure(calls(), asyncio.get_running_loop().time())
            await asyncio.sleep(SHOW_SECONDS)

    def measure(self, calls: Iterable[tuple[str, CallMonitor]], now: float) -> None:
        """Read the levels of this node's calls, given with their session ids, while someone watches."""
        if self.wanted:
            self._measuring = True
            levels = [(session_id, *call.levels(now)) for session_id, call in calls]
            self._own = [{"session": id_, "caller": caller, "agent": agent} for id_, caller, agent in levels]
        elif self._measuring:
            self._measuring = False
            self._own = []
            for _, call in calls:
                call.stop_measuring()

    @property
    def all(self) -> list[dict[str, Any]]:
        return self._own + self._others

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Measure while the block runs."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    async def run(self) -> None:
        """Exchange levels with other nodes until cancelled."""
        while True:
            try:
                if self._watchers:
                    await self._shared_store.put(_WANTED, self._node.encode(), WANTED_SECONDS)
                    others = [node for node in self._nodes() if node != self._node]
                    found = [await self._shared_store.get(_key(node)) for node in others]
                    self._others = [level for stored in found if stored for level in orjson.loads(stored)]
                wanted_by = await self._shared_store.get(_WANTED)
                self._wanted_elsewhere = wanted_by is not None and wanted_by.decode() != self._node
                if self._wanted_elsewhere:
                    await self._shared_store.put(_key(self._node), orjson.dumps(self._own), STALE_SECONDS)
            except SharedStoreUnavailable:
                self._wanted_elsewhere, self._others = False, []
            await asyncio.sleep(SHOW_SECONDS if self.wanted else ASK_SECONDS)


def _key(node: str) -> str:
    return f"levels:{node}"
