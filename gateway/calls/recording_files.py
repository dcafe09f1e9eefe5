"""
Recordings on disk: their lines, in clear or encrypted, their age, and their key.

A stored line is JSON, or a Fernet token with one or more lines of JSON. Each token stands alone, so that a killed
process leaves a readable recording. `recorder.py` writes the files.
"""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson
from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from gateway.errors import RecordingError
from gateway.settings import Secret

_TOKEN_BYTES: Final = 1 << 16
"""The lines that one token of a re-encrypted file holds."""
_UNFINISHED: Final = ".new.jsonl"
"""How the name of a file ends while it is being written with the new key."""


class RecordingCipher:
    """Encrypts with the first of several keys (RECORD_KEY) and decrypts with any. Without a key lines are plain."""

    def __init__(self, keys: Secret | None = None) -> None:
        fernets = [Fernet(key) for key in keys.reveal().split(",")] if keys is not None else []
        self._first = fernets[0] if fernets else None
        self._any = MultiFernet(fernets) if fernets else None

    @property
    def has_key(self) -> bool:
        return self._first is not None

    def seal(self, lines: bytes) -> bytes:
        """Whole lines as they are stored."""
        return self._first.encrypt(lines) + b"\n" if self._first is not None else lines

    def is_current(self, stored: bytes) -> bool:
        """Whether a stored line is encrypted with the first key."""
        try:
            return self._first is not None and bool(self._first.decrypt(stored.rstrip(b"\n")))
        except InvalidToken:
            return False

    def lines(self, path: Path) -> Iterator[bytes]:
        """The lines of a recording in clear. An incomplete last line is left out. Raises OSError, RecordingError."""
        with path.open("rb") as file:
            yield from self.open(file, path)

    def open(self, stored: Iterable[bytes], path: Path) -> Iterator[bytes]:
        for line in stored:
            if line.startswith(b"gAAAAA"):  # every Fernet token, and no JSON
                if line.endswith(b"\n"):
                    yield from self._decrypt(line, path).splitlines(keepends=True)
            elif line.endswith(b"\n"):
                yield line

    def _decrypt(self, token: bytes, path: Path) -> bytes:
        if self._any is None:
            raise RecordingError(f"{path} is encrypted; set RECORD_KEY to the key that it was recorded with")
        try:
            return self._any.decrypt(token.rstrip(b"\n"))
        except InvalidToken:
            raise RecordingError(f"{path} is damaged, or encrypted with a key that RECORD_KEY does not name") from None


PLAIN: Final = RecordingCipher()


def header(path: Path, cipher: RecordingCipher) -> Any:
    """The content of the first line. Raises OSError, RecordingError, or ValueError and KeyError for other files."""
    first = orjson.loads(next(cipher.lines(path), b""))
    return first["content"] if isinstance(first, dict) else {}


def delete_old(folder: Path, cipher: RecordingCipher, before: datetime) -> int:
    """Delete the recordings of calls that began before then. Other nodes may do the same. Returns how many."""
    deleted = 0
    for path in sorted(folder.glob("*.jsonl")):
        with suppress(FileNotFoundError):  # another node was faster
            if _started_at(path, cipher) < before:
                path.unlink()
                deleted += 1
    return deleted


def _started_at(path: Path, cipher: RecordingCipher) -> datetime:
    """When the call began; for a file that cannot be read, when it was last written."""
    try:
        return datetime.fromisoformat(header(path, cipher)["started_at"]).astimezone(UTC)
    except (RecordingError, ValueError, KeyError, TypeError):
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)


@dataclass(frozen=True)
class Rotation:
    """What became of the recordings of a folder: how many were encrypted, are of live calls, could not be decrypted."""

    encrypted: int
    live: int
    failed: tuple[str, ...]


def rotate(folder: Path, cipher: RecordingCipher) -> Rotation:
    """Encrypt every recording with the first key. A recording that is being written is left as it is."""
    encrypted, live, failed = 0, 0, []
    for unfinished in folder.glob(f"*{_UNFINISHED}"):
        unfinished.unlink(missing_ok=True)  # of a rotation that was killed
    for path in sorted(folder.glob("*.jsonl")):
        try:
            encrypted += _encrypt(path, cipher)
        except BlockingIOError:
            live += 1
        except FileNotFoundError:
            pass  # deleted by the running gateway
        except RecordingError as error:
            failed.append(str(error))
    return Rotation(encrypted, live, tuple(failed))


def _encrypt(path: Path, cipher: RecordingCipher) -> bool:
    """Replace the file by one that is encrypted with the first key. False if it is already."""
    new = path.with_suffix(_UNFINISHED)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if all(cipher.is_current(line) for line in file):
            return False
        file.seek(0)
        try:
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as target:
                for lines in _gathered(cipher.open(file, path)):
                    target.write(cipher.seal(lines))
                target.flush()
                os.fsync(target.fileno())
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    return True


def _gathered(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines, many at a time: a token for each would be half as large again."""
    several = bytearray()
    for line in lines:
        several += line
        if len(several) >= _TOKEN_BYTES:
            yield bytes(several)
            several.clear()
    if several:
        yield bytes(several)
