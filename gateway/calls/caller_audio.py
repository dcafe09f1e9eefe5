"""
The caller's audio on its way to the engine, and the last voiced frame in it.

Frames are collected, and examined five times a second and at the end of a turn: nothing is computed per frame. A frame
is voiced if it is clearly louder than the quietest and not much quieter than the loudest of the last five seconds. A
slammed door counts as voice; line noise and a carrier's comfort noise do not.
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from typing import Final

from gateway.audio import mulaw_to_linear
from gateway.calls.monitoring import CallMonitor, peak

MAX_FRAMES: Final = 100
"""Frames kept for `CallerVoice`: more than come between two ticks of a busy gateway."""
_EVERY: Final = 4
"""Every fourth sample is examined: 40 of a frame."""
_LOUD_SAMPLES: Final = 3
"""A frame with fewer loud samples is a click."""
_FRAMES: Final = 10
"""Frames that are examined together."""
_LEVELS: Final = 25
"""Levels that the threshold is set by: five seconds, long enough to contain a pause for breath."""
_RENEWED: Final = 5
"""The threshold is set at every fifth examination, once a second."""

# Amplitudes, of 32767.
_QUIETEST_VOICE: Final = 400
"""Quieter sound is not a voice on any line (-38 dB)."""
_LOUDEST_NOISE: Final = 3000
"""Louder sound is not only noise (-21 dB)."""

# Factors.
_ABOVE_NOISE: Final = 4
"""A voice is at least 12 dB above the noise."""
_BELOW_VOICE: Final = 20
"""A voice is at most 26 dB below its loudest sound."""

_KEY_TONE: Final = 0.3
"""A sound that ended at most this many seconds before the carrier reports a key is the key's tone."""

_AMPLITUDE: Final = [abs(mulaw_to_linear(~code & 0x7F)) for code in range(128)]
"""The amplitude for each loudness that `peak` returns."""
_QUIETER: Final = [bytes(sample for sample in range(256) if ~sample & 0x7F < code) for code in range(128)]
"""For each loudness, the quieter samples."""


class IncomingAudio:
    """
    Passes each frame on, and keeps the last ones until `CallerVoice` has examined them.

    Runs for every frame of the caller. It is small and has slots: what the frames of hundreds of calls touch has to fit
    into the CPU's cache.
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


class CallerVoice:
    """The caller's voice in one media stream."""

    def __init__(self, audio: IncomingAudio) -> None:
        self._audio = audio
        self._levels: deque[int] = deque(maxlen=_LEVELS)
        self._examinations = 0
        self._quiet = b""
        """Samples below the threshold."""
        self._voiced_at: float | None = None
        self._voiced_before: float | None = None
        """The last voiced frame before the present sound."""
        self._is_sounding = False
        """Whether the frames that were examined last had a sound in them."""
        self._is_tone = False
        """Whether the present sound is a key's tone."""

    def last_voiced(self) -> float | None:
        """When the last voiced frame came, in loop time; None before the first."""
        self._examine()
        return self._voiced_at

    def tick(self) -> None:
        """Called several times a second."""
        if len(self._audio.frames) >= _FRAMES:
            self._examine()

    def key_pressed(self, now: float) -> None:
        """The carrier reports a key: the present or the last sound is its tone."""
        self._examine()
        if self._voiced_at is not None and now - self._voiced_at < _KEY_TONE:
            self._voiced_at = self._voiced_before
            self._is_tone = self._is_sounding

    def _examine(self) -> None:
        """The frames that came since the last examination."""
        frames, times = self._audio.frames, self._audio.times
        if not frames:
            return
        self._levels.append(peak(frames[-1]))
        self._examinations += 1
        if self._examinations % _RENEWED == 1:
            self._set_threshold()
        voiced_at = None
        if b"".join(frames)[::_EVERY].translate(None, self._quiet):
            for at, frame in zip(reversed(times), reversed(frames), strict=True):
                if len(frame[::_EVERY].translate(None, self._quiet)) >= _LOUD_SAMPLES:
                    voiced_at = at
                    break
        frames.clear()
        times.clear()
        if voiced_at is None:
            self._is_sounding = self._is_tone = False
            return
        if not self._is_sounding:
            self._is_sounding, self._voiced_before = True, self._voiced_at
        if not self._is_tone:
            self._voiced_at = voiced_at

    def _set_threshold(self) -> None:
        noise, loudest = _AMPLITUDE[min(self._levels)], _AMPLITUDE[max(self._levels)]
        wanted = max(_QUIETEST_VOICE, _ABOVE_NOISE * noise, loudest / _BELOW_VOICE)
        self._quiet = _QUIETER[bisect_left(_AMPLITUDE, min(wanted, _LOUDEST_NOISE))]
