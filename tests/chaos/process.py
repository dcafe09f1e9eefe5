"""A real gateway process that can be killed and restarted on the same port and folders."""

import asyncio
import contextlib
import os
import resource
import signal
from pathlib import Path

import httpx

from tests.chaos.fork_server import fork_server, start_alone
from tests.ports import free_port
from tests.stage import in_time, until_it


class GatewayProcess:
    """`gateway serve` in a separate process."""

    def __init__(self, environ: dict[str, str], folder: Path, data_dir: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.data_dir = data_dir
        self.log: list[str] = []
        self.dead = True
        """Whether it was killed or has exited since the last start."""
        self.pid = 0
        self._environ = {**environ, "PORT": str(self.port), "DATA_DIR": str(data_dir)}
        self._is_forked = "LD_PRELOAD" not in environ
        self._folder = folder
        self._watched = -1
        self._reading: asyncio.Task[None] | None = None

    async def launch(self) -> None:
        reader, writer = os.pipe()
        begin = fork_server().start if self._is_forked else start_alone
        self.pid = await asyncio.to_thread(begin, self._environ, self._folder, writer)
        os.close(writer)
        self._watched = os.pidfd_open(self.pid)
        self._reading = asyncio.create_task(self._read(reader))
        self.dead = False

    async def start(self, http: httpx.AsyncClient) -> None:
        """Launch, and wait until /health answers."""
        await self.launch()

        async def healthy() -> bool:
            assert self._reading is not None and not self._reading.done(), f"it did not start: {self.log[-1:]}"
            with contextlib.suppress(httpx.HTTPError):
                return (await http.get(f"{self.url}/health")).status_code == 200
            return False

        await until_it(healthy)

    def kill(self) -> None:
        """Kill it synchronously: nothing else runs here before the signal is sent."""
        self.send(signal.SIGKILL)
        self.dead = True

    def send(self, number: int) -> None:
        if self._watched >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watched, number)

    async def gone(self) -> None:
        """Wait until the process has exited and its log is complete."""
        if self._watched < 0 or self._reading is None:
            return
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._watched, ended.set)
        try:
            await in_time(ended.wait())
        finally:
            asyncio.get_running_loop().remove_reader(self._watched)
        await self._reading
        self._forget()

    async def end(self) -> None:
        """Kill it if it runs."""
        if self._watched >= 0:
            self.kill()
            await self.gone()

    def may_write(self, most_bytes: int) -> None:
        """Limit the size of its files, which looks like a full disk to it."""
        _, hard = resource.prlimit(self.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (most_bytes, hard))

    def _forget(self) -> None:
        if self._is_forked:
            fork_server().exit_code(self.pid)
        else:
            os.waitid(os.P_PIDFD, self._watched, os.WEXITED)
        os.close(self._watched)
        self._watched, self.dead = -1, True

    async def _read(self, pipe: int) -> None:
        lines = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(lines)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(pipe, "rb", 0))
        async for line in lines:
            self.log.append(line.decode(errors="replace"))
        transport.close()
