"""The microphone and the loudspeaker of this machine, 20 ms at a time. Needs the package sounddevice and PortAudio."""

import contextlib
import queue
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.speech.samples import RATE, decode, encode

_MOST_FRAMES: Final = 10
"""That wait on either side: 0.2 s. What is older is dropped, so that the talk stays in step."""

_NO_DEVICE: Final = "no microphone can be used here: {}; use --in FILE.wav and --out FILE.wav"


class AudioDevice:
    """Speaks what the microphone hears, and plays what it is given. The device's own thread fills and empties it."""

    def __init__(self) -> None:
        self._spoken: queue.Queue[bytes] = queue.Queue(_MOST_FRAMES)
        self._heard: queue.Queue[bytes] = queue.Queue(_MOST_FRAMES)

    def speak(self) -> bytes:
        with contextlib.suppress(queue.Empty):
            return self._spoken.get_nowait()
        return SILENCE_FRAME

    def listen(self, frame: bytes) -> None:
        _put(self._heard, frame)

    def exchange(self, recorded: Any, played: Any, frames: int, time: Any, status: Any) -> None:
        """PortAudio's callback: a block of floats in, one to fill."""
        _put(self._spoken, encode(recorded[:, 0]))
        try:
            played[:, 0] = decode(self._heard.get_nowait())
        except queue.Empty:
            played[:] = np.float32(0)


@contextlib.contextmanager
def handset() -> Iterator[AudioDevice]:
    """SettingsError where there is no microphone or no way to it."""
    try:
        import sounddevice
    except (ImportError, OSError) as error:  # OSError: PortAudio itself is missing
        problem = "PortAudio is missing" if isinstance(error, OSError) else "the package sounddevice is missing"
        raise SettingsError(_NO_DEVICE.format(problem)) from None
    ours = AudioDevice()
    try:
        stream = sounddevice.Stream(
            samplerate=RATE, blocksize=FRAME_BYTES, channels=1, dtype="float32", callback=ours.exchange
        )
        with stream:
            yield ours
    except sounddevice.PortAudioError as error:
        raise SettingsError(_NO_DEVICE.format(str(error).splitlines()[0])) from None


def _put(frames: "queue.Queue[bytes]", frame: bytes) -> None:
    with contextlib.suppress(queue.Empty):
        if frames.full():
            frames.get_nowait()
    with contextlib.suppress(queue.Full):
        frames.put_nowait(frame)
