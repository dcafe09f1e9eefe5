"""Raw transcripts as files: private, written whole or not at all, deleted when they are old."""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"voice-session-[0-9a-f-]{36}\.(txt|part)")
_DAY: Final = 86_400


class Archive:
    """A folder of raw transcripts; directory 0700, files 0600. All work is done off the loop."""

    def __init__(self, folder: Path, *, retention_days: int) -> None:
        self._folder = folder
        self._retention_days = retention_days

    async def write(self, session_uuid: str, text: str) -> Path:
        """Keep one call's text. Repeating it replaces the file; OSError when there is no room."""
        return await asyncio.to_thread(self._write, session_uuid, text)

    async def read(self, session_uuid: str) -> str | None:
        """One call's text; None where there is none, or none any more."""
        return await asyncio.to_thread(self._read, session_uuid)

    async def delete_old(self) -> int:
        """Delete what is older than the retention; how many were."""
        return await asyncio.to_thread(self._delete_old) if self._retention_days else 0

    def _write(self, session_uuid: str, text: str) -> Path:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.chmod(0o700)
        path = self._folder / f"voice-session-{session_uuid}.txt"
        part = path.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        part.replace(path)
        return path

    def _read(self, session_uuid: str) -> str | None:
        try:
            return (self._folder / f"voice-session-{session_uuid}.txt").read_text(encoding="utf-8")
        except OSError:
            return None

    def _delete_old(self) -> int:
        if not self._folder.is_dir():
            return 0
        before = time.time() - self._retention_days * _DAY
        old = [path for path in self._folder.iterdir() if _NAME.fullmatch(path.name) and path.stat().st_mtime < before]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)
