"""Shows, without reading a file, that it may have changed."""

import os
from pathlib import Path
from typing import NamedTuple, Self


class FileStamp(NamedTuple):
    """The change time covers what the modification time does not: a replaced file with an old time, and a chmod."""

    modified_ns: int
    changed_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """None for a file that can't be found."""
        try:
            return cls.from_status(path.stat())
        except OSError:
            return None

    @classmethod
    def from_status(cls, status: os.stat_result) -> Self:
        return cls(status.st_mtime_ns, status.st_ctime_ns, status.st_size)
