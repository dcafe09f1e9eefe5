"""`gateway serve`: the server."""

import argparse
import asyncio
import functools
import gc
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from gateway import extras, logs, metrics, settings
from gateway.app import create_app
from gateway.calls.manager import CallManager
from gateway.cli.main import run_command
from gateway.cluster import supervisor
from gateway.engines.interface import SET_UP_ENGINE
from gateway.finalization.job_table import JobTable
from gateway.history.stores import opened_stores
from gateway.invocation import command
from gateway.memory.embeddings.embedder import Embedder
from gateway.settings import Settings, admin_token, local_url
from gateway.web.login_sessions import LINK_SECONDS, LoginLinks
from gateway.websocket import picows, portable
from gateway.websocket.interface import Connector
from gateway.websocket.port_mux import PortablePortMux, PortMux, listen

ANSWER_SECONDS: Final = 5
"""How long open requests may take once the server stops. An incomplete request must not block shutdown."""
KEEP_ALIVE_SECONDS: Final = 75
"""
How long an idle connection stays open.

Longer than the minute that proxies keep theirs: if our side closed first, a request of the engine could hit a closing
connection.
"""

DESCRIPTION: Final = "Answer calls until stopped. SIGTERM lets live calls finish first (DRAIN_SECONDS)."

_SOCKETS: Final[dict[str, tuple[Connector, type[PortMux]]]] = {
    "picows": (picows.connect, PortMux),
    "websockets": (portable.connect, PortablePortMux),
}

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: HOST)")
    parser.add_argument("--port", help="port to listen on (default: PORT)")
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="number of processes (default: 1)")
    parser.add_argument("--sockets", choices=_SOCKETS, default="picows", help="media WebSocket library (picows)")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of workers; use 1 or more")
    return int(text)


def run(options: argparse.Namespace) -> int:
    given = {name: value for name, value in (("HOST", options.host), ("PORT", options.port)) if value is not None}
    loaded = _load(given)
    server = _make_server(loaded, options.sockets)
    asyncio.run(_check_store(loaded))
    listener = listen(loaded.host, loaded.port)
    _announce(loaded, listener, options.workers)
    if options.workers == 1:
        return _serve(server, listener)
    # The workers' metrics, added up by the one that is scraped, and the socket of the model that they share.
    with tempfile.TemporaryDirectory(prefix="gateway-workers-") as folder:
        os.environ[metrics.FOLDER_VARIABLE] = folder
        has_redis = loaded.redis_url is not None
        work = functools.partial(run_worker, given, options.sockets, Path(folder))
        return supervisor.supervise(options.workers, work, listener, data_dir=loaded.data_dir, has_redis=has_redis)


def run_worker(
    given: Mapping[str, str],
    sockets: str,
    folder: Path,
    link: socket.socket,
    listener: socket.socket,
    private_redis: str = "",
    lease: Connection | None = None,
) -> None:
    """
    One of several processes.

    `folder` is for all of them. `link` leads to the supervisor. An open `lease` keeps the private Redis running.
    """
    gc.freeze()  # what all workers share: a collection would copy its memory

    def work() -> int:
        return _serve(_make_server(_load(given), sockets, folder, link, private_redis), listener)

    sys.exit(run_command(work))


def _load(given: Mapping[str, str]) -> Settings:
    """Read the settings, and set up the process as they say."""
    loaded = settings.load({**os.environ, **given}, Path.cwd())
    # Tool functions and pages share the interpreter with the audio. With Python's default of 5 ms, a busy thread delays
    # frames by up to 16 ms.
    sys.setswitchinterval(0.0005)
    logs.set_up(loaded.log_format or ("text" if sys.stderr.isatty() else "json"), loaded.log_level)
    return loaded


def _make_server(
    loaded: Settings,
    sockets: str,
    worker_folder: Path | None = None,
    link: socket.socket | None = None,
    private_redis: str = "",
) -> "DrainingServer":
    config = _server_config(loaded, sockets, worker_folder, private_redis)
    # Before it announces itself: a Ctrl-C during these would be lost.
    config.load()
    config.get_loop_factory()
    _freeze_garbage_collector()
    return DrainingServer(config, drain_seconds=loaded.drain_seconds, supervisor_link=link)


def _serve(server: uvicorn.Server, listener: socket.socket) -> int:
    server.run(sockets=[listener])
    return 0 if server.started else 1


class DrainingServer(uvicorn.Server):
    """
    Stops in two steps.

    SIGTERM lets live calls finish, for up to `drain_seconds`; new calls are rejected and /ready answers 503. A second
    SIGTERM or Ctrl-C ends live calls at once. Transcripts are kept either way.

    A worker also drains when its supervisor is gone.
    """

    def __init__(
        self, config: uvicorn.Config, *, drain_seconds: float, supervisor_link: socket.socket | None = None
    ) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._supervisor_link = supervisor_link
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._supervisor_link is not None:
            supervisor.report_ready(self._supervisor_link, self._start_draining)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._draining is None and self._loop is not None and self.started:
            self._loop.call_soon_threadsafe(self._start_draining)
        else:
            super().handle_exit(sig, frame)

    def _start_draining(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        manager: CallManager = self.lifespan.state["call_manager"]
        _log.info("gateway drains", extra={"calls": manager.live_calls, "seconds": self._drain_seconds})
        await manager.drain(self._drain_seconds)
        self.should_exit = True


def _server_config(loaded: Settings, sockets: str, worker_folder: Path | None, private_redis: str) -> uvicorn.Config:
    connect, http = _SOCKETS[sockets]
    return uvicorn.Config(
        create_app(loaded, connect=connect, worker_folder=worker_folder, private_redis=private_redis),
        http=http,  # takes media sockets out before uvicorn's HTTP
        ws="none",
        forwarded_allow_ips=loaded.forwarded_allow_ips,
        loop="uvloop",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=ANSWER_SECONDS,
    )


async def _check_store(loaded: Settings) -> None:
    """Open the store once, so that a broken one is one line on stderr and not a failed start."""
    embedder = Embedder() if loaded.memory_vectors else None
    async with opened_stores(loaded, embedder=embedder) as stores:
        await JobTable(stores.local).unfinished()
        await stores.memory.newest(tags=(), limit=1)


def _freeze_garbage_collector() -> None:
    """
    Exclude the objects of start-up from garbage collection and turn off automatic runs.

    A full collection takes up to 28 ms on one core, longer than a frame of audio. `maintenance.collect_garbage` runs
    it while no call is live.
    """
    gc.collect()
    gc.freeze()
    gc.disable()


def _announce(loaded: Settings, listener: socket.socket, count: int) -> None:
    host, port = listener.getsockname()[:2]
    several = {"workers": count} if count > 1 else {}
    _log.info("gateway starts", extra={"url": f"http://{host}:{port}", "engine": ",".join(loaded.engines), **several})
    if loaded.ignored:
        _log.info("settings of DeepClaw have no effect", extra={"settings": loaded.ignored})
    token, login = admin_token(loaded), f"{local_url(host, port)}/login"
    if sys.stderr.isatty():  # a log may have other readers, so it never contains the code
        print(f"dashboard: {login}?code={LoginLinks(token).make()}", file=sys.stderr)
        again = f"then run: {command('login-link')}"
        print(f"           works once, within {LINK_SECONDS // 60} minutes; {again}", file=sys.stderr)
    else:
        _log.info("dashboard", extra={"url": login, "to_do": f"{command('login-link')} prints a login link"})
    if loaded.engines == ("local",) and not extras.is_installed("local"):
        _log.warning("no voice engine, every call will be refused", extra={"to_do": SET_UP_ENGINE})
    if not loaded.twilio_auth_token and not loaded.telnyx_api_key:
        to_do = "set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or the TELNYX_ keys, and ALLOWED_CALLERS"
        _log.info("no carrier is set up; calls from the browser need none", extra={"to_do": to_do})
    elif not loaded.allowed_callers:
        _log.warning("every caller will be refused; set ALLOWED_CALLERS to your number, or to * for anyone")
