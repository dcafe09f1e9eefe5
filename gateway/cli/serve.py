"""`gateway serve`: the server, until it is told to stop."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from gateway import logs, settings
from gateway.calls import endings
from gateway.calls.desk import CallDesk
from gateway.calls.endings import Endings
from gateway.errors import SettingsError
from gateway.links import picows_sockets, websockets_sockets
from gateway.links.carrier import MAX_FRAME_BYTES
from gateway.memory.sqlite import SqliteStore
from gateway.settings import Settings
from gateway.web.app import create_app
from gateway.web.front import FrontProtocol

_log = logging.getLogger(__name__)


def register(commands: Any) -> None:
    parser = commands.add_parser("serve", help="answer calls", description="Answer calls until stopped.")
    parser.add_argument("--host", help="where to listen (HOST)")
    parser.add_argument("--port", help="where to listen (PORT)")
    parser.add_argument("--sockets", choices=("picows", "websockets"), default="picows", help="who carries the audio")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    given = {name: value for name, value in (("HOST", options.host), ("PORT", options.port)) if value is not None}
    loaded = settings.load({**os.environ, **given}, Path.cwd())
    logs.set_up(loaded.log_format or ("text" if sys.stderr.isatty() else "json"), loaded.log_level)
    config = _picows(loaded) if options.sockets == "picows" else _websockets(loaded)
    asyncio.run(_look_at_store(loaded))
    listener = _listen(loaded)
    server = DrainingServer(config, drain_seconds=loaded.drain_seconds)
    _announce(loaded, listener)
    _spare_the_living()
    server.run(sockets=[listener])
    return 0 if server.started else 1


class DrainingServer(uvicorn.Server):
    """
    Stops in two steps.

    SIGTERM lets live calls end by themselves, up to `drain_seconds`, while new ones are refused and /ready says no. A
    second one, or Ctrl-C, ends them now. Either way everything that was said is kept.
    """

    def __init__(self, config: uvicorn.Config, *, drain_seconds: float) -> None:
        super().__init__(config)
        self._drain_seconds = drain_seconds
        self._draining: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._draining is None and self._loop is not None and self.started:
            self._loop.call_soon_threadsafe(self._start_draining)
        else:
            super().handle_exit(sig, frame)

    def _start_draining(self) -> None:
        if self._draining is None:
            self._draining = asyncio.get_running_loop().create_task(self._drain(), name="drain")

    async def _drain(self) -> None:
        desk: CallDesk = self.lifespan.state["desk"]
        _log.info("gateway drains", extra={"calls": desk.live_calls, "seconds": self._drain_seconds})
        await desk.drain(self._drain_seconds)
        self.should_exit = True


def _picows(loaded: Settings) -> uvicorn.Config:
    """Signals, shutdown order and HTTP are uvicorn's; media sockets leave it at the front."""
    app = create_app(loaded, connect=picows_sockets.connect)
    return uvicorn.Config(app, http=FrontProtocol, ws="none", loop="uvloop", log_config=None, access_log=False)


def _websockets(loaded: Settings) -> uvicorn.Config:
    """uvicorn for everything."""
    return uvicorn.Config(
        create_app(loaded, connect=websockets_sockets.connect),
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=MAX_FRAME_BYTES,
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        loop="uvloop",
        log_config=None,
        access_log=False,
    )


async def _look_at_store(loaded: Settings) -> None:
    """A store that can't be used is a person's to mend: one line now, instead of a server that fails to start."""
    store = await SqliteStore.open(loaded.data_dir / "gateway.db", schema=endings.SCHEMA)
    try:
        await Endings(store).open_ones()
    finally:
        await store.close()


def _spare_the_living() -> None:
    """
    Keep the garbage collector off what start-up has made.

    It would walk over all of it again and again, up to 28 ms at a time on one core, longer than a frame of audio.
    Calls make few cycles, so that looking for them less often costs little memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _listen(loaded: Settings) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in loaded.host else socket.AF_INET
        return socket.create_server((loaded.host, loaded.port), family=family, backlog=1024)
    except OSError as error:
        where = f"{loaded.host}:{loaded.port}"
        raise SettingsError(f"can't listen on {where}: {error.strerror}; set HOST and PORT to a free address") from None


def _announce(loaded: Settings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    _log.info("gateway starts", extra={"url": f"http://{host}:{port}", "engine": loaded.engine})
    if loaded.engine != "deepgram":
        _log.warning("no voice engine, calls will be refused; set DEEPGRAM_API_KEY, or try: gateway demo")
    if not loaded.twilio_auth_token and not loaded.telnyx_api_key:
        _log.warning("no carrier is set up; set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN, or the TELNYX_ ones")
    if not loaded.allowed_callers:
        _log.warning("every caller will be refused; set ALLOWED_CALLERS to your number, or to * for anyone")
