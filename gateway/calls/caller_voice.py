"""
Finds the caller's last voiced frame.

Frames are collected, and examined five times a second and at the end of a turn: nothing is computed per frame. A frame
is voiced if it is clearly louder than the quietest and not much quieter than the loudest of the last five seconds. A
slammed door counts as voice; line noise and a carrier's comfort noise do not.
"""

from bisect import bisect_left
from collections import deque
from typing import Final

from gateway.audio import mulaw_to_linear
from gateway.calls.incoming_audio import IncomingAudio
from gateway.calls.monitoring import peak

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


class CallerVoice:
    """The caller's voice in one media stream."""

    def __init__(self, audio: IncomingAudio) -> None:
        self._audio = audio
        self._levels: deque[int] = deque(maxlen=_LEVELS)
        self._looks = 0
        self._quiet = b""
        """Samples below the threshold."""
        self._at: float | None = None
        self._before: float | None = None
        """The last voiced frame before the present sound."""
        self._sounds = False
        self._is_tone = False

    @property
    def last_at(self) -> float | None:
        """When the last voiced frame came, in loop time; None before the first."""
        self._look()
        return self._at

    def tick(self) -> None:
        """Called several times a second."""
        if len(self._audio.frames) >= _FRAMES:
            self._look()

    def _look(self) -> None:
        """Examine the frames since the last time."""
        frames, times = self._audio.frames, self._audio.times
        if not frames:
            return
        self._levels.append(peak(frames[-1]))
        self._looks += 1
        if self._looks % _RENEWED == 1:
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
            self._sounds = self._is_tone = False
            return
        if not self._sounds:
            self._sounds, self._before = True, self._at
        if not self._is_tone:
            self._at = voiced_at

    def key_pressed(self, now: float) -> None:
        """The carrier reports a key: the present or the last sound is its tone."""
        self._look()
        if self._at is not None and now - self._at < _KEY_TONE:
            self._at = self._before
            self._is_tone = self._sounds

    def _set_threshold(self) -> None:
        noise, loudest = _AMPLITUDE[min(self._levels)], _AMPLITUDE[max(self._levels)]
        wanted = max(_QUIETEST_VOICE, _ABOVE_NOISE * noise, loudest / _BELOW_VOICE)
        self._quiet = _QUIETER[bisect_left(_AMPLITUDE, min(wanted, _LOUDEST_NOISE))]
