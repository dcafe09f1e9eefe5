"""
Reduces steady noise (street, fans, hiss) in a segment before it is recognised.

A Wiener filter: each frequency is attenuated where its level is near that of the noise, which is estimated from the
quietest parts of the segment. A quiet line is left as it is, and nothing is attenuated by more than 6 dB: distortion
would cost more words than it saves (docs/performance.md).
"""

from typing import Final

import numpy as np

from gateway.speech.samples import Samples

_WINDOW: Final = 256
_HOP: Final = 64
_QUIETEST: Final = 0.1
"""The share of frames that have nothing but noise in a frequency."""
_BIAS: Final = 1.6
"""How far the noise is above the estimate, on average."""
_SMOOTHED_FRAMES: Final = 5
_QUIET_LINE: Final = 10 ** (25 / 10)
"""Speech this much stronger than the noise needs no reduction. Noise 10 dB below the speech is at 10 to 18 dB here."""
_LEAST_GAIN: Final = 0.5
_WEIGHT: Final = np.sqrt(np.hanning(_WINDOW + 1)[:-1]).astype(np.float32)


def reduce_noise(samples: Samples) -> Samples:
    if len(samples) < 2 * _WINDOW:
        return samples
    padded = np.pad(samples, (_WINDOW, _WINDOW + -len(samples) % _HOP))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP]
    spectrum = np.fft.rfft(frames * _WEIGHT)
    edges = ((_SMOOTHED_FRAMES // 2, _SMOOTHED_FRAMES // 2), (0, 0))
    neighbours = np.pad(np.abs(spectrum) ** 2, edges, mode="edge")
    power = np.lib.stride_tricks.sliding_window_view(neighbours, _SMOOTHED_FRAMES, axis=0).mean(axis=-1)
    inside = power[_WINDOW // _HOP : -_WINDOW // _HOP]  # without the padding
    noise = np.quantile(inside, _QUIETEST, axis=0) * _BIAS
    if np.quantile(inside.sum(axis=1), 1 - _QUIETEST) >= _QUIET_LINE * noise.sum():
        return samples
    gain = np.maximum(1 - noise / np.maximum(power, 1e-12), _LEAST_GAIN)
    parts = np.fft.irfft(spectrum * gain, _WINDOW) * _WEIGHT
    mixed = np.zeros(len(padded) + _WINDOW, np.float32)
    for part in range(0, _WINDOW, _HOP):  # overlap and add
        mixed[part : part + len(parts) * _HOP] += parts[:, part : part + _HOP].ravel()
    overlap = float(np.sum(_WEIGHT**2)) / _HOP
    return (mixed[_WINDOW : _WINDOW + len(samples)] / overlap).astype(np.float32)
