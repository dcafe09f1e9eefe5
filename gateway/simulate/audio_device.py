"""This machine's microphone and loudspeaker in 20 ms frames. Needs the package sounddevice and PortAudio."""

import contextlib
import queue
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.speech.samples import RATE, decode, encode

_MAX_FRAMES: Final = 10
"""Frames queued in each direction: 0.2 s. Older frames are dropped to keep the delay short."""

_NO_DEVICE: Final = "no microphone can be used here: {}; use --in FILE.wav and --out FILE.wav"


class AudioDevice:
    """Microphone in, loudspeaker out. PortAudio calls `exchange` on its own thread."""

    def __init__(self) -> None:
        self._spoken: queue.Queue[bytes] = queue.Queue(_MAX_FRAMES)
        self._heard: queue.Queue[bytes] = queue.Queue(_MAX_FRAMES)

    def speak(self) -> bytes:
        with contextlib.suppress(queue.Empty):
            return self._spoken.get_nowait()
        return SILENCE_FRAME

    def listen(self, frame: bytes) -> None:
        _put(self._heard, frame)

    def exchange(self, recorded: Any, played: Any, frames: int, time: Any, status: Any) -> None:
        """PortAudio's callback: one recorded block in, one block to fill."""
        _put(self._spoken, encode(recorded[:, 0]))
        try:
            played[:, 0] = decode(self._heard.get_nowait())
        except queue.Empty:
            played[:] = np.float32(0)


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


def _put(frames: "queue.Queue[bytes]", frame: bytes) -> None:
    with contextlib.suppress(queue.Empty):
        if frames.full():
            frames.get_nowait()
    with contextlib.suppress(queue.Full):
        frames.put_nowait(frame)
