"""The gateway under load: a separate process on its own core, in one of several configurations."""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import orjson

import gateway
from gateway.bench.peers import ACCOUNT_SID, AUTH_TOKEN
from gateway.errors import BenchFailed

ADMIN_TOKEN: Final = "bench-admin-token"
_INHERITED: Final = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT")


@dataclass(frozen=True)
class Variant:
    """One configuration of the gateway under test."""

    name: str
    arguments: tuple[str, ...] = ()
    """Extra arguments of `gateway serve`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    toml: str = ""
    """Content of gateway.toml."""
    document_seconds: float = 30.0
    """How long to wait for a call's document; 0 if none is written."""
    ready_seconds: float = 20.0
    """How long the gateway may take until it accepts calls."""
    viewers: bool = False
    """Open a live page and a tail during the run."""
    module: str = "gateway.cli.main"
    """Whose `main` is run."""
    engine: str = "deepgram"
    """Whose protocol the simulated engine has."""


LOCAL_CALLS: Final = 8
"""Default number of simultaneous calls for the local engine."""

REALTIME: Final = Variant(
    "openai",
    environment={"VOICE_ENGINE": "openai", "OPENAI_API_KEY": "bench", "SUMMARY_PROVIDER": "extractive"},
    engine="openai",
)
SOCKETS: Final = {name: Variant(name, ("--sockets", name)) for name in ("picows", "websockets")}

Pair = tuple[Variant, Variant]

# The embedding model is a separate process on the same core here, so it stays off.
COMPARISONS: Final[Mapping[str, Pair]] = {
    "memory": (
        Variant("memory off", environment={"VOICE_SESSION_ENABLED": "false"}, document_seconds=0.0),
        Variant("memory on", environment={"VOICE_SESSION_ENABLED": "true", "MEMORY_VECTORS": "false"}),
    ),
    "viewers": (
        Variant("no viewers", environment={"MEMORY_VECTORS": "false"}),
        Variant("live page and tail", environment={"MEMORY_VECTORS": "false"}, viewers=True),
    ),
}
"""Ratios are the second of a pair divided by the first."""


@dataclass(frozen=True)
class GatewayProcess:
    """A running gateway and its resource usage from /proc."""

    pid: int
    url: str
    core: int

    def cpu_seconds(self) -> float:
        """User and system time of all threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def written_bytes(self) -> int:
        """Bytes written to disk. A temporary folder on tmpfs counts nothing."""
        fields = dict(line.split(": ") for line in Path(f"/proc/{self.pid}/io").read_text().splitlines())
        return int(fields["write_bytes"])

    def waited_seconds(self) -> float:
        """
        Time in which the event loop was ready to run but another process or the hypervisor held the core.

        Time that the gateway's own threads held it is subtracted.
        """
        queued_ns = _schedstat(Path(f"/proc/{self.pid}"))[1]
        own_ns = sum(_schedstat(thread)[0] for thread in Path(f"/proc/{self.pid}/task").iterdir())
        own_ns -= _schedstat(Path(f"/proc/{self.pid}/task/{self.pid}"))[0]
        line = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith(f"cpu{self.core} "))
        return (queued_ns - own_ns) / 1e9 + int(line.split()[8]) / os.sysconf("SC_CLK_TCK")


def _schedstat(task: Path) -> tuple[int, int]:
    """Nanoseconds a thread has run and has waited to run; zeros if it has just ended."""
    try:
        ran, waited = (task / "schedstat").read_text().split()[:2]
    except OSError:
        return 0, 0
    return int(ran), int(waited)


@contextlib.contextmanager
def reserved_core() -> Iterator[int]:
    """The gateway's core; this process stays off it during the block, except on a machine with one core."""
    if not hasattr(os, "sched_getaffinity"):
        raise BenchFailed("the bench pins the gateway to one core, which needs Linux")
    before = os.sched_getaffinity(0)
    *others, core = sorted(before)
    os.sched_setaffinity(0, others or before)
    try:
        yield core
    finally:
        os.sched_setaffinity(0, before)


@contextlib.asynccontextmanager
async def running_gateway(engine_url: str, variant: Variant, *, core: int | None) -> AsyncIterator[GatewayProcess]:
    """
    A fresh gateway with an empty store, on this core (None: on all).

    It is killed at the end: there is nothing to shut down in order.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        log = folder / "log"
        (folder / "gateway.toml").write_text(variant.toml)
        code = f"import sys; from {variant.module} import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "serve", "--host", "127.0.0.1", "--port", "0", *variant.arguments]
        environment = {
            **{name: os.environ[name] for name in _INHERITED if name in os.environ},
            "PYTHONPATH": str(Path(gateway.__file__).parent.parent),
            "DATA_DIR": str(folder / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive"),
            "ALLOWED_CALLERS": "*",
            "CALLS_PER_CALLER": "0",  # many calls share a few numbers
            "TWILIO_ACCOUNT_SID": ACCOUNT_SID,
            "TWILIO_AUTH_TOKEN": AUTH_TOKEN,
            "TWILIO_API_URL": engine_url.replace("ws:", "http:"),  # a closed port: no request may leave the machine
            "DEEPGRAM_API_KEY": "bench",
            "DEEPGRAM_AGENT_URL": engine_url,
            "OPENAI_REALTIME_URL": engine_url,
            "GATEWAY_ADMIN_TOKEN": ADMIN_TOKEN,
            "LOG_FORMAT": "json",
            **variant.environment,
        }
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            if core is not None:
                os.sched_setaffinity(process.pid, {core})
            async with asyncio.timeout(variant.ready_seconds):
                url = await _wait_ready(process, log)
            yield GatewayProcess(process.pid, url, core or 0)
        except TimeoutError:
            raise BenchFailed(f"the gateway was not ready within {variant.ready_seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):  # it may have ended
                process.kill()
            await process.wait()


async def _wait_ready(process: asyncio.subprocess.Process, log: Path) -> str:
    """Wait until the gateway accepts calls. Returns its address."""
    async with httpx.AsyncClient(trust_env=False) as http:
        while process.returncode is None:
            with contextlib.suppress(httpx.HTTPError):
                if (url := _logged_url(log)) and (await http.get(f"{url}/ready")).is_success:
                    return url
            await asyncio.sleep(0.02)
    raise BenchFailed(f"the gateway did not start: {_last_line(log)}")


def _logged_url(log: Path) -> str:
    lines = log.read_bytes().splitlines(keepends=True)
    starts = [line for line in lines if b'"gateway starts"' in line and line.endswith(b"\n")]
    return str(orjson.loads(starts[0])["url"]) if starts else ""


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").split("\n") if line.strip()]
    return lines[-1] if lines else "the log is empty"
