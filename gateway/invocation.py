"""How the user started this program, so that hints work as typed: ./start.sh, a path, the PATH, uvx or pipx."""

import functools
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

VARIABLE: Final = "GATEWAY_COMMAND"
"""Set by start.sh: its own path, as typed."""

FOLDER_VARIABLE: Final = "GATEWAY_FOLDER"
"""Set by start.sh: the folder in which it was typed. It changes to its own, where the configuration is."""

_PACKAGE: Final = "voice-gateway"
_SCRIPTS: Final = ("gateway", _PACKAGE)
"""The commands that the package installs."""


def command(arguments: str = "") -> str:
    """What to type for `gateway ARGUMENTS`."""
    return f"{_program()} {arguments}".strip()


def command_in(folder: Path, arguments: str) -> str:
    """What to type so that `gateway ARGUMENTS` works with the configuration in this folder."""
    target = folder.resolve()
    go_there = "" if target == user_folder() else f"cd {shlex.quote(str(folder))} && "
    return f"{go_there}{_program_in(target)} {arguments}"


def _program_in(folder: Path) -> str:
    if VARIABLE in os.environ and folder != Path.cwd():  # start.sh uses the configuration beside it
        return shlex.quote(str(Path(sys.prefix, "bin", "gateway")))
    typed = _program()
    is_path = "/" in typed and not Path(shlex.split(typed)[0]).is_absolute()
    is_here = folder == user_folder()
    return shlex.quote(str(user_folder() / shlex.split(typed)[0])) if is_path and not is_here else typed


def user_folder() -> Path:
    """Where the user typed the command."""
    return Path(os.environ.get(FOLDER_VARIABLE, "")).resolve()


def typed_path(text: str) -> Path:
    """A file that the user named, relative to the folder where the command was typed."""
    folder = user_folder()
    return Path(text) if folder == Path.cwd() else folder / text


def public_command(arguments: str) -> str:
    """The same for pages that strangers can read: without the folder of an absolute path."""
    path, _, rest = command(arguments).partition(" ")
    return f"{Path(path).name if path.startswith('/') else path} {rest}"


@functools.cache
def _program() -> str:
    return program(sys.argv[0], os.environ, Path(sys.prefix))


def program(started: str, environ: Mapping[str, str], prefix: Path) -> str:
    """The words that start this program again. `started` is sys.argv[0], `prefix` the Python environment."""
    if given := environ.get(VARIABLE):
        return shlex.quote(given)
    name = Path(started).name
    if name not in _SCRIPTS:  # not started by its script
        return "gateway"
    if is_in_uv_cache(prefix):  # uvx puts its own environment on the PATH
        return f"uvx {_PACKAGE}"
    if {"pipx", ".cache"} <= set(prefix.parts) or {"pipx", "cache"} <= set(prefix.parts):
        return f"pipx run {_PACKAGE}"
    found = shutil.which(name, path=environ.get("PATH", ""))
    is_on_path = found is not None and Path(found).resolve() == Path(started).resolve()
    return name if is_on_path else shlex.quote(started)


def installation(extra: str, package: Path, prefix: Path) -> str:
    """What to type to install an extra. `package` is the folder of the program's modules."""
    wanted = f"'{_PACKAGE}[{extra}]'"
    root = package.parent
    if (root / "scripts" / "install").is_file():
        script = Path("scripts/install") if root == user_folder() else root / "scripts" / "install"
        return f"{shlex.quote(str(script))} --no-dev --extra {extra}"
    if is_in_uv_cache(prefix):
        return f"uvx --from {wanted} {_PACKAGE}"
    if "pipx" in prefix.parts:
        return f"pipx install --force {wanted}"
    if {"uv", "tools"} <= set(prefix.parts):
        return f"uv tool install {wanted}"
    return f"{_pip(prefix)} install {wanted}"


def _pip(prefix: Path) -> str:
    """The pip of this Python environment. uv makes environments without one."""
    found, own = shutil.which("pip"), prefix / "bin" / "pip"
    if found is not None and Path(found) == own:
        return "pip"
    return shlex.quote(str(own)) if own.exists() else f"VIRTUAL_ENV={shlex.quote(str(prefix))} uv pip"


def is_in_uv_cache(prefix: Path) -> bool:
    return any(part.startswith(("archive-v", "environments-v")) for part in prefix.parts)
