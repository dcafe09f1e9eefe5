"""Raw transcripts as files: private, written atomically, never shortened, deleted after their retention."""

import asyncio
import contextlib
import errno
import fcntl
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gateway.settings import make_private

_NAME: Final = re.compile(r"voice-session-[0-9a-f-]{36}\.(txt|part)")
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of a network folder without locks. A transcript matters more than the order of two writers."""


class Archive:
    """The folder has mode 0700, files 0600. Files are written and read off the loop."""

    def __init__(self, folder: Path, *, retention_days: int) -> None:
        self._folder = folder
        self._retention_days = retention_days

    async def write(self, session_uuid: str, text: str) -> bool:
        """
        Write the transcript of a call, one line per turn. Raises OSError.

        Replaces an existing file, unless that has more turns or a longer last one: then returns false.
        """
        return await asyncio.to_thread(self._write, session_uuid, text)

    async def read(self, session_uuid: str) -> str | None:
        """The transcript of a call, or None if it was not written or has been deleted."""
        with contextlib.suppress(OSError):
            return await asyncio.to_thread(self.path_of(session_uuid).read_text, encoding="utf-8")
        return None

    async def delete_old(self) -> int:
        """Delete files older than the retention. Returns how many."""
        return await asyncio.to_thread(self._delete_old) if self._retention_days else 0

    def path_of(self, session_uuid: str) -> Path:
        return self._folder / f"voice-session-{session_uuid}.txt"

    def _write(self, session_uuid: str, text: str) -> bool:
        make_private(self._folder)
        path = self.path_of(session_uuid)
        part = path.with_suffix(".part")
        with _locked(part) as descriptor:
            if path.exists() and _has_less(text, path.read_text(encoding="utf-8")):
                part.unlink()
                return False
            os.truncate(descriptor, 0)
            with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
                file.write(text)
            os.fsync(descriptor)
            part.replace(path)
        return True

    def _delete_old(self) -> int:
        if not self._folder.is_dir():
            return 0
        before = time.time() - self._retention_days * 86_400
        old = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name) and path.stat().st_mtime < before]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[int]:
    """The unfinished file, locked: several nodes may share the folder and finalize the same call."""
    while True:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
            try:
                current = part.stat()
            except FileNotFoundError:
                continue
            if os.path.samestat(os.fstat(descriptor), current):  # otherwise it was replaced while we waited
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _has_less(text: str, existing: str) -> bool:
    """Fewer turns, or a shorter last one. The same turns in other words, such as redacted ones, are not less."""
    turns, existing_turns = text.count("\n"), existing.count("\n")
    is_prefix = text != existing and existing.startswith(text.rstrip("\n"))
    return turns < existing_turns or (turns == existing_turns and is_prefix)
