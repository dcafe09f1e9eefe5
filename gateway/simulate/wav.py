"""WAV files for `gateway call`: reads any rate and PCM width, writes 8 kHz telephone audio."""

import os
import wave
from pathlib import Path
from typing import Final

import numpy as np

from gateway.errors import SettingsError
from gateway.speech.samples import RATE, Samples, decode, encode, resample

_FULL_SCALE: Final = {1: 128, 2: 32768, 4: 2147483648}


def read_wav(path: Path) -> bytes:
    """A file's audio as mu-law. SettingsError if it can't be used."""
    try:
        with wave.open(str(path), "rb") as file:
            rate, channels, width = file.getframerate(), file.getnchannels(), file.getsampwidth()
            content = file.readframes(file.getnframes())
    except (OSError, EOFError, wave.Error) as error:
        problem = getattr(error, "strerror", None) or str(error) or "it is empty"
        raise SettingsError(f"{path} can't be read: {problem}; give a WAV file with PCM audio") from None
    if width not in _FULL_SCALE:
        raise SettingsError(f"{path} has {8 * width} bits a sample; give a WAV file with 8, 16 or 32")
    samples = _samples(content, width, channels)
    if not len(samples):
        raise SettingsError(f"{path} holds no audio")
    return encode(resample(samples, rate))


def check_place(path: Path) -> None:
    """SettingsError if the file can't be written, checked before the call is placed."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{path} can't be written; give a file in a folder of yours")


def write_wav(path: Path, mulaw: bytes) -> None:
    """16 bits, 8 kHz, one channel."""
    try:
        with path.open("wb") as opened, wave.open(opened, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((decode(mulaw) * 32768).astype("<i2").tobytes())
    except OSError as error:
        raise SettingsError(f"{path} can't be written: {error.strerror}") from None


def _samples(content: bytes, width: int, channels: int) -> Samples:
    whole = len(content) - len(content) % (width * channels)  # a truncated file may end inside a sample
    values = np.frombuffer(content[:whole], {1: "u1", 2: "<i2", 4: "<i4"}[width]).astype(np.float64)
    values -= 128 if width == 1 else 0
    mono: Samples = (values.reshape(-1, channels).mean(axis=1) / _FULL_SCALE[width]).astype(np.float32)
    return mono
