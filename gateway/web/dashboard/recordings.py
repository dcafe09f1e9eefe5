"""
The audio of a recorded call as a stereo WAV file, rebuilt from the frames in its recording.

`gateway.calls.recorder` writes the file. The caller's frames arrive in real time. The engine's arrive faster than they
are played: they queue at the carrier until a barge-in clears the queue. Samples are read with numpy, which takes long
to import: that happens on first use, in a thread.
"""

import base64
import binascii
import struct
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audio import BYTES_PER_SECOND, SILENCE_BYTE, mulaw_to_linear
from gateway.calls.recording_files import PLAIN, RecordingCipher
from gateway.web.dashboard.timeline import Span

_MAX_BYTES: Final = 4 * 3600 * BYTES_PER_SECOND
"""Per channel; a longer recording is damaged."""
_CACHE_BYTES: Final = 64 << 20
_HEADER: Final = 44
_SPEECH_LEVEL: Final = 500
"""Mean amplitude of a 20 ms frame, of 32767, above which it is speech and not line noise."""
_MAX_PAUSE: Final = 0.45
_MIN_SPEECH: Final = 0.12


@dataclass(frozen=True)
class StereoRecording:
    """Both channels in mu-law, of equal length, and the closing note of the recording."""

    caller: bytes
    agent: bytes
    ended: dict[str, Any] | None = None

    @property
    def seconds(self) -> float:
        return len(self.caller) / BYTES_PER_SECOND

    @property
    def wav_bytes(self) -> int:
        return _HEADER + len(self.caller) * 4

    def wav(self, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of the WAV file: 16 bit, caller left, agent right."""
        header = _wav_header(len(self.caller))[start:end]
        first, last = max(start - _HEADER, 0) // 4, -(-max(end - _HEADER, 0) // 4)
        body = stereo(self.caller[first:last], self.agent[first:last])
        skipped = max(start - _HEADER, 0) - first * 4
        return header + body[skipped : skipped + (end - start) - len(header)]

    def peaks(self, count: int = 500) -> list[list[float]]:
        """The loudness of each channel from 0 to 1, in `count` steps."""
        if count not in self._peaks:
            self._peaks[count] = [_peaks(channel, count) for channel in (self.caller, self.agent)]
        return self._peaks[count]

    # The pages of a long transcript have the same picture.

    @cached_property
    def _peaks(self) -> dict[int, list[list[float]]]:
        return {}

    @cached_property
    def spans(self) -> list[Span]:
        """When each side spoke."""
        caller = [Span("caller", start, end) for start, end in _spoken(self.caller)]
        agent = [Span("agent", start, end) for start, end in _spoken(self.agent)]
        return sorted(caller + agent, key=lambda span: span.start)


class RecordingCache:
    """Loads recordings and caches the latest few, because a player requests many ranges of one file."""

    def __init__(self, folder: Path | None, cipher: RecordingCipher = PLAIN, *, retention_days: int = 0) -> None:
        self._folder = folder
        self._cipher = cipher
        self.retention_days = retention_days
        self._kept: OrderedDict[str, StereoRecording] = OrderedDict()
        self._lock = threading.Lock()  # used in threads

    def is_past_retention(self, started_at: str) -> bool:
        """Whether the recording of a call that began then, if there was one, has been deleted because of its age."""
        age = datetime.now(UTC) - datetime.fromisoformat(started_at)
        return bool(self._folder and self.retention_days) and age.days >= self.retention_days

    def load(self, uuid: str) -> StereoRecording | None:
        """Blocking; call it in a thread. None if the recording is missing or damaged. Raises RecordingError."""
        with self._lock:
            if self._folder is None or not (path := self._folder / f"{uuid}.jsonl").is_file():
                self._kept.pop(uuid, None)
                return None
            if uuid not in self._kept:
                if (recording := read_recording(path, self._cipher)) is None:
                    return None
                self._kept[uuid] = recording
                while sum(len(kept.caller) * 2 for kept in self._kept.values()) > _CACHE_BYTES and len(self._kept) > 1:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(uuid)
            return self._kept[uuid]

    def drop(self, uuid: str) -> None:
        """Remove a deleted recording from the cache."""
        with self._lock:
            self._kept.pop(uuid, None)


def read_recording(path: Path, cipher: RecordingCipher = PLAIN) -> StereoRecording | None:
    """None for a damaged file. Raises RecordingError for one that can't be decrypted."""
    caller, agent = bytearray(), bytearray()
    ended = None
    try:
        for record in map(orjson.loads, cipher.lines(path)):
            at = min(max(int(record["t"] * BYTES_PER_SECOND), 0), _MAX_BYTES)
            match record:
                case {"from": "carrier", "frame": {"event": "media", "media": {"payload": str(payload)}}}:
                    _append(caller, at, base64.b64decode(payload))
                case {"from": "engine", "audio": str(audio)}:
                    _append(agent, at, base64.b64decode(audio))
                case {"to": "carrier", "frame": {"event": "clear"}}:
                    del agent[at:]
                case {"note": "ended", "content": dict(content)}:
                    ended = content
    except (OSError, KeyError, TypeError, ValueError, binascii.Error):
        return None
    length, silence = max(len(caller), len(agent)), bytes([SILENCE_BYTE])
    return StereoRecording(bytes(caller.ljust(length, silence)), bytes(agent.ljust(length, silence)), ended)


def _append(channel: bytearray, at: int, audio: bytes) -> None:
    """Append audio at its time, or after audio that is still queued."""
    if len(channel) < at:
        channel.extend(bytes([SILENCE_BYTE]) * (at - len(channel)))
    if len(channel) < _MAX_BYTES:
        channel.extend(audio)


def endless_wav_header() -> bytes:
    """For a stream of unknown length."""
    return _wav_header((1 << 29) - 16)


def _wav_header(samples: int) -> bytes:
    size, rate = samples * 4, BYTES_PER_SECOND
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 2, rate, rate * 4, 4, 16)
    return head + struct.pack("<4sI", b"data", size)


# Samples


@cache
def _linear() -> Any:
    """The 16-bit value of each mu-law byte."""
    import numpy as np

    return np.array([mulaw_to_linear(byte) for byte in range(256)], dtype="<i2")


def stereo(left: bytes, right: bytes) -> bytes:
    """Interleave two mu-law channels of equal length as 16-bit samples. Call it in a thread."""
    import numpy as np

    samples: bytes = _linear()[np.stack([np.frombuffer(voice, np.uint8) for voice in (left, right)], axis=1)].tobytes()
    return samples


def _loudness(voice: bytes, frame: int) -> Any:
    """The mean amplitude of each frame of that many samples, as an array."""
    import numpy as np

    whole = len(voice) // frame * frame
    samples = np.abs(_linear()[np.frombuffer(voice[:whole], np.uint8)].astype(np.int32))
    return samples.reshape(-1, frame).mean(axis=1)


def _peaks(voice: bytes, count: int) -> list[float]:
    if not voice:
        return []
    loudness = _loudness(voice, max(len(voice) // count, 1))[:count]
    top = max(float(loudness.max(initial=0.0)), 1000.0)  # keeps a silent line flat
    return [round(float(value / top) ** 0.5, 3) for value in loudness]


def _spoken(voice: bytes) -> list[tuple[float, float]]:
    """Spans of loud frames. Short pauses belong to speech; clicks do not."""
    found: list[list[float]] = []
    for index in (_loudness(voice, BYTES_PER_SECOND // 50) > _SPEECH_LEVEL).nonzero()[0] if voice else ():
        start, end = int(index) / 50, (int(index) + 1) / 50
        if found and start - found[-1][1] <= _MAX_PAUSE:
            found[-1][1] = end
        else:
            found.append([start, end])
    return [(start, end) for start, end in found if end - start >= _MIN_SPEECH]
