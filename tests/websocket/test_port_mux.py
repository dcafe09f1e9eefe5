"""One port for HTTP and media sockets, with a small application behind it. Both WebSocket libraries."""

import asyncio
import contextlib

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from uvicorn.config import Config
from uvicorn.server import ServerState
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.websocket import port_mux
from gateway.websocket.interface import READS_PER_TURN, ReadQueue, SharedLimits
from gateway.websocket.port_mux import ConnectionLimits, PortablePortMux, PortMux
from tests.stage import in_time
from tests.websocket.test_interface import Echo, Trusting


class Application:
    """Serves /page by HTTP, /events without end, and echoes on /media."""

    def __init__(self):
        self.owner = Echo()
        self.upgrades = []
        self.events_closed = asyncio.Event()

    def upgrade(self, request):
        self.upgrades.append(request)
        return 503 if "refuse" in request.target else self.owner

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
            "connection_limits": ConnectionLimits(total=0, per_peer=0),
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
    assert [upgrade.target for upgrade in application.upgrades] == [path]


async def test_refused_upgrade_has_the_status(url):
    with pytest.raises(InvalidStatus) as raised:
        await connect(url.replace("http", "ws") + "/media?refuse")
    assert raised.value.response.status_code == 503


@pytest.mark.parametrize("parts", [1, 2, 3], ids=["whole", "two fragments", "three fragments"])
@pytest.mark.parametrize("kind", [str, bytes], ids=["text", "binary"])
@pytest.mark.parametrize(("size", "code"), [(65_536, 1000), (65_537, 1009)])
async def test_messages_of_exactly_64_kib_pass(url, application, parts, kind, size, code):
    """Before and after the peer has proved who it is; fragments only after."""
    text = "x" * size
    at = [0, 40_000, 50_000][:parts]
    pieces = [text[start:end] for start, end in zip(at, [*at[1:], size], strict=True)]
    message = [kind(piece, "ascii") if kind is bytes else piece for piece in pieces]
    for owner in [Trusting()] if parts > 1 else [Trusting(), Echo()]:
        application.owner = owner
        async with connect(url.replace("http", "ws") + "/media", compression=None) as socket:
            await socket.send(message if parts > 1 else message[0])
            if code == 1000:
                assert len(await socket.recv()) == size
            else:
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code in (code, 1006)  # a stranger is disconnected while it still sends
        await owner.ended.wait()


async def test_request_line_may_come_in_pieces(url):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for piece in (b"GE", b"T /p", b"age HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"):
        writer.write(piece)
        await asyncio.sleep(0.01)
    assert (await reader.read()).endswith(b"page")
    writer.close()


UPGRADE = (
    b"GET /media HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n%b"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def test_upgrade_may_come_in_pieces(url, application):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    upgrade = UPGRADE % b"Connection: Upgrade\r\n"
    for at in range(0, len(upgrade), 40):
        writer.write(upgrade[at : at + 40])
        await asyncio.sleep(0.005)
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    writer.close()
    await application.owner.ended.wait()


async def test_frame_behind_the_upgrade_arrives(url, application):
    """Read at once, from a peer that did not wait for the response."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(UPGRADE % b"Connection: Upgrade\r\n" + b"\x81\x85\0\0\0\0hello")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    assert await in_time(reader.readexactly(7)) == b"\x81\x05hello"
    writer.close()
    await application.owner.ended.wait()


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


# Upgrades behind proxies


@contextlib.asynccontextmanager
async def raw(url):
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    yield reader, writer
    writer.close()


async def read_end(reader):
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            received += data
    return received


@pytest.mark.parametrize(
    "connection",
    [b"Connection: Upgrade\r\n", b"Connection: keep-alive, Upgrade\r\n", b"Connection: upgrade\r\nX-Long: %b\r\n"],
    ids=["alone", "list", "long"],
)
async def test_reused_connection_becomes_a_socket(url, application, connection):
    """As behind nginx with upstream keep-alive, HAProxy with http-reuse, and Apache."""
    async with raw(url) as (reader, writer):
        for _ in range(2):
            writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"page")).startswith(b"HTTP/1.1 200")
        writer.write(UPGRADE % connection.replace(b"%b", b"x" * 20_000))
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(b"\x81\x85\x00\x00\x00\x00hello")
        assert await reader.readexactly(7) == b"\x81\x05hello"
    await application.owner.ended.wait()


@pytest.mark.parametrize(
    "request_bytes",
    [
        UPGRADE.replace(b"AAAA", b"", 1) % b"Connection: Upgrade\r\n",
        UPGRADE.replace(b": 13", b": 12") % b"Connection: Upgrade\r\n",
        UPGRADE.replace(b"GET", b"PUT") % b"Connection: Upgrade\r\n",
        b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n" + UPGRADE % b"Connection: Upgrade\r\n",
    ],
    ids=["key", "version", "method", "pipelined"],
)
async def test_bad_upgrade_is_refused(url, application, request_bytes):
    async with raw(url) as (reader, writer):
        writer.write(request_bytes)
        assert (await read_end(reader)).startswith(b"HTTP/1.1 400")
    assert application.upgrades == []


@pytest.mark.parametrize(
    ("forwarded", "peer"), [("", "127.0.0.1"), ("X-Forwarded-For: 2001:db8::1, 127.0.0.1\r\n", "2001:db8::/64")]
)
async def test_peer_is_the_client_of_a_trusted_proxy(url, application, forwarded, peer):
    async with raw(url) as (reader, writer):
        writer.write(UPGRADE % f"Connection: Upgrade\r\n{forwarded}".encode())
        await reader.readuntil(b"\r\n\r\n")
    assert [upgrade.peer for upgrade in application.upgrades] == [peer]
    await application.owner.ended.wait()


# Requests without end


@pytest.mark.parametrize(
    ("flood", "status"),
    [
        (b"X-Long: " + b"x" * 40_000, b"431"),
        (b"X-Long: " + b"x" * 33_000 + b"\r\n\r\n", b"431"),
        (b"a: b\r\n" * 101 + b"\r\n", b"431"),
        (b"no header\r\n\r\n", b"400"),
    ],
    ids=["endless", "large", "many", "malformed"],
)
async def test_headers_are_limited(url, flood, status):
    async with raw(url) as (reader, writer):
        writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n" + flood)
        assert (await read_end(reader)).split()[1:2] == [status]


async def test_headers_below_the_limit_are_accepted(url):
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.get(f"{url}/page", headers={"X-Long": "x" * 31_000, **{f"x-{n}": "" for n in range(90)}})
    assert answer.text == "page"


async def test_pipelined_requests_are_limited(url, application):
    async with raw(url) as (reader, writer):
        writer.write(b"GET /page HTTP/1.1\r\nHost: x\r\n\r\n" * 5000)
        assert (await read_end(reader)).count(b"HTTP/1.1 200") <= port_mux.MAX_PIPELINED + 1


@pytest.mark.parametrize(
    "body",
    [b"1\r\na\r\n" * (port_mux.MAX_BODY_PARTS + 1), b"10000\r\n" + bytes(65536) + b"\r\n"],
    ids=["parts", "bytes"],
)
async def test_endless_body_is_cut(url, body):
    async with raw(url) as (reader, writer):
        writer.write(b"POST /page HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            for _ in range(200):
                writer.write(body)
                await writer.drain()
        with contextlib.suppress(ConnectionError):
            await read_end(reader)
        assert writer.transport.is_closing() or reader.at_eof()


class FakeTransport:
    """A connection from `host`."""

    def __init__(self, host="192.0.2.1"):
        self.host, self.written, self.aborted, self.unread, self.is_reading = host, b"", False, 0, True

    def get_extra_info(self, name):
        return (self.host, 50000) if name in ("peername", "sockname") else None

    def write(self, data):
        self.written += data

    def get_write_buffer_size(self):
        return self.unread

    def is_closing(self):
        return self.aborted

    def abort(self):
        self.aborted = True

    close = abort

    def pause_reading(self):
        self.is_reading = False

    def resume_reading(self):
        self.is_reading = True


def connected(limits, transport, app=None):
    state = {"connection_limits": limits}
    config = Config(app or Application().asgi(), log_config=None, ws="none")
    mux = PortMux(config, ServerState(), state, asyncio.get_running_loop())
    mux.connection_made(transport)
    return mux


HEAD = b"POST /page HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("received", "seconds"),
    [(b"", 15), (b"GET /m", 15), (HEAD, 15), (b"\r\n", 15), (HEAD + b"\r\n", 30), (HEAD + b"\r\nhalf", 30)],
    ids=["silent", "line", "headers", "newline", "no body", "half a body"],
)
async def test_slow_request_is_closed(received, seconds):
    async def waits(scope, receive, send):
        while (await receive())["type"] != "http.disconnect":
            pass

    transport = FakeTransport()
    mux = connected(ConnectionLimits(total=0, per_peer=0), transport, waits)
    for byte in received:
        mux.data_received(bytes([byte]))
    await asyncio.sleep(seconds - 0.5)
    assert not transport.aborted
    await asyncio.sleep(1)
    assert transport.aborted
    mux.connection_lost(ConnectionResetError())
    await asyncio.sleep(0)


@pytest.mark.virtual_time
async def test_suspended_machine_times_nobody_out():
    """After it the timer fires before the socket is read, whatever has arrived there."""
    loop, transport = asyncio.get_running_loop(), FakeTransport()
    connected(ConnectionLimits(total=0, per_peer=0), transport)
    loop.advance(3600)
    await asyncio.sleep(0.5)
    assert not transport.aborted
    await asyncio.sleep(1)
    assert transport.aborted


@pytest.mark.virtual_time
async def test_connections_of_one_peer_are_limited():
    limits = ConnectionLimits(total=0, per_peer=2)
    transports = [FakeTransport(), FakeTransport(), FakeTransport("192.0.2.2"), FakeTransport()]
    for transport in transports:
        connected(limits, transport)
    assert [transport.aborted for transport in transports] == [True, False, False, False]


@pytest.mark.virtual_time
async def test_all_connections_are_limited(caplog):
    limits = ConnectionLimits(total=2, per_peer=0)
    transports = [FakeTransport(f"192.0.2.{n}") for n in range(6)]
    muxes = [connected(limits, transport) for transport in transports[:4]]
    assert [transport.aborted for transport in transports[:4]] == [True, True, False, False]
    for mux in muxes[2:]:  # both work, so that no room can be made
        limits.works(mux)
    connected(limits, transports[4])
    assert transports[4].aborted
    muxes[2].connection_lost(ConnectionResetError())
    connected(limits, transports[5])
    assert not transports[5].aborted
    assert [record.message for record in caplog.records] == ["too many connections"]


@pytest.mark.virtual_time
async def test_trusted_proxy_is_not_limited():
    limits = ConnectionLimits(total=0, per_peer=1)
    transports = [FakeTransport("127.0.0.1") for _ in range(3)]
    for transport in transports:
        connected(limits, transport)
    assert not any(transport.aborted for transport in transports)


@pytest.mark.virtual_time
async def test_idle_peer_that_does_not_read_is_aborted():
    transport = FakeTransport()
    mux = connected(ConnectionLimits(total=0, per_peer=0), transport)
    transport.unread = 1
    mux.timeout_keep_alive_handler()
    assert transport.aborted


@pytest.mark.virtual_time
async def test_unfinished_requests_are_limited_together():
    limits = ConnectionLimits(total=0, per_peer=0)
    transports = [FakeTransport() for _ in range(port_mux.MAX_UNFINISHED_BYTES // 30_000 + 1)]
    for transport in transports:
        connected(limits, transport).data_received(b"GET /page HTTP/1.1\r\nX: ".ljust(30_000, b"x"))
    assert [transport.aborted for transport in transports] == [True] + [False] * (len(transports) - 1)


BURST = READS_PER_TURN


def unhurried_limits():
    """Without the limit in time, which depends on the machine."""
    limits = ConnectionLimits(total=0, per_peer=0)
    limits.shared = SharedLimits(ReadQueue(now=lambda: 0.0))
    return limits


@pytest.mark.virtual_time
async def test_burst_is_spread_over_turns_of_the_loop():
    """In the order in which it came. A connection reads nothing while it waits."""
    limits = unhurried_limits()
    transports = [FakeTransport() for _ in range(2 * BURST + 1)]
    muxes = [connected(limits, transport) for transport in transports]
    for mux in muxes:
        mux.data_received(b"GET /page HTTP/1.1\r\nX")
    muxes[-1].data_received(b": y\r\n")
    handled = [sum(mux._unfinished_bytes > 0 for mux in muxes)]
    assert [transport.is_reading for transport in transports] == [True] * BURST + [False] * (BURST + 1)
    while handled[-1] < len(muxes):
        await asyncio.sleep(0)
        handled.append(sum(mux._unfinished_bytes > 0 for mux in muxes))
    assert handled == [BURST, 2 * BURST, 2 * BURST + 1]
    assert muxes[-1]._unfinished_bytes == len(b"GET /page HTTP/1.1\r\nX: y\r\n")
    assert all(transport.is_reading for transport in transports)


@pytest.mark.virtual_time
async def test_stalled_request_is_closed_before_one_that_goes_on():
    limits = unhurried_limits()
    transports = [FakeTransport() for _ in range(3)]
    going_on, stalled, last = [connected(limits, transport) for transport in transports]
    for mux in (going_on, stalled, going_on):
        limits.request_unfinished(mux, 1_000_000)
    limits.request_unfinished(last, 500_000)
    assert [transport.aborted for transport in transports] == [False, True, False]


@pytest.mark.virtual_time
async def test_waiting_data_counts_as_unfinished():
    """It is freed with its connection."""
    limits = unhurried_limits()
    size = port_mux.MAX_UNFINISHED_BYTES // 4
    transports = [FakeTransport() for _ in range(BURST + 5)]
    muxes = [connected(limits, transport) for transport in transports]
    for mux in muxes[:BURST]:
        mux.data_received(b"G")
    for mux in muxes[BURST:]:
        mux.data_received(bytes(size))
    assert [transport.aborted for transport in transports] == [True] * (BURST + 1) + [False] * 4
    assert len(limits.shared.reads) == 4


@pytest.mark.virtual_time
async def test_paused_request_stays_paused_after_its_turn():
    """uvicorn reads no more of a body than its handler takes."""
    limits = unhurried_limits()
    transports = [FakeTransport() for _ in range(BURST + 1)]
    muxes = [connected(limits, transport) for transport in transports]
    muxes[-1].flow._transport.pause_reading()
    muxes[-1].flow.read_paused = True
    for mux in muxes:
        mux.data_received(b"G")
    await asyncio.sleep(0)
    assert not transports[-1].is_reading


# Bodies that may be large

MANY = 10 * port_mux.MAX_BODY_BYTES
LARGE = f"POST /large HTTP/1.1\r\nHost: x\r\nContent-Length: {MANY}\r\n\r\n".encode()


class Reading:
    """An application that reads bodies, and counts their bytes."""

    def __init__(self):
        self.count = 0

    async def __call__(self, scope, receive, send):
        while (message := await receive())["type"] != "http.disconnect":
            self.count += len(message.get("body", b""))


async def send_large(mux, pieces, pause=0.0):
    for _ in range(pieces):
        mux.data_received(bytes(64 * 1024))
        await asyncio.sleep(pause)


@pytest.mark.virtual_time
async def test_large_body_is_not_counted_as_unfinished():
    app, limits = Reading(), ConnectionLimits(total=0, per_peer=0, body_limit=lambda path, headers: 2 * MANY)
    transports = [FakeTransport(), FakeTransport("192.0.2.2")]
    small, large = (connected(limits, transport, app) for transport in transports)
    small.data_received(HEAD + b"\r\nhalf")
    large.data_received(LARGE)
    await send_large(large, 100)
    assert app.count == 100 * 64 * 1024 + 4 and not any(transport.aborted for transport in transports)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("pause", "is_cut"), [(0.5, False), (2.0, True)])
async def test_large_body_must_make_progress(pause, is_cut):
    """2 MB, which is 32 pieces, in 30 s; for as long as it takes."""
    limits = ConnectionLimits(total=0, per_peer=0, body_limit=lambda path, headers: 2 * MANY)
    transport = FakeTransport()
    mux = connected(limits, transport, Reading())
    mux.data_received(LARGE)
    await send_large(mux, 100, pause)
    assert transport.aborted is is_cut


@pytest.mark.virtual_time
async def test_large_body_has_a_limit_too():
    limits = ConnectionLimits(total=0, per_peer=0, body_limit=lambda path, headers: 3 * 1024 * 1024)
    transport = FakeTransport()
    mux = connected(limits, transport, Reading())
    mux.data_received(LARGE)
    await send_large(mux, 49)
    assert transport.written.startswith(b"HTTP/1.1 413")
