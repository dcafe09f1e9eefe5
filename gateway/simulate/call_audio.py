"""Audio of `gateway call`: WAV files, or this machine's microphone and loudspeaker (sounddevice and PortAudio)."""

import contextlib
import os
import wave
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.speech.samples import RATE, Samples, decode, encode, resample

_FULL_SCALE: Final = {1: 128, 2: 32768, 4: 2147483648}
_MAX_FRAMES: Final = 10
"""Frames queued in each direction: 0.2 s. Older frames are dropped to keep the delay short."""

_NO_DEVICE: Final = "no microphone can be used here: {}; use --in FILE.wav and --out FILE.wav"


def read_wav(path: Path) -> bytes:
    """A PCM file of any rate and width as mu-law. SettingsError if it can't be used."""
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


class AudioDevice:
    """Microphone in, loudspeaker out. PortAudio calls `exchange` on its own thread."""

    def __init__(self) -> None:
        self._spoken: deque[bytes] = deque(maxlen=_MAX_FRAMES)
        self._heard: deque[bytes] = deque(maxlen=_MAX_FRAMES)

    def speak(self) -> bytes:
        return self._spoken.popleft() if self._spoken else SILENCE_FRAME

    def listen(self, frame: bytes) -> None:
        self._heard.append(frame)

    def exchange(self, recorded: Any, played: Any, frames: int, time: Any, status: Any) -> None:
        """PortAudio's callback: one recorded block in, one block to fill."""
        self._spoken.append(encode(recorded[:, 0]))
        played[:, 0] = decode(self._heard.popleft()) if self._heard else np.float32(0)


@contextlib.contextmanager
def open_audio_device() -> Iterator[AudioDevice]:
    """Open the default devices. SettingsError if there is no microphone or no PortAudio."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: PortAudio itself is missing
        problem = "PortAudio is missing" if isinstance(error, OSError) else "the package sounddevice is missing"
        raise SettingsError(_NO_DEVICE.format(problem)) from None
    device = AudioDevice()
    try:
        stream = sounddevice.Stream(
            samplerate=RATE, blocksize=FRAME_BYTES, channels=1, dtype="float32", callback=device.exchange
        )
        with stream:
            yield device
    except sounddevice.PortAudioError as error:
        raise SettingsError(_NO_DEVICE.format(str(error).splitlines()[0])) from None
