"""Telephone audio as arrays of samples between -1 and 1, and resampling from and to its 8 kHz."""

import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gateway.audio import linear_to_mulaw, mulaw_to_linear

Samples = NDArray[np.float32]

RATE: Final = 8000
_TAPS_PER_PHASE: Final = 48
"""Length of the low-pass filter per unit of the ratio: a transition band of about 200 Hz below 4 kHz."""
_CUTOFF: Final = 0.94  # of half the lower rate
_SILENCE: Final = 0.004  # below -48 dB

_LINEAR: Final = (np.array([mulaw_to_linear(byte) for byte in range(256)]) / 32768).astype(np.float32)


def decode(mulaw: bytes) -> Samples:
    samples: Samples = _LINEAR[np.frombuffer(mulaw, np.uint8)]
    return samples


def encode(samples: Samples) -> bytes:
    values = np.clip(samples * 32767, -32768, 32767).astype(np.int32)
    return _mulaw()[values + 32768].tobytes()


def downsample(samples: Samples, ratio: int) -> Samples:
    narrow: Samples = np.convolve(samples, _low_pass(ratio), mode="same")[::ratio].astype(np.float32)
    return narrow


def upsample(samples: Samples, ratio: int) -> Samples:
    spread = np.zeros(len(samples) * ratio, np.float32)
    spread[::ratio] = samples * ratio
    wide: Samples = np.convolve(spread, _low_pass(ratio), mode="same").astype(np.float32)
    return wide


def resample(samples: Samples, rate: int) -> Samples:
    """From any rate to RATE."""
    if rate % RATE == 0:
        return downsample(samples, rate // RATE) if rate > RATE else samples
    # Other ratios: interpolate linearly, after a low-pass filter.
    if rate > RATE:
        at = np.arange(-_TAPS_PER_PHASE * 2, _TAPS_PER_PHASE * 2 + 1)
        taps = np.sinc(at * _CUTOFF * RATE / rate) * np.kaiser(len(at), 8.0)
        samples = np.convolve(samples, taps / taps.sum(), mode="same").astype(np.float32)
    places = np.arange(int(len(samples) * RATE / rate)) * (rate / RATE)
    read: Samples = np.interp(places, np.arange(len(samples)), samples).astype(np.float32)
    return read


def trim(samples: Samples, *, before: float, after: float) -> Samples:
    """Shorten the silence at both ends to at most these seconds."""
    (loud,) = np.nonzero(np.abs(samples) > _SILENCE)
    if not len(loud):
        return samples[:0]
    start, end = int(loud[0]) - int(before * RATE), int(loud[-1]) + int(after * RATE)
    return samples[max(0, start) : end]


@functools.cache
def _mulaw() -> NDArray[np.uint8]:
    return np.array([linear_to_mulaw(value) for value in range(-32768, 32768)], np.uint8)


@functools.cache
def _low_pass(ratio: int) -> Samples:
    """A windowed sinc that passes the frequencies of the lower rate."""
    half = _TAPS_PER_PHASE * ratio // 2
    at = np.arange(-half, half + 1)
    taps = np.sinc(at * _CUTOFF / ratio) * np.kaiser(len(at), 8.0)
    low_pass: Samples = (taps / taps.sum()).astype(np.float32)
    return low_pass
