"""
Records a call: every frame from and to carrier and engine, and what the LLM and the store returned.

The audio path only puts a tuple into a queue; one thread turns tuples into JSON lines, and encrypts them where there is
a key. Tokens and headers are replaced by "…". `gateway.replay.recording` describes the file and reads it back.
"""

import base64
import contextlib
import fcntl
import logging
import os
import queue
import threading
import time
import weakref
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.calls.recording_files import PLAIN, RecordingCipher

FORMAT: Final = 1
_SECRETS: Final = frozenset({"token", "headers", "authorization", "credentials", "x-telnyx-streaming-auth-token"})

_TOKEN_SECONDS: Final = 1.0
"""
How much of a call is encrypted at once, and so lost if the process is killed.

For a second of a call, one token took 0.13 ms and 51 kB; a token for each of its 175 lines took 1.4 ms and 67 kB.
"""

_log = logging.getLogger(__name__)

_Line = tuple[float, str, str, Any]


class CallRecorder:
    """Records one call. Every method returns at once; `close` or `discard` is the last. This base records nothing."""

    wants_frames = False
    """Whether the methods for frames do anything. If not, the audio path goes without them."""

    def from_carrier(self, frame: bytes) -> None: ...
    def to_carrier(self, frame: bytes) -> None: ...
    def from_engine(self, frame: bytes) -> None: ...
    def to_engine(self, frame: bytes) -> None: ...
    def audio_from_engine(self, audio: bytes) -> None: ...
    def audio_to_engine(self, audio: bytes) -> None: ...

    def note(self, what: str, content: Any) -> None:
        """Record something that is not a frame: the call's header, a document, a summary, the end."""

    def start(self) -> None:
        """The caller agrees: write what was held back, and everything from now on."""

    def close(self) -> None: ...

    def discard(self) -> None:
        """Delete the recording; nothing more is written. May be repeated."""


class NoRecorder(CallRecorder):
    """For calls that are not recorded."""


@dataclass(eq=False)
class FileRecorder(CallRecorder):
    """Records into one file, through the thread of its `RecordingDirectory`."""

    wants_frames = True

    path: Path
    _lines: "queue.SimpleQueue[tuple[FileRecorder, _Line | None]]"
    _held: list[_Line] | None = None
    """What is kept in memory alone until the caller agrees."""
    discarded: bool = False
    _started: float = field(default_factory=time.monotonic)

    def from_carrier(self, frame: bytes) -> None:
        self._put("from", "carrier", frame)

    def to_carrier(self, frame: bytes) -> None:
        self._put("to", "carrier", frame)

    def from_engine(self, frame: bytes) -> None:
        self._put("from", "engine", frame)

    def to_engine(self, frame: bytes) -> None:
        self._put("to", "engine", frame)

    def audio_from_engine(self, audio: bytes) -> None:
        self._put("from", "engine audio", audio)

    def audio_to_engine(self, audio: bytes) -> None:
        self._put("to", "engine audio", audio)

    def note(self, what: str, content: Any) -> None:
        self._put("note", what, content)

    def start(self) -> None:
        held, self._held = self._held or (), None
        for line in held:
            self._lines.put((self, line))

    def close(self) -> None:
        if self._held is not None:
            self.discard()
        else:
            self._lines.put((self, None))

    def discard(self) -> None:
        self.discarded, self._held = True, None
        self.close()

    def _put(self, direction: str, peer: str, content: Any) -> None:
        line = (time.monotonic() - self._started, direction, peer, content)
        if self._held is not None:
            self._held.append(line)
        elif not self.discarded:
            self._lines.put((self, line))


@dataclass
class _OpenFile:
    """A file, and the lines that wait for those of the same second."""

    descriptor: int
    lines: bytearray = field(default_factory=bytearray)
    since: float = 0.0


class RecordingDirectory:
    """Opens recorders and owns the thread that writes. Without a folder nothing is recorded."""

    def __init__(self, folder: Path | None, cipher: RecordingCipher = PLAIN) -> None:
        self._folder = folder
        self._cipher = cipher
        self._lines: queue.SimpleQueue[tuple[FileRecorder, _Line | None]] = queue.SimpleQueue()
        self._files: dict[FileRecorder, _OpenFile] = {}
        self._thread: threading.Thread | None = None
        self._stop: Final = FileRecorder(Path(), self._lines)
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
            self._thread.start()

    def record(self, name: str, *, held: bool = False) -> CallRecorder:
        """A recorder for a new file. `held`: nothing is written before its `start`."""
        if self._folder is None:
            return NoRecorder()
        return FileRecorder(self._folder / f"{name}.jsonl", self._lines, [] if held else None)

    def close(self) -> None:
        """Write what is queued, then stop the thread."""
        if self._thread is not None:
            self._stop.close()
            self._thread.join(timeout=10)

    def _write_all(self) -> None:
        broken: weakref.WeakSet[FileRecorder] = weakref.WeakSet()
        while True:
            recorder, line = self._lines.get()
            if recorder is self._stop:
                break
            try:
                if line is None:
                    self._finish(recorder)
                elif recorder not in broken and not recorder.discarded:
                    self._write(recorder, line)
            except (OSError, TypeError, ValueError, RecursionError) as error:
                broken.add(recorder)  # an incomplete recording can't be replayed
                _log.error("recording given up", extra={"file": recorder.path.name, "error": str(error)})
                if recorder in self._files:
                    os.close(self._files.pop(recorder).descriptor)
        for recorder in list(self._files):
            with contextlib.suppress(OSError):  # the disk is full
                self._finish(recorder)

    def _write(self, recorder: FileRecorder, line: _Line) -> None:
        if (file := self._files.get(recorder)) is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            file = self._files[recorder] = _OpenFile(os.open(recorder.path, flags, 0o600))
            fcntl.flock(file.descriptor, fcntl.LOCK_SH)  # keeps `rotate` away
        at, direction, _, _ = line
        if not file.lines:
            file.since = at
        file.lines += _as_json(line)
        if not self._cipher.has_key or direction == "note" or at - file.since >= _TOKEN_SECONDS:
            self._flush(file)

    def _flush(self, file: _OpenFile) -> None:
        if file.lines:
            os.write(file.descriptor, self._cipher.seal(bytes(file.lines)))
            file.lines.clear()

    def _finish(self, recorder: FileRecorder) -> None:
        if (file := self._files.pop(recorder, None)) is not None:
            try:
                if not recorder.discarded:
                    self._flush(file)
            finally:
                os.close(file.descriptor)
        if recorder.discarded:
            recorder.path.unlink(missing_ok=True)


def _as_json(line: _Line) -> bytes:
    at, direction, peer, content = line
    record: dict[str, Any] = {"t": round(at, 3)}
    if direction == "note":
        record |= {"note": peer, "content": _scrubbed(content)}
    elif peer == "engine audio":
        audio = {"audio": base64.b64encode(content).decode()} if direction == "from" else _checksum(content)
        record |= {direction: "engine", **audio}
    else:
        record |= {direction: peer, **_frame(direction, content)}
    return (
        orjson.dumps(record, default=lambda value: sorted(value) if isinstance(value, frozenset) else str(value))
        + b"\n"
    )


def _frame(direction: str, data: bytes) -> dict[str, Any]:
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return {"text": data.decode("utf-8", "replace")}
    if direction == "to" and isinstance(message, dict) and message.get("event") == "media":
        return _checksum(base64.b64decode(message["media"]["payload"]))
    return {"frame": _scrubbed(message)}


def _checksum(audio: bytes) -> dict[str, Any]:
    """Audio that the gateway passed on: the audio that came in is recorded, so length and checksum are enough."""
    return {"bytes": len(audio), "crc": zlib.crc32(audio)}


def _scrubbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "…" if str(k).lower() in _SECRETS else _scrubbed(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(item) for item in value]
    return value
