"""Both WebSocket implementations behave the same, as server and as client. The peer is the `websockets` library."""

import asyncio
import contextlib
import http
import socket

import pytest
from websockets.asyncio.client import connect as dial
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.errors import EngineRefused, EngineUnavailable
from gateway.websocket import picows, portable

MAX_BYTES = 4096


class Echo:
    """Sends back what it receives and records the close code."""

    def __init__(self):
        self.socket = None
        self.closed = []
        self.ended = asyncio.Event()

    def on_open(self, socket):
        self.socket = socket

    def on_text(self, data):
        self.socket.send_text(data)

    def on_binary(self, data):
        self.socket.send_binary(data)

    def on_closed(self, code):
        self.closed.append(code)
        self.ended.set()


@contextlib.asynccontextmanager
async def serving(library, upgrade):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: library.server_protocol(upgrade, max_bytes=MAX_BYTES), "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


LIBRARIES = pytest.mark.parametrize("library", [picows, portable], ids=["picows", "websockets"])


@contextlib.asynccontextmanager
async def connected_peer(library, owner):
    """A connected peer of a served socket that belongs to `owner`."""
    async with serving(library, lambda path, headers: owner) as url, dial(f"{url}/media", compression=None) as peer:
        yield peer


async def accept_one(peers, **options):
    async def keep(connection):
        peers.put_nowait(connection)
        await connection.wait_closed()

    return await listen(keep, "127.0.0.1", 0, compression=None, **options)


@contextlib.asynccontextmanager
async def opened(library, owner):
    """A socket opened by the library, and its peer."""
    peers = asyncio.Queue()
    async with await accept_one(peers) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        opened = await library.connect(url, {}, owner, max_bytes=MAX_BYTES, timeout=5)
        yield opened, await peers.get()
        opened.close()
        await owner.ended.wait()


@LIBRARIES
@pytest.mark.parametrize("message", ['{"event":"media"}', b"\xff\x00\x7f"], ids=["text", "binary"])
async def test_served_socket_keeps_message_kind(library, message):
    async with connected_peer(library, Echo()) as peer:
        await peer.send(message)
        assert await peer.recv() == message


@LIBRARIES
async def test_served_fragments_become_one_message(library):
    async with connected_peer(library, Echo()) as peer:
        await peer.send(["one ", "two ", "three"])
        assert await peer.recv() == "one two three"


@LIBRARIES
@pytest.mark.parametrize("message", ["x" * (MAX_BYTES + 1), ["x" * 3000, "x" * 3000]], ids=["whole", "fragments"])
async def test_oversize_message_ends_socket(library, message):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            await peer.recv()
    await owner.ended.wait()
    assert closed.value.rcvd.code == 1009
    assert len(owner.closed) == 1


@LIBRARIES
async def test_peers_close_code_is_reported(library):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.close(1001)
        await owner.ended.wait()
    assert owner.closed == [1001]


@LIBRARIES
async def test_own_close_code_reaches_peer(library):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        owner.socket.close(1008)
        await peer.wait_closed()
        await owner.ended.wait()
    assert (peer.close_code, owner.closed) == (1008, [1008])


@LIBRARIES
async def test_served_socket_keeps_its_first_close_code(library):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        owner.socket.close(1008)
        owner.socket.close(1011)
        await peer.wait_closed()
        await owner.ended.wait()
    assert (peer.close_code, owner.closed) == (1008, [1008])


@LIBRARIES
async def test_what_was_sent_precedes_close(library):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        owner.socket.send_text(b"last words")
        owner.socket.close()
        assert await peer.recv() == "last words"
        await owner.ended.wait()


@LIBRARIES
async def test_broken_connection_is_abnormal_once(library):
    owner = Echo()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        peer.transport.abort()
        await owner.ended.wait()
    assert owner.closed == [1006]


@LIBRARIES
async def test_upgrade_handler_refuses_with_its_status(library):
    async with serving(library, lambda path, headers: 503) as url:
        with pytest.raises(InvalidStatus) as refused:
            await dial(f"{url}/media", compression=None)
    assert refused.value.response.status_code == 503


@LIBRARIES
async def test_upgrade_handler_gets_query_and_headers(library):
    seen = []

    def upgrade(path, headers):
        seen.append((path, headers["x-known"]))
        return 404

    async with serving(library, upgrade) as url:
        with pytest.raises(InvalidStatus):
            await dial(f"{url}/media?token=a%2Fb", compression=None, additional_headers={"X-Known": "yes"})
    assert seen == [("/media?token=a%2Fb", "yes")]


@LIBRARIES
async def test_opened_socket_talks_both_ways(library):
    async with opened(library, Echo()) as (mine, peer):
        mine.send_text(b"Settings")
        mine.send_binary(b"\xff\xff")
        assert [await peer.recv(), await peer.recv()] == ["Settings", b"\xff\xff"]
        await peer.send([b"\x01", b"\x02"])
        assert await peer.recv() == b"\x01\x02"


@LIBRARIES
async def test_engines_close_code_is_reported(library):
    owner = Echo()
    async with opened(library, owner) as (_, peer):
        await peer.close(1011)
        await owner.ended.wait()
    assert owner.closed == [1011]


@LIBRARIES
async def test_opened_socket_keeps_its_first_close_code(library):
    owner = Echo()
    async with opened(library, owner) as (mine, peer):
        mine.close(1008)
        mine.close(1011)
        await peer.wait_closed()
        await owner.ended.wait()
    assert (peer.close_code, owner.closed) == (1008, [1008])


@LIBRARIES
async def test_lost_engine_is_abnormal_once(library):
    owner = Echo()
    async with opened(library, owner) as (_, peer):
        peer.transport.abort()
        await owner.ended.wait()
    assert owner.closed == [1006]


@LIBRARIES
@pytest.mark.parametrize(
    ("status", "error"), [(401, EngineRefused), (503, EngineUnavailable), (302, EngineUnavailable)]
)
async def test_refused_handshake_is_translated(library, status, error):
    def refuse(connection, request):
        return connection.respond(http.HTTPStatus(status), "no")

    async with await accept_one(asyncio.Queue(), process_request=refuse) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(error) as raised:
            await library.connect(url, {}, Echo(), max_bytes=MAX_BYTES, timeout=5)
    assert str(raised.value) == f"the engine answered the handshake with status {status}"


@LIBRARIES
async def test_unreachable_engine_is_unavailable(library):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineUnavailable):
        await library.connect(f"ws://127.0.0.1:{port}", {}, Echo(), max_bytes=MAX_BYTES, timeout=5)


@LIBRARIES
async def test_unread_audio_is_counted(library):
    """`buffered_bytes` shows a peer that does not read; neither sending to it nor closing blocks."""
    owner = Echo()
    async with opened(library, owner) as (mine, peer):
        peer.transport.pause_reading()
        while mine.buffered_bytes < 1_000_000:
            mine.send_binary(bytes(65536))
            await asyncio.sleep(0)
        peer.transport.abort()
        await owner.ended.wait()
    assert len(owner.closed) == 1
