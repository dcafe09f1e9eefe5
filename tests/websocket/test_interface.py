"""Both WebSocket implementations behave the same, as server and as client. Most peers are the `websockets` library."""

import asyncio
import contextlib
import gc
import http
import socket
import weakref

import pytest
from websockets.asyncio.client import connect as dial
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as listen
from websockets.exceptions import ConnectionClosed

from gateway.errors import EngineRefused, EngineUnavailable
from gateway.websocket import picows, portable
from gateway.websocket.interface import (
    MAX_CLOSING,
    MAX_FRAGMENTS,
    MAX_OUTGOING_BYTES,
    READS_PER_TURN,
    STRANGER_FRAMES,
    ClosingSockets,
    ReadQueue,
    SharedLimits,
)
from tests.stage import PATIENCE, in_time

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


class Trusting(Echo):
    """Trusts its peer from the start, as a call does after the token was checked."""

    def on_open(self, socket):
        super().on_open(socket)
        socket.trust()


class Server(asyncio.Protocol):
    """Reads the upgrade request, then hands the connection to the library, as PortMux does."""

    def __init__(self, library, owner, shared):
        self.library, self.owner, self.shared, self.head = library, owner, shared, b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.head += data
        if self.head.endswith(b"\r\n\r\n"):
            protocol = self.library.server_protocol(self.owner, max_bytes=MAX_BYTES, shared=self.shared)
            self.owner.parts = [weakref.ref(part) for part in (protocol, getattr(protocol, "_protocol", protocol))]
            self.transport.set_protocol(protocol)
            protocol.connection_made(self.transport)
            protocol.data_received(self.head)


@contextlib.asynccontextmanager
async def serving(library, owner, shared=None):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(library, owner, shared), "127.0.0.1", 0)
    async with server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


LIBRARIES = pytest.mark.parametrize("library", [picows, portable], ids=["picows", "websockets"])


@contextlib.asynccontextmanager
async def connected_peer(library, owner):
    """A connected peer of a served socket that belongs to `owner`."""
    async with serving(library, owner) as url, dial(f"{url}/media", compression=None) as peer:
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
        opened = await library.connect(url, {}, owner, max_bytes=MAX_BYTES, timeout=PATIENCE)
        yield opened, await peers.get()
        opened.close()
        await owner.ended.wait()


@LIBRARIES
@pytest.mark.parametrize("message", ['{"event":"media"}', b"\xff\x00\x7f"], ids=["text", "binary"])
async def test_served_socket_keeps_message_kind(library, message):
    async with connected_peer(library, Trusting()) as peer:
        await peer.send(message)
        assert await peer.recv() == message


@LIBRARIES
async def test_served_fragments_become_one_message(library):
    async with connected_peer(library, Trusting()) as peer:
        await peer.send(["one ", "two ", "three"])
        assert await peer.recv() == "one two three"


@LIBRARIES
@pytest.mark.parametrize("message", ["x" * (MAX_BYTES + 1), ["x" * 3000, "x" * 3000]], ids=["whole", "fragments"])
async def test_oversize_message_ends_socket(library, message):
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            await peer.recv()
    await owner.ended.wait()
    assert closed.value.rcvd.code == 1009
    assert len(owner.closed) == 1


@LIBRARIES
async def test_peers_close_code_is_reported(library):
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.close(1001)
        await owner.ended.wait()
    assert owner.closed == [1001]


@LIBRARIES
async def test_own_close_code_reaches_peer(library):
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        owner.socket.close(1008)
        await peer.wait_closed()
        await owner.ended.wait()
    assert (peer.close_code, owner.closed) == (1008, [1008])


@LIBRARIES
async def test_served_socket_keeps_its_first_close_code(library):
    owner = Trusting()
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
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        owner.socket.send_text(b"last words")
        owner.socket.close()
        assert await peer.recv() == "last words"
        await owner.ended.wait()


@LIBRARIES
async def test_broken_connection_is_abnormal_once(library):
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.send("hello")
        await peer.recv()
        peer.transport.abort()
        await owner.ended.wait()
    assert owner.closed == [1006]


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
            await library.connect(url, {}, Echo(), max_bytes=MAX_BYTES, timeout=PATIENCE)
    assert str(raised.value) == f"the engine answered the handshake with status {status}"


@LIBRARIES
async def test_unreachable_engine_is_unavailable(library):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineUnavailable, match="^the engine can't be reached: connection refused$"):
        await library.connect(f"ws://127.0.0.1:{port}", {}, Echo(), max_bytes=MAX_BYTES, timeout=PATIENCE)


@LIBRARIES
async def test_answer_without_http_has_no_status(library):
    async def greet(reader, writer):
        writer.write(b"220 mail.example.com ESMTP\r\n\r\n")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineUnavailable, match="^the engine can't be reached: ") as raised:
            await library.connect(url, {}, Echo(), max_bytes=MAX_BYTES, timeout=PATIENCE)
    assert "status 0" not in str(raised.value)


@LIBRARIES
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101 Switching"], ids=["nothing", "half an answer"])
async def test_engine_that_hangs_up_in_the_handshake_is_unavailable(library, answer):
    async def hang_up(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(EngineUnavailable):
            await library.connect(url, {}, Echo(), max_bytes=MAX_BYTES, timeout=PATIENCE)


@LIBRARIES
async def test_cancelled_handshake_leaves_no_connection(library):
    """An engine that answers after the call has gone on without it would keep a session that nothing closes."""
    asked, answers, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answer_late(connection, request):
        asked.set()
        await answers.wait()

    async def keep(connection):
        await connection.wait_closed()

    class Watched(ServerConnection):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            ended.set()

    owner = Echo()
    options = {"process_request": answer_late, "create_connection": Watched, "ping_interval": None}
    async with listen(keep, "127.0.0.1", 0, **options) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connecting = asyncio.create_task(library.connect(url, {}, owner, max_bytes=MAX_BYTES, timeout=PATIENCE))
        await asked.wait()
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        answers.set()
        await in_time(ended.wait())
    assert (owner.socket, owner.closed) == (None, [])


@LIBRARIES
async def test_handshake_cancelled_at_its_end_leaves_no_connection(library):
    """The socket is open by then, and its owner has it, but the caller of `connect` does not."""

    class Cancelling(Echo):
        def on_open(self, socket):
            super().on_open(socket)
            connecting.cancel()

    async def keep(connection):
        await connection.wait_closed()

    owner = Cancelling()
    async with listen(keep, "127.0.0.1", 0, ping_interval=None) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        connecting = asyncio.create_task(library.connect(url, {}, owner, max_bytes=MAX_BYTES, timeout=PATIENCE))
        with pytest.raises(asyncio.CancelledError):
            await connecting
        await in_time(owner.ended.wait())
    assert owner.closed == [1000]


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


# Peers that have not proved who they are


@contextlib.asynccontextmanager
async def stranger(library, owner, shared=None):
    """A raw connection to a served socket that trusts no peer: (reader, writer) after the handshake."""
    async with serving(library, owner, shared) as url:
        host, port = url.removeprefix("ws://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"GET /media HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nsec-websocket-version: 13\r\n\r\n"
        )
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        yield reader, writer
        writer.close()


def frame(opcode, payload=b"", *, fin=True):
    """A frame of a client. The mask is zero."""
    size = bytes([0x80 | len(payload)]) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes([0x80 * fin | opcode]) + size + bytes(4) + payload


async def read_end(reader):
    """Everything until the server disconnects, by whatever means."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(4096):
            received += data
    return received


class Quiet(Echo):
    """Receives and does not answer."""

    def __init__(self):
        super().__init__()
        self.received = []

    def on_text(self, data):
        self.received.append(data)

    on_binary = on_text


CLOSED_1008 = b"\x88\x02\x03\xf0"


@LIBRARIES
@pytest.mark.parametrize(
    "flood",
    [
        frame(1, b"a", fin=False) * 3000,
        frame(0, b"a", fin=True),
        frame(9) * 20_000,
        frame(1, b"{}") * 20_000,
        frame(2) * 20_000,
        frame(1, bytes(4000)) * 100,
        frame(1) * (STRANGER_FRAMES + 1) + frame(11),
    ],
    ids=["fragments", "continuation", "pings", "small frames", "binary frames", "bytes", "before an error"],
)
async def test_flood_of_a_stranger_ends_its_socket(library, flood):
    owner = Quiet()
    async with stranger(library, owner) as (reader, writer):
        writer.write(flood)
        answer = await read_end(reader)
        await owner.ended.wait()
    assert len(owner.received) <= STRANGER_FRAMES
    assert answer in (b"", CLOSED_1008) or answer.startswith(b"\x88")


@LIBRARIES
async def test_stranger_gets_no_pong(library):
    owner = Quiet()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(9, b"are you there") + frame(1, b"hello"))
        while not owner.received:
            await asyncio.sleep(0.001)
        owner.socket.close(1008)
        assert await read_end(reader) == CLOSED_1008


@LIBRARIES
async def test_trusted_peer_gets_a_pong(library):
    async with connected_peer(library, Trusting()) as peer:
        await asyncio.wait_for(await peer.ping(), 5)


@LIBRARIES
@pytest.mark.parametrize("owner_kind", [Quiet, Trusting], ids=["stranger", "trusted"])
@pytest.mark.parametrize("end", [b"", frame(8), frame(11)], ids=["no end", "close frame", "error"])
async def test_frames_after_close_are_ignored(library, owner_kind, end):
    class Closing(owner_kind):
        heard = 0

        def on_text(self, data):
            self.heard += 1
            self.socket.close(1008)

    owner = Closing()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(1, b"one") + frame(1, b"two") * 50 + end)
        await read_end(reader)
        await owner.ended.wait()
    assert (owner.heard, owner.closed) == (1, [1008])


@LIBRARIES
async def test_ping_after_close_is_not_answered(library):
    class Closing(Trusting):
        def on_text(self, data):
            self.socket.close(1008)

    owner = Closing()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(1, b"one"))
        assert await reader.readexactly(4) == CLOSED_1008
        writer.write(frame(9, b"still there?"))
        writer.write(frame(8, b"\x03\xf0"))
        assert await read_end(reader) == b""
        await owner.ended.wait()


@LIBRARIES
async def test_rest_of_a_frame_above_the_limit_is_ignored(library):
    class Recording(Quiet):
        def on_open(self, socket):
            super().on_open(socket)
            socket.trust()

    owner = Recording()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(1, bytes(MAX_BYTES + 1))[:100])
        assert (await reader.readexactly(4))[::3] == b"\x88\xf1"  # 1009
        with contextlib.suppress(ConnectionError):
            writer.write(bytes(MAX_BYTES) + frame(1, b"more"))
            await read_end(reader)
        await owner.ended.wait()
    assert owner.received == []


@LIBRARIES
async def test_stranger_can_not_delay_the_end(library):
    """It neither answers the close frame nor reads it."""
    owner = Quiet()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(1, b"hello"))
        while not owner.received:
            await asyncio.sleep(0.001)
        owner.socket.close(1008)
        await asyncio.wait_for(owner.ended.wait(), 1)


@LIBRARIES
@pytest.mark.parametrize(("size", "arrives"), [(MAX_BYTES, True), (MAX_BYTES + 1, False)])
async def test_size_limit_holds_at_exactly_that_size(library, size, arrives):
    for message in ("x" * size, ["x" * (size // 2), "x" * (size - size // 2)]):
        async with connected_peer(library, Trusting()) as peer:
            await peer.send(message)
            if arrives:
                assert len(await peer.recv()) == size
            else:
                with pytest.raises(ConnectionClosed):
                    await peer.recv()


@LIBRARIES
async def test_number_of_fragments_is_limited(library):
    owner = Trusting()
    async with connected_peer(library, owner) as peer:
        await peer.send([""] * (MAX_FRAGMENTS + 2))
        await owner.ended.wait()
    assert owner.closed == [1009]


@LIBRARIES
async def test_unread_bytes_are_bounded(library):
    owner = Trusting()
    async with stranger(library, owner):
        while not owner.ended.is_set():
            owner.socket.send_binary(bytes(65536))
            assert owner.socket.buffered_bytes <= MAX_OUTGOING_BYTES + 70_000
            await asyncio.sleep(0)
    assert len(owner.closed) == 1


@LIBRARIES
async def test_nothing_is_received_after_the_peers_close(library):
    owner = Quiet()
    async with stranger(library, owner) as (reader, writer):
        writer.write(frame(1, b"one") + frame(8, b"\x03\xe9") + frame(1, b"two") * 50 + frame(9) * 50)
        assert (await read_end(reader))[:1] in (b"", b"\x88")
        await owner.ended.wait()
    assert (owner.received, owner.closed) == ([b"one"], [1001])


@LIBRARIES
async def test_control_frames_may_interrupt_a_message(library):
    async with stranger(library, Trusting()) as (reader, writer):
        writer.write(frame(1, b"one ", fin=False) + frame(9, b"?") + frame(10) + frame(0, b"two"))
        assert await reader.readexactly(12) == b"\x8a\x01?" + b"\x81\x07one two"


@LIBRARIES
@pytest.mark.parametrize("ending", [frame(8), frame(3), frame(1, bytes(MAX_BYTES))[:-1], b""])
async def test_ended_socket_leaves_no_garbage(library, ending):
    """The garbage collector does not run while a call is live."""
    owner = Quiet()
    gc.disable()
    try:
        async with stranger(library, owner) as (_, writer):
            writer.write(ending)
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.transport.abort()
            await owner.ended.wait()
            owner.socket = None
        for _ in range(3):
            await asyncio.sleep(0)
        assert [part() for part in owner.parts] == [None, None]
    finally:
        gc.enable()


class Transport:
    is_aborted = False

    def abort(self):
        self.is_aborted = True


@pytest.mark.virtual_time
async def test_few_strangers_have_time_to_read_the_close_frame():
    closing, transports = ClosingSockets(), [Transport() for _ in range(MAX_CLOSING + 2)]
    for transport in transports:
        closing.add(transport)
    assert [transport.is_aborted for transport in transports] == [True] * 2 + [False] * MAX_CLOSING
    await asyncio.sleep(0.06)
    assert all(transport.is_aborted for transport in transports)


class Peer:
    """A connection that takes a while to handle what it received."""

    def __init__(self, clock, seconds=0.0):
        self.clock, self.seconds, self.reads, self.is_paused = clock, seconds, 0, False

    def read(self):
        self.reads += 1
        self.is_paused = False
        self.clock[0] += self.seconds

    def pause(self):
        self.is_paused = True


@pytest.mark.virtual_time
@pytest.mark.parametrize(("seconds", "per_turn"), [(0.0, READS_PER_TURN), (0.002, 3), (1.0, 1)])
async def test_reads_of_one_turn_are_limited_in_number_and_time(seconds, per_turn):
    clock = [0.0]
    reads, peers = ReadQueue(now=lambda: clock[0]), [Peer(clock, seconds) for _ in range(2 * READS_PER_TURN)]
    for peer in peers:
        reads.add(peer)
    handled = [sum(peer.reads for peer in peers)]
    assert [peer.is_paused for peer in peers] == [False] * per_turn + [True] * (len(peers) - per_turn)
    while reads:
        await asyncio.sleep(0)
        handled.append(sum(peer.reads for peer in peers))
    assert handled == [*range(per_turn, len(peers), per_turn), len(peers)]


@pytest.mark.virtual_time
async def test_removed_reader_gets_no_turn():
    clock = [0.0]
    reads, peers = ReadQueue(now=lambda: clock[0]), [Peer(clock, 1.0) for _ in range(3)]
    for peer in peers:
        reads.add(peer)
    reads.remove(peers[1])
    while reads:
        await asyncio.sleep(0)
    assert [peer.reads for peer in peers] == [1, 0, 1]


@LIBRARIES
async def test_strangers_wait_for_their_turn(library):
    """What each of them sends arrives, in order, and trusted sockets do not wait."""
    shared, clock = SharedLimits(ReadQueue(now=lambda: 0.0)), [0.0]
    busy = [Peer(clock) for _ in range(READS_PER_TURN)]
    owner = Quiet()
    async with stranger(library, owner, shared) as (_, writer):
        for size in (1, 2, 3):
            for peer in busy:
                shared.reads.add(peer)
            writer.write(frame(1, b"x" * size) + frame(9))
            while len(owner.received) < size:
                for peer in busy:
                    shared.reads.add(peer)
                await asyncio.sleep(0)
        writer.transport.abort()
        await owner.ended.wait()
    assert owner.received == [b"x", b"xx", b"xxx"]
