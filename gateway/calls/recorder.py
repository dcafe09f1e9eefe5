"""
Records a call: every frame from and to carrier and engine, and what the LLM and the store returned.

The audio path only puts a tuple into a queue; one thread turns tuples into JSON lines. Tokens and headers are replaced
by "…". `gateway.replay.recording` describes the file and reads it back.
"""

import base64
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

FORMAT: Final = 1
_SECRETS: Final = frozenset({"token", "headers", "authorization", "credentials", "x-telnyx-streaming-auth-token"})

_log = logging.getLogger(__name__)

_Line = tuple[float, str, str, Any]


class CallRecorder:
    """Records one call. Every method returns at once; `close` or `discard` is the last. This base records nothing."""

    def from_carrier(self, frame: bytes) -> None: ...
    def to_carrier(self, frame: bytes) -> None: ...
    def from_engine(self, frame: bytes) -> None: ...
    def to_engine(self, frame: bytes) -> None: ...
    def audio_from_engine(self, audio: bytes) -> None: ...
    def audio_to_engine(self, audio: bytes) -> None: ...

    def note(self, what: str, content: Any) -> None:
        """Record something that is not a frame: the call's header, a document, a summary, the end."""

    def close(self) -> None: ...

    def discard(self) -> None:
        """Delete the recording; nothing more is written. May be repeated."""


class NoRecorder(CallRecorder):
    """For calls that are not recorded."""


@dataclass(eq=False)
class FileRecorder(CallRecorder):
    """Records into one file, through the thread of its `RecordingDirectory`."""

    path: Path
    _lines: "queue.SimpleQueue[tuple[FileRecorder, _Line | None]]"
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

    def close(self) -> None:
        self._lines.put((self, None))

    def discard(self) -> None:
        self.discarded = True
        self.close()

    def _put(self, direction: str, peer: str, content: Any) -> None:
        if not self.discarded:
            self._lines.put((self, (time.monotonic() - self._started, direction, peer, content)))


class RecordingDirectory:
    """Opens recorders and owns the thread that writes. Without a folder nothing is recorded."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lines: queue.SimpleQueue[tuple[FileRecorder, _Line | None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stop: Final = FileRecorder(Path(), self._lines)
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._thread = threading.Thread(target=self._write_all, name="recorder", daemon=True)
            self._thread.start()

    def record(self, name: str) -> CallRecorder:
        return FileRecorder(self._folder / f"{name}.jsonl", self._lines) if self._folder is not None else NoRecorder()

    def close(self) -> None:
        """Write what is queued, then stop the thread."""
        if self._thread is not None:
            self._stop.close()
            self._thread.join(timeout=10)

    def _write_all(self) -> None:
        files: dict[FileRecorder, int] = {}
        broken: weakref.WeakSet[FileRecorder] = weakref.WeakSet()
        while True:
            recorder, line = self._lines.get()
            if recorder is self._stop:
                break
            if line is not None and recorder not in broken and not recorder.discarded:
                try:
                    if recorder not in files:
                        files[recorder] = os.open(recorder.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                    os.write(files[recorder], _as_json(line))
                except (OSError, TypeError, ValueError, RecursionError) as error:
                    broken.add(recorder)  # an incomplete recording can't be replayed
                    _log.error("recording given up", extra={"file": recorder.path.name, "error": str(error)})
            if recorder in files and (line is None or recorder in broken):
                os.close(files.pop(recorder))
            if line is None and recorder.discarded:
                recorder.path.unlink(missing_ok=True)
        for file in files.values():
            os.close(file)


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


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else str(value)
