"""Detects keypad tones in the audio: a recogniser would take them for words."""

from typing import Final

import numpy as np

from gateway.speech.samples import RATE, Samples

_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_DEVIATIONS: Final = (0.988, 1.0, 1.012)
"""A telephone's tones may be off by 1.5 %."""
_SHARE: Final = 0.5
"""Of a frame's energy in one row and one column. Speech spreads over more; a short tone fills half a frame."""
_TWIST: Final = 8.0  # how much stronger one of the two tones may be, in energy
_MIN_ENERGY: Final = 1e-5  # mean square; about -50 dB


class DtmfFilter:
    """Classifies frames of one length."""

    def __init__(self, frame_samples: int) -> None:
        at = np.arange(frame_samples) / RATE
        frequencies = np.outer(_ROWS + _COLUMNS, _DEVIATIONS).ravel()
        waves = np.exp(-2j * np.pi * frequencies[:, None] * at[None, :])
        self._waves = (waves * np.sqrt(2) / frame_samples).astype(np.complex64)

    def is_tone(self, frame: Samples) -> bool:
        energy = float(np.dot(frame, frame)) / len(frame)
        if energy < _MIN_ENERGY:
            return False
        strengths = np.abs(self._waves @ frame) ** 2
        row, column = float(strengths[:12].max()), float(strengths[12:].max())
        return row + column > _SHARE * energy and max(row, column) < _TWIST * min(row, column)
