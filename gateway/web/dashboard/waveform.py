"""
Loudness of audio samples, and where speech starts and ends.

Imports numpy, which takes a while: import this module lazily, in a thread.
"""

from typing import Any, Final

import numpy as np

from gateway.audio import BYTES_PER_SECOND, mulaw_to_linear

_FRAME: Final = BYTES_PER_SECOND // 50
_SPEECH_LEVEL: Final = 500
"""Mean amplitude of a 20 ms frame, of 32767, above which it is speech and not line noise."""
_MAX_PAUSE: Final = 0.45
_MIN_SPEECH: Final = 0.12
_LINEAR: Final = np.array([mulaw_to_linear(byte) for byte in range(256)], dtype="<i2")


def stereo(left: bytes, right: bytes) -> bytes:
    """Interleave two mu-law channels of equal length as 16-bit samples."""
    voices = np.stack([np.frombuffer(voice, np.uint8) for voice in (left, right)], axis=1)
    return _LINEAR[voices].tobytes()


def _loudness(voice: bytes, frame: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    whole = len(voice) // frame * frame
    samples = np.abs(_LINEAR[np.frombuffer(voice[:whole], np.uint8)].astype(np.int32))
    loudness: np.ndarray[Any, np.dtype[np.float64]] = samples.reshape(-1, frame).mean(axis=1)
    return loudness


def peaks(voice: bytes, count: int) -> list[float]:
    loudness = _loudness(voice, max(len(voice) // count, 1))[:count] if voice else np.zeros(0)
    top = max(float(loudness.max(initial=0.0)), 1000.0)  # keeps a silent line flat
    return [round(float(value) / top, 3) for value in np.sqrt(loudness / top) * top]


def spoken(voice: bytes) -> list[tuple[float, float]]:
    """Spans of loud frames. Short pauses belong to speech; clicks do not."""
    if not voice:
        return []
    found: list[list[float]] = []
    for index in np.flatnonzero(_loudness(voice, _FRAME) > _SPEECH_LEVEL):
        start, end = int(index) / 50, (int(index) + 1) / 50
        if found and start - found[-1][1] <= _MAX_PAUSE:
            found[-1][1] = end
        else:
            found.append([start, end])
    return [(start, end) for start, end in found if end - start >= _MIN_SPEECH]
