"""
The world around a gateway that gets killed: carriers that wait for it, a store that can hold its breath, the process.

The simulators are those of the other tests; here they only learn to stop at a chosen moment.
"""

import asyncio
import contextlib
import resource
import signal
import socket
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx

from tests.fakes.carrier import Exchange
from tests.fakes.remem import FakeRemem, Request, Response
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio
from tests.stage import until_it

START = "import sys; from gateway.cli.main import main; sys.exit(main(['serve']))"


class Patience:
    """What both carriers learn: to hold media back, and to ask again when the gateway is there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.media = asyncio.Event()
        self.media.set()
        self.gateway_up = asyncio.Event()
        self.asks_again = True
        """Whether what to do with a call is asked when the gateway is back; else at once, and in vain."""

    async def open_socket(self, url: str, headers: dict[str, str]) -> Any:
        await self.media.wait()
        return await super().open_socket(url, headers)  # type: ignore[misc]

    async def request(self, entry: Exchange, **how: Any) -> Exchange:
        if self.asks_again and entry.kind == "action":
            await self.gateway_up.wait()
        return await super().request(entry, **how)  # type: ignore[misc]


class PatientTwilio(Patience, FakeTwilio):
    """Twilio. A call whose gateway is gone ends, or waits for the answer to `action`."""


class PatientTelnyx(Patience, FakeTelnyx):
    """Telnyx. The call lives on without its stream."""


CARRIERS = {"twilio": PatientTwilio, "telnyx": PatientTelnyx}


class HoldingRemem(FakeRemem):
    """A store that stops inside a write: before it is carried out, or after, with the answer unsaid."""

    hold: Literal["", "before", "after"] = ""

    def __init__(self, **dialect: Any) -> None:
        super().__init__(**dialect)
        self.holding = asyncio.Event()
        self.release = asyncio.Event()

    async def _respond(self, request: Request) -> Response | None:
        writes = request.method == "PUT" or request.path.startswith("/v1/documents") and request.method == "POST"
        if writes and self.hold == "before":
            await self._stop_here()
        response = await super()._respond(request)
        if writes and self.hold == "after":
            await self._stop_here()
        return response

    async def _stop_here(self) -> None:
        self.holding.set()
        await self.release.wait()

    def let_go(self) -> None:
        """Drop what is held: its client is dead."""
        self.hold = ""
        for task in list(self._connections) if self.holding.is_set() and not self.release.is_set() else ():
            task.cancel()
        self.holding, self.release = asyncio.Event(), asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The stream server of 3.11 can't bear a cancelled task.
        with contextlib.suppress(asyncio.CancelledError):
            await super()._serve(reader, writer)


class GatewayProcess:
    """A real `gateway serve`, killed and started again on the same port and folder."""

    def __init__(self, environ: dict[str, str], folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log: list[str] = []
        self._environ = {**environ, "PORT": str(self.port)}
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def launch(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", START, env=self._environ, cwd=self._folder, stderr=asyncio.subprocess.PIPE
        )
        self._reading = asyncio.create_task(self._read(self._process))

    async def start(self, http: httpx.AsyncClient) -> None:
        """Launch, and wait until /health answers."""
        await self.launch()

        async def healthy() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return (await http.get(f"{self.url}/health")).status_code == 200
            return False

        await until_it(healthy, timeout=30)

    def kill(self) -> None:
        """At once: nothing else runs here between the decision and the signal."""
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def gone(self) -> None:
        assert self._process is not None and self._reading is not None
        await asyncio.wait_for(self._process.wait(), 20)
        await self._reading

    def may_write(self, most_bytes: int) -> None:
        """No file of the process may grow beyond this; a disk without room looks the same to it."""
        assert self._process is not None
        _, hard = resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (most_bytes, hard))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in process.stderr:
            self.log.append(line.decode(errors="replace"))


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Nobody else writes to this database meanwhile: who wants to waits, and can be killed while waiting."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def rows(path: Path, query: str) -> list[Any]:
    """What a database holds right now."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []  # it is just being made
    finally:
        connection.close()
