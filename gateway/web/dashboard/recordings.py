"""
A recorded call as sound: two voices side by side, put together from the frames of its recording.

`gateway.calls.recorder` writes the file. The caller's frames come as they were spoken. The engine's come faster than
they are played: they queue at the carrier, until a caller who interrupts has the queue cleared.
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

_LONGEST: Final = 4 * 3600 * BYTES_PER_SECOND
"""Of one voice, in bytes; a file that claims more is broken."""
_KEPT_BYTES: Final = 64 << 20
_HEADER: Final = 44


@dataclass(frozen=True)
class StereoRecording:
    """Both voices, mu-law, of one length, and the note that the recording closes with."""

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
        """How loud each voice was, from 0 to 1, over `count` equal stretches."""
        from gateway.web.dashboard.waveform import peaks

        return [peaks(channel, count) for channel in (self.caller, self.agent)]

    def spans(self) -> list[Span]:
        """When each of them spoke."""
        from gateway.web.dashboard.waveform import spoken

        caller = [Span("caller", start, end) for start, end in spoken(self.caller)]
        agent = [Span("agent", start, end) for start, end in spoken(self.agent)]
        return sorted(caller + agent, key=lambda span: span.start)


class RecordingCache:
    """Recordings of a folder as sound; the last few are kept, since a player asks for one piece after another."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._kept: OrderedDict[str, StereoRecording] = OrderedDict()
        self._lock = threading.Lock()  # loaded in threads

    def has(self, uuid: str) -> bool:
        return self._folder is not None and (self._folder / f"{uuid}.jsonl").is_file()

    def load(self, uuid: str) -> StereoRecording | None:
        """Takes its time: not for the loop. None where there is no recording, or one that can't be read."""
        with self._lock:
            if uuid not in self._kept:
                if self._folder is None or (sound := read_sound(self._folder / f"{uuid}.jsonl")) is None:
                    return None
                self._kept[uuid] = sound
                while sum(len(kept.caller) * 2 for kept in self._kept.values()) > _KEPT_BYTES and len(self._kept) > 1:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(uuid)
            return self._kept[uuid]

    def drop(self, uuid: str) -> None:
        """The recording was deleted."""
        with self._lock:
            self._kept.pop(uuid, None)


def read_sound(path: Path) -> StereoRecording | None:
    caller, agent = bytearray(), bytearray()
    ended = None
    try:
        for record in _records(path):
            at = min(max(int(record["t"] * BYTES_PER_SECOND), 0), _LONGEST)
            match record:
                case {"from": "carrier", "frame": {"event": "media", "media": {"payload": str(payload)}}}:
                    _lay(caller, at, base64.b64decode(payload))
                case {"from": "engine", "audio": str(audio)}:
                    _lay(agent, at, base64.b64decode(audio))
                case {"to": "carrier", "frame": {"event": "clear"}}:
                    del agent[at:]
                case {"note": "ended", "content": dict(content)}:
                    ended = content
    except (OSError, KeyError, TypeError, ValueError, binascii.Error):
        return None
    length = max(len(caller), len(agent))
    return StereoRecording(_filled(caller, length), _filled(agent, length), ended)


def _records(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):  # a last one without is half written
                yield orjson.loads(line)


def _lay(voice: bytearray, at: int, audio: bytes) -> None:
    """Put sound where it was heard: at its time, or after what waits before it."""
    if len(voice) < at:
        voice.extend(bytes([SILENCE_BYTE]) * (at - len(voice)))
    if len(voice) < _LONGEST:
        voice.extend(audio)


def _filled(voice: bytearray, length: int) -> bytes:
    return bytes(voice).ljust(length, bytes([SILENCE_BYTE]))


def endless_wav_header() -> bytes:
    """For sound that goes on for nobody knows how long."""
    return _wav_header((1 << 29) - 16)


def _wav_header(samples: int) -> bytes:
    size, rate = samples * 4, BYTES_PER_SECOND
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, 1, 2, rate, rate * 4, 4, 16)
    return head + struct.pack("<4sI", b"data", size)
