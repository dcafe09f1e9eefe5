"""A real gateway for one command: the whole application on a loopback port, in a folder that goes away with it."""

import contextlib
from collections.abc import AsyncIterator

from gateway.app import create_app
from gateway.settings import Settings
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.websocket.port_mux import PortMux


@contextlib.asynccontextmanager
async def own_gateway(settings: Settings) -> AsyncIterator[str]:
    """Run a gateway with these settings while the block runs; gives its address."""
    async with serve_on_loopback(create_app(settings), http=PortMux, ws="none", lifespan="on") as url:
        yield url
