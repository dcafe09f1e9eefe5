"""
The audio of a recorded call as a stereo WAV file, rebuilt from the frames in its recording.

`gateway.calls.recorder` writes the file. The caller's frames arrive in real time. The engine's arrive faster than they
are played: they queue at the carrier until a barge-in clears the queue.
"""

import base64
import binascii
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.audio import BYTES_PER_SECOND, SILENCE_BYTE
from gateway.web.dashboard.timeline import Span

_MAX_BYTES: Final = 4 * 3600 * BYTES_PER_SECOND
"""Per channel; a longer recording is damaged."""
_CACHE_BYTES: Final = 64 << 20
_HEADER: Final = 44


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
        from gateway.web.dashboard.waveform import stereo

        body = stereo(self.caller[first:last], self.agent[first:last])
        skipped = max(start - _HEADER, 0) - first * 4
        return header + body[skipped : skipped + (end - start) - len(header)]

    def peaks(self, count: int = 500) -> list[list[float]]:
        """The loudness of each channel from 0 to 1, in `count` steps."""
        from gateway.web.dashboard.waveform import peaks

        return [peaks(channel, count) for channel in (self.caller, self.agent)]

    def spans(self) -> list[Span]:
        """When each side spoke."""
        from gateway.web.dashboard.waveform import spoken

        caller = [Span("caller", start, end) for start, end in spoken(self.caller)]
        agent = [Span("agent", start, end) for start, end in spoken(self.agent)]
        return sorted(caller + agent, key=lambda span: span.start)


class RecordingCache:
    """Loads recordings and caches the latest few, because a player requests many ranges of one file."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: OrderedDict[str, StereoRecording] = OrderedDict()
        self._lock = threading.Lock()  # used in threads

    def has(self, uuid: str) -> bool:
        return self._folder is not None and (self._folder / f"{uuid}.jsonl").is_file()

    def load(self, uuid: str) -> StereoRecording | None:
        """Blocking; call it in a thread. None if the recording is missing or damaged."""
        with self._lock:
            if uuid not in self._kept:
                if self._folder is None or (recording := read_recording(self._folder / f"{uuid}.jsonl")) is None:
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


def read_recording(path: Path) -> StereoRecording | None:
    caller, agent = bytearray(), bytearray()
    ended = None
    try:
        for record in _records(path):
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
    length = max(len(caller), len(agent))
    return StereoRecording(_padded(caller, length), _padded(agent, length), ended)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # an unterminated last line is incomplete
                yield orjson.loads(line)


def _append(channel: bytearray, at: int, audio: bytes) -> None:
    """Append audio at its time, or after audio that is still queued."""
    if len(channel) < at:
        channel.extend(bytes([SILENCE_BYTE]) * (at - len(channel)))
    if len(channel) < _MAX_BYTES:
        channel.extend(audio)


def _padded(channel: bytearray, length: int) -> bytes:
    return bytes(channel).ljust(length, bytes([SILENCE_BYTE]))


def endless_wav_header() -> bytes:
    """For a stream of unknown length."""
    return _wav_header((1 << 29) - 16)


def _wav_header(samples: int) -> bytes:
    size, rate = samples * 4, BYTES_PER_SECOND
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 2, rate, rate * 4, 4, 16)
    return head + struct.pack("<4sI", b"data", size)
