"""A gateway with a wrong clock or a disk that takes no writes, as its process sees them."""

import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty_libc.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
MISSING = "no C compiler: the wall clock and the disk of a process can't be made to fail"


@functools.cache
def _library() -> Path:
    """Compiled once a run; kept until the run is over."""
    folder = _folder()
    path = Path(folder.name) / "faulty_libc.so"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaos-shim-")


class FaultyLibc:
    """What one gateway's C library gets wrong; good until told otherwise."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "control"
        self._control.write_bytes(bytes(16))
        self.environ = {
            "LD_PRELOAD": str(_library()),
            "CHAOS_CONTROL": str(self._control),
            "CHAOS_DISK": str(folder),
        }

    def fails(self, *, seconds_ahead: int = 0, read_only: bool = False) -> None:
        """From now on the wall clock is so far ahead, or the disk takes no writes."""
        with self._control.open("r+b") as file:
            file.write(struct.pack("qq", seconds_ahead, read_only))
