"""Telephone audio: G.711 at 8000 samples a second, one byte a sample; and the bundled sounds."""

from functools import cache
from importlib import resources
from typing import Final

BYTES_PER_SECOND: Final = 8000
FRAME_MS: Final = 20
FRAME_BYTES: Final = 160
SILENCE_BYTE: Final = 0xFF  # mu-law zero; 0x00 would be a loud click
SILENCE_FRAME: Final = bytes([SILENCE_BYTE]) * FRAME_BYTES


@cache
def bundled_sound(name: str) -> bytes:
    """A sound in mu-law from gateway/sounds, made by scripts/make_sounds and tests/record_calls.py."""
    return resources.files("gateway").joinpath(f"sounds/{name}.ulaw").read_bytes()


def seconds_of(audio_bytes: int) -> float:
    """How long so many bytes of telephone audio play."""
    return audio_bytes / BYTES_PER_SECOND


def alaw_to_mulaw(audio: bytes) -> bytes:
    """The same sound in mu-law; used where a carrier insists on A-law."""
    return audio.translate(_ALAW_TO_MULAW)


def mulaw_to_linear(sample: int) -> int:
    """One mu-law byte as a signed 16 bit sample (G.711, section 3.2)."""
    sample = ~sample & 0xFF
    magnitude = ((((sample & 0x0F) << 3) + 0x84) << ((sample & 0x70) >> 4)) - 0x84
    return -magnitude if sample & 0x80 else magnitude


def linear_to_mulaw(value: int) -> int:
    """A signed 16 bit sample as one mu-law byte."""
    sign = 0x80 if value < 0 else 0
    magnitude = min(abs(value), 32635) + 0x84
    exponent = magnitude.bit_length() - 8
    return ~(sign | (exponent << 4) | ((magnitude >> (exponent + 3)) & 0x0F)) & 0xFF


def _alaw_to_linear(sample: int) -> int:
    sample ^= 0x55
    exponent = (sample & 0x70) >> 4
    magnitude = ((sample & 0x0F) << 4) + 8
    if exponent:
        magnitude = (magnitude + 0x100) << (exponent - 1)
    return magnitude if sample & 0x80 else -magnitude


_ALAW_TO_MULAW: Final = bytes(linear_to_mulaw(_alaw_to_linear(sample)) for sample in range(256))
