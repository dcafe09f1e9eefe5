"""Keypad tones in the sound itself: to a recogniser they would be words."""

from typing import Final

import numpy as np

from gateway.speech.sound import RATE, Samples

_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_SHARE: Final = 0.6
"""Of a frame's energy in one row and one column. Speech spreads over more than that; a telephone's tones may be off by
half a per cent, which costs them a fifth."""
_TWIST: Final = 6.0  # how much stronger one of the two may be, in energy
_QUIETEST: Final = 1e-5  # mean square; about -50 dB


class KeypadTones:
    """Judges frames of one length."""

    def __init__(self, frame_samples: int) -> None:
        at = np.arange(frame_samples) / RATE
        frequencies = np.array(_ROWS + _COLUMNS)
        waves = np.exp(-2j * np.pi * frequencies[:, None] * at[None, :])
        self._waves = (waves * np.sqrt(2) / frame_samples).astype(np.complex64)

    def sound_in(self, frame: Samples) -> bool:
        energy = float(np.dot(frame, frame)) / len(frame)
        if energy < _QUIETEST:
            return False
        strengths = np.abs(self._waves @ frame) ** 2
        row, column = float(strengths[:4].max()), float(strengths[4:].max())
        return row + column > _SHARE * energy and max(row, column) < _TWIST * min(row, column)
