"""A real gateway for one command: the whole application on a loopback port, in a folder that goes away with it."""

import contextlib
from collections.abc import AsyncIterator

from gateway.app import Timeouts, create_app
from gateway.calls.engine_connection import EngineTimeouts
from gateway.settings import Settings
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.websocket.port_mux import PortMux


@contextlib.asynccontextmanager
async def own_gateway(settings: Settings) -> AsyncIterator[str]:
    """Run a gateway with these settings while the block runs; gives its address."""
    # No caller waits here: memory reaches the first prompt even on a slow machine.
    app = create_app(settings, timeouts=Timeouts(engine=EngineTimeouts(memory=3.0), turn_recall=3.0))
    async with serve_on_loopback(app, http=PortMux, ws="none", lifespan="on") as url:
        yield url
