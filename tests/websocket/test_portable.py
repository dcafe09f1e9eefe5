"""What only the portable sockets do themselves: keep-alive and time limits. The rest is in test_interface."""

import asyncio

import pytest
from websockets.client import ClientProtocol
from websockets.server import ServerProtocol
from websockets.uri import parse_uri

from gateway.websocket import portable
from gateway.websocket.interface import ABNORMAL, PING_SECONDS
from tests.websocket.test_interface import Echo

pytestmark = pytest.mark.virtual_time


class FakeTransport:
    """Collects what is written. `abort` and `close` end the connection as asyncio does."""

    def __init__(self, protocol):
        self.protocol = protocol
        self.written = b""
        self.ended = ""

    def set_write_buffer_limits(self, high):
        pass

    def write(self, data):
        self.written += data

    def close(self):
        self._end("closed")

    def abort(self):
        self._end("aborted")

    def get_write_buffer_size(self):
        return 0

    def taken(self):
        data, self.written = self.written, b""
        return data

    def _end(self, how):
        if not self.ended:
            self.ended = how
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


@pytest.fixture
async def client():
    """An open client socket, its transport, and the server's side of the protocol."""
    owner = Echo()
    socket = portable._ClientSocket(ClientProtocol(parse_uri("ws://engine/")), {"X-Key": "1"}, owner)
    transport, server = FakeTransport(socket), ServerProtocol()
    socket.connection_made(transport)
    server.receive_data(transport.taken())
    [request] = server.events_received()
    assert request.headers["X-Key"] == "1"
    server.send_response(server.accept(request))
    socket.data_received(b"".join(server.data_to_send()))
    await socket.handshake
    return owner, transport, server


async def test_silent_peer_is_dropped(client):
    owner, transport, _ = client
    await asyncio.sleep(2 * PING_SECONDS - 1)
    assert transport.ended == ""
    await asyncio.sleep(2)
    assert transport.ended == "aborted"
    assert owner.closed == [ABNORMAL]


async def test_peer_that_answers_pings_is_kept(client):
    owner, transport, server = client
    for _ in range(10):
        await asyncio.sleep(PING_SECONDS / 2)
        server.receive_data(transport.taken())
        if answer := b"".join(server.data_to_send()):
            owner.socket.data_received(answer)
    assert transport.ended == ""


async def test_unanswered_close_is_given_up(client):
    owner, transport, _ = client
    owner.socket.close(1008)
    await asyncio.sleep(1)
    assert transport.ended == ""
    await asyncio.sleep(2)
    assert (transport.ended, owner.closed) == ("aborted", [1008])


async def test_nothing_is_sent_after_close(client):
    owner, transport, _ = client
    owner.socket.close()
    transport.taken()
    owner.socket.send_text(b"late")
    owner.socket.send_binary(b"late")
    assert transport.written == b""
