"""The packages that hold the local engine's models: whether they are installed, and verified reading of their files."""

import hashlib
import importlib.util
from pathlib import Path
from typing import Any, Final

from gateway import extras
from gateway.errors import EngineRefused

INSTALL: Final = extras.how_to_install("local")
_REINSTALL: Final = f"delete .venv and run: {INSTALL}"


def are_installed() -> bool:
    return extras.is_installed("local")


def read_verified(package: str, name: str, sha256: str) -> bytes:
    """Read a file of a package. Raises EngineRefused if it is missing or its checksum differs."""
    try:
        content = folder_of(package).joinpath(name).read_bytes()
    except OSError:
        raise EngineRefused(f"{package} has no {name}; {_REINSTALL}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EngineRefused(f"{name} of {package} is not the file it should be; {_REINSTALL}")
    return content


def folder_of(package: str) -> Path:
    """The folder of a package, without importing it: some of them import far more than their model needs."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise EngineRefused(f"{package} is not installed; run: {INSTALL}")
    return Path(found.origin).parent


def onnx_session(model: bytes) -> Any:
    """An ONNX session that computes on the calling thread alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
