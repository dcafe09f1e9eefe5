"""Checks of this machine: folders and disk, the embedded store, .env, the port, and sound for `gateway call`."""

import contextlib
import ctypes.util
import importlib.util
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway import extras
from gateway import settings as configuration
from gateway.diagnostics.http_probe import HttpProbe, bearer
from gateway.diagnostics.public_address import no_gateway
from gateway.diagnostics.results import TIMEOUT, CheckResult, off, ok, problem, warning
from gateway.errors import SettingsError
from gateway.history.stores import store_path
from gateway.invocation import command
from gateway.settings import Settings, check_private, existing_token, local_url
from gateway.text.figures import count
from gateway.websocket.port_mux import listen

LOW_DISK_BYTES: Final = 1 << 30
FULL_DISK_BYTES: Final = 100 << 20


async def check_machine(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    found = [_folder(name, path) for name, path in configuration.folders(settings).items()]
    found += [embedded_store(store_path(settings.data_dir)), await _port(settings, probe)]
    if settings.ignored:
        found.append(off("DeepClaw", f"settings that have no effect here: {settings.ignored}", "remove them"))
    return [*found, *_env_file(settings), _sound()]


def _folder(name: str, path: Path) -> CheckResult:
    try:
        configuration.use_folder(name, path, how=check_private)
    except SettingsError as error:
        return problem(name, str(error))
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    room = f"{free / (1 << 30):.1f} GB free"
    if free < FULL_DISK_BYTES:
        return problem(name, f"{path}: {room}", "free up disk space; nothing more can be stored")
    if free < LOW_DISK_BYTES:
        return warning(name, f"{path}: {room}", "free up disk space soon")
    if not path.exists():
        return ok(name, f"{path} (made at the first start): {room}")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return warning(name, f"{path} is readable by other users", f"chmod 700 {path}")
    return ok(name, f"{path}: {room}")


def embedded_store(path: Path) -> CheckResult:
    if not path.is_file():
        return ok("store", "embedded (made at the first start)")
    failed = 0
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=TIMEOUT)) as db:
            damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            # A file that only an earlier version has opened has another table, which is renamed at the next start.
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'finalization_jobs'").fetchone():
                failed = int(db.execute("SELECT count(*) FROM finalization_jobs WHERE problem <> ''").fetchone()[0])
    except sqlite3.Error as error:
        return problem("store", f"can't open {path}: {error}", "restore it from a backup")
    if damage != "ok":
        return problem("store", f"{path} is damaged: {damage}", "restore it from a backup")
    if failed:
        todo = f"see the reason with: {command('sessions')}; then run: {command('sessions retry')}"
        return warning("store", f"{count(failed, 'post-call job')} failed", todo)
    return ok("store", "embedded, intact")


async def _port(settings: Settings, probe: HttpProbe) -> CheckResult:
    """Free, or taken by the gateway of these settings."""
    url = local_url(settings.host, settings.port)
    if settings.port and not no_gateway(await probe.answer("GET", f"{url}/health", is_ours=True)):
        with contextlib.suppress(SettingsError):
            if token := existing_token(settings):
                answer = await probe.answer("GET", f"{url}/v1/sessions?limit=1", is_ours=True, headers=bearer(token))
                if not isinstance(answer, str) and answer.status_code != 401:
                    return ok("port", f"the gateway runs at {url}")
        todo = "stop it, or set PORT to another port"
        return problem("port", f"another gateway, with another admin token, runs at {url}", todo)
    try:
        listen(settings.host, settings.port).close()
    except SettingsError as error:
        return problem("port", str(error))
    return ok("port", f"{url} is free")


def _env_file(settings: Settings) -> Iterator[CheckResult]:
    path = settings.folder / ".env"
    if not path.is_file():
        todo = "install -m 600 .env.example .env" if path.with_name(".env.example").is_file() else ""
        yield off(".env", "none; settings come from the environment and gateway.toml", todo)
    elif stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield warning(".env", "readable by other users of this machine", f"chmod 600 {path}")
    else:
        yield ok(".env", "readable by you alone")
    for name, known in settings.misspelt.items():
        yield warning(name, "no setting of this name; in .env", f"write {known}, if that is meant")


def _sound() -> CheckResult:
    """Not imported: PortAudio prints what it finds missing, and takes the sound card."""
    if importlib.util.find_spec("sounddevice") is None:
        todo = extras.how_to_install("local")
        return off("sound", "the package sounddevice is missing, so gateway call needs --in", todo)
    # On macOS and Windows the package brings PortAudio.
    if sys.platform.startswith("linux") and ctypes.util.find_library("portaudio") is None:
        return off(
            "sound", "PortAudio is missing, so gateway call has no microphone", extras.how_to_install_portaudio()
        )
    return ok("sound", "PortAudio is installed, for gateway call")
