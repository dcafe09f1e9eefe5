"""One port for HTTP and media sockets, with a small application behind it. Both WebSocket libraries."""

import asyncio
import contextlib

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.websocket import port_mux
from gateway.websocket.port_mux import PortablePortMux, PortMux, request_prefixes
from tests.websocket.test_interface import Echo


class Application:
    """Serves /page by HTTP, /events without end, and echoes on /media."""

    def __init__(self):
        self.owner = Echo()
        self.upgrades = []
        self.events_closed = asyncio.Event()

    def upgrade(self, path, headers):
        self.upgrades.append(path)
        return 503 if "refuse" in path else self.owner

    async def page(self, request):
        return PlainTextResponse("page")

    async def events(self, request):
        async def body():
            yield b"first"
            await self.events_closed.wait()

        return StreamingResponse(body())

    @contextlib.asynccontextmanager
    async def lifespan(self, app):
        yield {
            "media_endpoint": self.upgrade,
            "media_prefixes": request_prefixes(["/media"]),
            "close_event_streams": self.events_closed.set,
        }

    def asgi(self):
        routes = [Route("/page", self.page), Route("/media-of-another-kind", self.page), Route("/events", self.events)]
        return Starlette(routes=routes, lifespan=self.lifespan)


@pytest.fixture
async def application():
    return Application()


@pytest.fixture(params=[PortMux, PortablePortMux], ids=["picows", "websockets"])
async def url(request, application):
    async with serve_on_loopback(application.asgi(), http=request.param, ws="none", lifespan="on") as url:
        yield url


@pytest.mark.parametrize("path", ["/page", "/media-of-another-kind"])
async def test_other_paths_go_to_the_application(url, path):
    async with httpx.AsyncClient(trust_env=False) as http:
        assert (await http.get(url + path)).text == "page"


@pytest.mark.parametrize("path", ["/media", "/media?token=1"])
async def test_media_path_becomes_a_socket(url, application, path):
    async with connect(url.replace("http", "ws") + path) as socket:
        await socket.send("hello")
        assert await socket.recv() == "hello"
    assert application.upgrades == [path]


async def test_refused_upgrade_has_the_status(url):
    with pytest.raises(InvalidStatus) as raised:
        await connect(url.replace("http", "ws") + "/media?refuse")
    assert raised.value.response.status_code == 503


async def test_request_line_may_come_in_pieces(url):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in (b"GE", b"T /p", b"age HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        writer.write(piece)
        await asyncio.sleep(0.01)
    assert (await reader.read()).endswith(b"page")
    writer.close()


async def test_upgrade_may_come_in_pieces(url, application):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    upgrade = (
        b"GET /media HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    for at in range(0, len(upgrade), 40):
        writer.write(upgrade[at : at + 40])
        await asyncio.sleep(0.005)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    writer.close()
    await application.owner.ended.wait()


@pytest.mark.virtual_time
async def test_silent_connection_is_dropped(virtual_transport):
    """It would otherwise hold a file descriptor for ever."""
    mux = PortMux(None, None, {"media_prefixes": request_prefixes(["/media"])})
    mux.connection_made(virtual_transport)
    mux.data_received(b"GET /m")
    await asyncio.sleep(port_mux.REQUEST_LINE_SECONDS - 0.1)
    assert not virtual_transport.aborted
    await asyncio.sleep(0.2)
    assert virtual_transport.aborted


@pytest.fixture
def virtual_transport():
    class Transport:
        aborted = False

        def abort(self):
            self.aborted = True

    return Transport()


async def test_shutdown_ends_event_streams(application):
    """uvicorn waits for every response before it stops."""
    async with httpx.AsyncClient(trust_env=False) as http:
        async with serve_on_loopback(application.asgi(), http=PortMux, ws="none", lifespan="on") as url:
            response = await http.send(http.build_request("GET", url + "/events"), stream=True)
            body = response.aiter_bytes()
            assert await anext(body) == b"first"
        assert [chunk async for chunk in body] == []
        await response.aclose()
    assert application.events_closed.is_set()
