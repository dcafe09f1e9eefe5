"""Synthetic callers for the demo and the benchmark: text to telephone audio."""

from collections.abc import Callable
from typing import Final

import numpy as np

from gateway.audio import FRAME_BYTES
from gateway.speech.models import HibariVoice
from gateway.speech.samples import Samples, downsample, encode, trim

CallerVoice = Callable[[str], bytes]

_LEVEL: Final = 0.5
_PICO_RATIO: Final = 2  # it speaks at 16 kHz
_NOISE_LEVEL: Final = 10 ** (-56 / 20)
"""Noise level of a quiet line, relative to full scale."""


def pico(text: str) -> bytes:
    """SVOX Pico, American English: sounds different from the agent's voice."""
    import py_nanotts

    pcm = py_nanotts.NanoTTS().speak(text, voice="en-US")
    samples = np.frombuffer(pcm, "<i2").astype(np.float32)
    return _telephone(downsample(samples, _PICO_RATIO))


def hibari() -> CallerVoice:
    """The agent's own voice used for a caller. Takes a second to load."""
    return HibariVoice().synthesize


def line_noise(frames: int) -> list[bytes]:
    """Frames of background noise, the same in every run."""
    noise = np.random.default_rng(8000).normal(0, _NOISE_LEVEL, (frames, FRAME_BYTES))
    return [encode(frame) for frame in noise.astype(np.float32)]


def _telephone(samples: Samples) -> bytes:
    loudest = max(float(np.abs(samples).max(initial=0.0)), 1e-6)
    return encode(trim(samples * (_LEVEL / loudest), before=0.0, after=0.0))
