"""Audio of `gateway call` and `gateway demo`: WAV files, or this machine's microphone and loudspeaker (PortAudio)."""

import contextlib
import os
import queue
import shutil
import subprocess
import threading
import wave
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from gateway import extras
from gateway.audio import FRAME_BYTES, SILENCE_FRAME
from gateway.errors import SettingsError
from gateway.speech.samples import RATE, Samples, decode, encode, resample

_FULL_SCALE: Final = {1: 128, 2: 32768, 3: 8388608, 4: 2147483648}
_MAX_FRAMES: Final = 10
"""Frames queued in each direction: 0.2 s. Older frames are dropped to keep the delay short."""

_NO_DEVICE: Final = "no microphone can be used here: {}; or use --in FILE.wav and --out FILE.wav"


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
        raise SettingsError(f"{path} has {8 * width} bits a sample; give a WAV file with 8, 16, 24 or 32")
    samples = _samples(content, width, channels)
    if not len(samples):
        raise SettingsError(f"{path} holds no audio")
    return encode(resample(samples, rate))


def check_place(path: Path) -> None:
    """SettingsError if the file can't be written, checked before the call is placed."""
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{path} can't be written; choose a folder that you can write to")


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
    if width == 3:  # numpy has no such integer: the low byte of four is empty
        padded = np.zeros((whole // 3, 4), "u1")
        padded[:, 1:] = np.frombuffer(content[:whole], "u1").reshape(-1, 3)
        values = padded.view("<i4").ravel() / 256
    else:
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
    except (ImportError, OSError) as error:
        raise SettingsError(_NO_DEVICE.format(_missing(error))) from None
    device = AudioDevice()
    try:
        stream = sounddevice.Stream(
            samplerate=RATE, blocksize=FRAME_BYTES, channels=1, dtype="float32", callback=device.exchange
        )
        with stream:
            yield device
    except sounddevice.PortAudioError as error:
        problem = f"{str(error).splitlines()[0]}; connect one"
        raise SettingsError(_NO_DEVICE.format(problem)) from None


def _missing(error: ImportError | OSError) -> str:
    """What the import of sounddevice did not find. It raises OSError if PortAudio itself is missing."""
    if isinstance(error, ImportError):
        return f"the package sounddevice is missing; run: {extras.how_to_install('local')}"
    return f"PortAudio is missing; run: {extras.how_to_install_portaudio()}"


# The loudspeaker alone

_PLAYERS: Final = {
    "aplay": f"-q -t raw -f S16_LE -r {RATE} -c 2",
    "paplay": f"--raw --format=s16le --rate={RATE} --channels=2",
}
"""Programs that play what they read from stdin, for a machine without PortAudio."""
_HEAD_START: Final = bytes(RATE * 4 // 5)
"""A fifth of a second of silence, played first: later frames may come that late without a gap."""
_NO_LOUDSPEAKER: Final = "no loudspeaker can be used here: {}"


class Loudspeaker:
    """Plays stereo audio, 16 bits at RATE, on a thread of its own, so that `play` never waits."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._queue: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="loudspeaker", daemon=True)
        self._thread.start()
        self.play(_HEAD_START)

    def play(self, audio: bytes) -> None:
        self._queue.put(audio)

    def finish(self) -> None:
        """Wait until everything was written."""
        self._queue.put(b"")
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # the player was closed
            while audio := self._queue.get():
                self._write(audio)


@contextlib.contextmanager
def open_loudspeaker() -> Iterator[Loudspeaker]:
    """PortAudio's default device, or a player of this machine. SettingsError if there is neither."""
    with contextlib.ExitStack() as stack:
        try:
            import sounddevice

            stream = sounddevice.RawOutputStream(samplerate=RATE, channels=2, dtype="int16", latency="high")
            write = _writer(stack.enter_context(stream), sounddevice.PortAudioError)
        except (ImportError, OSError) as error:
            write = stack.enter_context(_player(_missing(error)))
        except Exception as error:  # there is no device
            write = stack.enter_context(_player(f"{str(error).partition(chr(10))[0]}; connect one"))
        loudspeaker = Loudspeaker(write)
        yield loudspeaker
        loudspeaker.finish()


def _writer(stream: Any, failure: type[Exception]) -> Callable[[bytes], object]:
    """Writes to a stream of PortAudio. Raises OSError if the device is gone."""

    def write(audio: bytes) -> None:
        try:
            stream.write(audio)
        except failure as error:
            raise OSError(str(error)) from None

    return write


@contextlib.contextmanager
def _player(problem: str) -> Iterator[Callable[[bytes], object]]:
    for name in filter(shutil.which, _PLAYERS):
        command = [name, *_PLAYERS[name].split()]
        quiet = subprocess.DEVNULL
        with subprocess.Popen(command, bufsize=0, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
            assert process.stdin is not None
            try:
                process.wait(0.3)  # it ends at once where there is no sound card
            except subprocess.TimeoutExpired:
                yield process.stdin.write
                return
    raise SettingsError(_NO_LOUDSPEAKER.format(problem))
