"""What only the picows sockets do themselves: limits of fragmented messages. The rest is in test_interface."""

import pytest
from picows import WSMsgType

from gateway.websocket.interface import TOO_BIG, SharedLimits
from gateway.websocket.picows import PicowsSocket


class Owner:
    def __init__(self):
        self.received = []

    def on_open(self, socket):
        self.socket = socket

    def on_text(self, data):
        self.received.append(("text", data))

    def on_binary(self, data):
        self.received.append(("binary", data))

    def on_closed(self, code):
        self.received.append(("closed", code))


class FakeFrame:
    def __init__(self, kind, payload, fin=False):
        self.msg_type, self.payload, self.fin = kind, payload, fin

    def get_payload_as_bytes(self):
        return self.payload


class FakeTransport:
    """picows's transport, and asyncio's below it."""

    def __init__(self):
        self.close_codes, self.sent = [], []
        self.is_close_frame_sent = False
        self.underlying_transport = self

    def send(self, kind, data):
        self.sent.append((kind, data))

    def set_write_buffer_limits(self, high):
        pass

    def is_closing(self):
        return False

    def pause_reading(self):
        pass

    def send_close(self, code):
        self.close_codes.append(int(code))
        self.is_close_frame_sent = True

    def disconnect(self):
        pass


@pytest.fixture
def opened():
    owner, transport = Owner(), FakeTransport()
    socket = PicowsSocket(owner, 10, SharedLimits(), is_trusted=True)
    socket.on_ws_connected(transport)
    return owner, socket, transport


@pytest.mark.parametrize(("kind", "name"), [(WSMsgType.TEXT, "text"), (WSMsgType.BINARY, "binary")])
def test_fragments_become_one_message(opened, kind, name):
    owner, socket, transport = opened
    for frame in (FakeFrame(kind, b"one"), FakeFrame(WSMsgType.CONTINUATION, b"two", fin=True)):
        socket.on_ws_frame(transport, frame)
    assert owner.received == [(name, b"onetwo")]


def test_fragments_beyond_the_limit_close_the_socket(opened):
    owner, socket, transport = opened
    for payload in (b"12345678", b"9012"):
        kind = WSMsgType.TEXT if payload.startswith(b"1") else WSMsgType.CONTINUATION
        socket.on_ws_frame(transport, FakeFrame(kind, payload))
    assert transport.close_codes == [TOO_BIG]
    socket.on_ws_disconnected(transport)
    assert owner.received == [("closed", TOO_BIG)]


def test_new_message_drops_an_unfinished_one(opened):
    owner, socket, transport = opened
    socket.on_ws_frame(transport, FakeFrame(WSMsgType.TEXT, b"lost"))
    socket.on_ws_frame(transport, FakeFrame(WSMsgType.TEXT, b"new"))
    socket.on_ws_frame(transport, FakeFrame(WSMsgType.CONTINUATION, b"!", fin=True))
    assert owner.received == [("text", b"new!")]


def test_closed_socket_sends_nothing(opened):
    _, socket, transport = opened
    socket.send_text(b"in time")
    socket.on_ws_disconnected(transport)
    socket.send_text(b"late")
    socket.send_binary(b"late")
    socket.close()
    assert transport.sent == [(WSMsgType.TEXT, b"in time")]
    assert (socket.buffered_bytes, transport.close_codes) == (0, [])
