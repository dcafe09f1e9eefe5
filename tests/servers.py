"""Programs that are run for real where they are installed, or where scripts/servers has unpacked them."""

import os
import shutil
from pathlib import Path

_UNPACKED = Path(__file__).parent.parent / ".venv" / "servers" / "usr"
_PATH = [str(_UNPACKED / "sbin"), str(_UNPACKED / "bin"), os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]


def installed(name: str) -> str:
    """The path of the program; empty if it is not there."""
    return shutil.which(name, path=os.pathsep.join(_PATH)) or ""


def environ() -> dict[str, str]:
    """The environment with the libraries of the unpacked programs."""
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(map(str, _UNPACKED.glob("lib/*-linux-gnu")))}
