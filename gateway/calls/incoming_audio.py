"""The caller's audio on its way to the engine."""

import asyncio
from collections.abc import Callable

from gateway.calls.monitoring import CallMonitor


class IncomingAudio:
    """
    Passes each frame on, and knows the last one.

    The only part of a call that is used for every frame of the caller: what the frames of hundreds of calls touch has
    to fit into the CPU's cache. So it is small, and has slots.
    """

    __slots__ = ("_loop", "_monitor", "heard_at", "last_frame", "send")

    def __init__(self, monitor: CallMonitor) -> None:
        self._loop = asyncio.get_running_loop()
        self._monitor = monitor
        self.heard_at = self._loop.time()
        """When the last frame came."""
        self.last_frame = b""
        self.send: Callable[[bytes], None] = drop
        """Where frames go: the engine connection replaces it."""

    def pass_on(self, audio: bytes) -> None:
        self.heard_at = self._loop.time()
        self.last_frame = audio
        self.send(audio)
        if self._monitor.listeners:
            self._monitor.caller_audio(audio)


def drop(audio: bytes) -> None:
    """Nothing takes the audio."""
