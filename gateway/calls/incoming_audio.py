"""The caller's audio on its way to the engine."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.calls.monitoring import CallMonitor

MAX_FRAMES: Final = 100
"""Frames kept for `CallerVoice`: more than come between two ticks of a busy gateway."""


class IncomingAudio:
    """
    Passes each frame on, and keeps the last ones until `CallerVoice` has examined them.

    The only part of a call that is used for every frame of the caller. It is small and has slots, because what the
    frames of hundreds of calls touch has to fit into the CPU's cache.
    """

    __slots__ = ("_keep", "_keep_time", "_loop", "_monitor", "frames", "heard_at", "send", "times")

    def __init__(self, monitor: CallMonitor) -> None:
        self._loop = asyncio.get_running_loop()
        self._monitor = monitor
        self.heard_at = self._loop.time()
        """When the last frame came."""
        self.frames: deque[bytes] = deque(maxlen=MAX_FRAMES)
        self.times: deque[float] = deque(maxlen=MAX_FRAMES)
        """When each of `frames` came."""
        self._keep, self._keep_time = self.frames.append, self.times.append
        self.send: Callable[[bytes], None] = drop
        """Where frames go: the engine connection replaces it."""

    @property
    def last_frame(self) -> bytes:
        """Empty if none has come since the last examination."""
        return self.frames[-1] if self.frames else b""

    def pass_on(self, audio: bytes) -> None:
        self.heard_at = now = self._loop.time()
        self._keep(audio)
        self._keep_time(now)
        self.send(audio)
        if self._monitor.listeners:
            self._monitor.caller_audio(audio)


def drop(audio: bytes) -> None:
    """Nothing takes the audio."""
