"""A C library with a wrong clock or a read-only disk, preloaded into one gateway."""

import functools
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("faulty_libc.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
MISSING = "no C compiler: the wall clock and the disk of a process cannot be faked; run: apt-get install gcc"


@functools.cache
def _library() -> Path:
    """Compiled once per run."""
    folder = _folder()
    path = Path(folder.name) / "faulty_libc.so"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", "-o", path, SOURCE, "-ldl"], check=True)
    return path


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="chaos-shim-")


class FaultyLibc:
    """The faults of one gateway's C library; none until `fails` is called."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "control"
        self._control.write_bytes(bytes(16))
        self.environ = {
            "LD_PRELOAD": str(_library()),
            "CHAOS_CONTROL": str(self._control),
            "CHAOS_DISK": str(folder),
        }

    def fails(self, *, seconds_ahead: int = 0, read_only: bool = False) -> None:
        """Set the wall clock ahead or make the disk read-only; without arguments, remove the faults."""
        with self._control.open("r+b") as file:
            file.write(struct.pack("qq", seconds_ahead, read_only))
