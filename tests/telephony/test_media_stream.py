"""One media stream between a socket and a call, both of them fakes. Both carriers."""

import asyncio
import json
import logging

import pytest

from gateway.logs import BurstLogger
from gateway.telephony.media_stream import MAX_FRAMES_BEFORE_START, MAX_HELD_FRAMES, MediaStream, MediaTimeouts
from gateway.websocket.interface import ABNORMAL, NORMAL, POLICY_VIOLATION
from tests.telephony.dialects import STREAM_ID, TELNYX, TWILIO

AUDIO = bytes(range(160))

pytestmark = pytest.mark.virtual_time


class FakeSocket:
    def __init__(self):
        self.sent = []
        self.close_codes = []
        self.buffered_bytes = 0
        self.is_trusted = False

    def trust(self):
        self.is_trusted = True

    def send_text(self, data):
        self.sent.append(json.loads(data))

    def close(self, code=NORMAL):
        self.close_codes.append(code)


class FakeCall:
    """Records events in order; is its own recorder."""

    name = "call-1"
    wants_frames = True

    def __init__(self):
        self.events = []
        self.recorded = []

    @property
    def recorder(self):
        return self

    def from_carrier(self, frame):
        self.recorded.append(("from", json.loads(frame)["event"]))

    def to_carrier(self, frame):
        self.recorded.append(("to", json.loads(frame)["event"]))

    def on_caller_audio(self, audio):
        self.events.append(audio)

    def on_mark(self, name):
        self.events.append(("mark", name))

    def on_digit(self, digit):
        self.events.append(("digit", digit))

    def on_stream_stopped(self):
        self.events.append("stopped")

    def on_stream_lost(self):
        self.events.append("lost")


class Fixture:
    """A stream on an open socket. `admission` decides about its `start`: resolve it with a call or None."""

    def __init__(self, dialect):
        self.dialect = dialect
        self.socket, self.call = FakeSocket(), FakeCall()
        self.admission = asyncio.get_running_loop().create_future()
        self.gone = []
        log, timeouts = BurstLogger(logging.getLogger("strangers")), MediaTimeouts(start=5)
        self.stream = MediaStream(
            dialect.codec(), self.admit, gone=self.gone.append, stranger_log=log, timeouts=timeouts
        )
        self.stream.on_open(self.socket)

    async def admit(self, started, stream):
        assert started.stream_id == STREAM_ID and stream is self.stream
        return await self.admission

    def receive(self, frame):
        self.stream.on_text(frame.encode())

    def start(self):
        self.receive(json.dumps(self.dialect.start))

    async def admitted(self, call):
        self.start()
        self.admission.set_result(call)
        await asyncio.sleep(0.01)

    @property
    def sent_events(self):
        return [frame["event"] for frame in self.socket.sent]


@pytest.fixture(params=[TWILIO, TELNYX], ids=lambda dialect: dialect.name)
async def pending(request):
    return Fixture(request.param)


@pytest.fixture
async def admitted(pending):
    await pending.admitted(pending.call)
    return pending


async def test_frames_go_both_ways(admitted):
    admitted.receive(admitted.dialect.media(AUDIO))
    admitted.receive(admitted.dialect.frame("mark", mark={"name": "m1"}))
    admitted.receive(admitted.dialect.frame("dtmf", dtmf={"digit": "5"}))
    assert admitted.call.events == [AUDIO, ("mark", "m1"), ("digit", "5")]
    admitted.stream.send_audio(AUDIO)
    admitted.stream.send_mark("m2")
    admitted.stream.send_clear()
    assert admitted.sent_events == ["media", "mark", "clear"]


async def test_recorder_gets_every_frame_but_filler(admitted):
    admitted.receive(admitted.dialect.media(AUDIO))
    admitted.stream.send_audio(AUDIO)
    admitted.stream.play_filler(AUDIO)
    admitted.stream.stop_filler()
    assert admitted.call.recorded == [("from", "media"), ("to", "media")]
    assert admitted.sent_events == ["media", "media", "clear"]


async def test_frames_wait_for_the_admission(pending):
    pending.start()
    for number in (1, 2):
        pending.receive(pending.dialect.media(bytes([number]) * 160, number))
    await asyncio.sleep(1)
    assert pending.call.events == []
    pending.admission.set_result(pending.call)
    await asyncio.sleep(0.01)
    assert pending.call.events == [b"\x01" * 160, b"\x02" * 160]


async def test_unknown_stream_is_closed(pending):
    await pending.admitted(None)
    assert pending.socket.close_codes == [POLICY_VIOLATION]


async def test_held_frames_are_limited(pending):
    pending.start()
    for number in range(MAX_HELD_FRAMES + 1):
        pending.receive(pending.dialect.media(AUDIO, number + 1))
    assert pending.socket.close_codes == [POLICY_VIOLATION]
    pending.admission.cancel()


async def test_socket_without_start_is_closed(pending, caplog):
    await asyncio.sleep(4.9)
    assert pending.socket.close_codes == []
    await asyncio.sleep(0.2)
    assert pending.socket.close_codes == [POLICY_VIOLATION]
    assert [record.message for record in caplog.records] == ["media socket sent no start"]


async def test_start_stops_the_timer(admitted):
    await asyncio.sleep(60)
    assert admitted.socket.close_codes == []


async def test_stop_is_not_a_loss(admitted):
    admitted.receive(admitted.dialect.frame("stop", stop={}))
    admitted.stream.on_closed(NORMAL)
    assert admitted.call.events == ["stopped"]
    assert admitted.gone == [admitted.stream]


async def test_closed_socket_is_a_loss(admitted):
    admitted.stream.on_closed(ABNORMAL)
    assert admitted.call.events == ["lost"]
    assert admitted.gone == [admitted.stream]
    admitted.stream.send_audio(AUDIO)
    assert admitted.socket.sent == []


async def test_socket_lost_during_admission_is_reported_after_it(pending):
    pending.start()
    await asyncio.sleep(0.01)
    pending.stream.on_closed(ABNORMAL)
    assert pending.gone == []
    pending.admission.set_result(pending.call)
    await asyncio.sleep(0.01)
    assert pending.call.events == ["lost"]
    assert pending.gone == [pending.stream]


async def test_malformed_frame_of_a_call_is_dropped_and_logged_once(admitted, caplog):
    admitted.receive("not JSON")
    admitted.stream.on_binary(b"\x00")
    admitted.receive(admitted.dialect.media(AUDIO))
    assert admitted.call.events == [AUDIO]
    [record] = caplog.records
    assert (record.message, record.call) == ("carrier protocol error", "call-1")
    assert admitted.socket.close_codes == []


async def test_malformed_frame_before_admission_closes_the_socket(pending):
    pending.receive("not JSON")
    assert pending.socket.close_codes == [POLICY_VIOLATION]


async def test_carrier_error_is_logged(caplog):
    telnyx = Fixture(TELNYX)
    await telnyx.admitted(telnyx.call)
    telnyx.receive(telnyx.dialect.frame("error", payload={"code": "100005", "title": "rate limit reached"}))
    [record] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert (record.message, record.code) == ("carrier reported an error", "100005")


async def test_short_audio_is_sent_at_the_end_of_an_answer():
    """Telnyx takes no message below 20 ms."""
    telnyx = Fixture(TELNYX)
    await telnyx.admitted(telnyx.call)
    telnyx.stream.send_audio(AUDIO[:80])
    assert telnyx.socket.sent == []
    telnyx.stream.finish_audio()
    assert telnyx.sent_events == ["media"]


async def test_unread_bytes_are_the_sockets(pending):
    pending.socket.buffered_bytes = 42
    assert pending.stream.buffered_bytes == 42
    pending.stream.on_closed(ABNORMAL)
    assert pending.stream.buffered_bytes == 0


async def test_carrier_is_the_codecs():
    assert Fixture(TWILIO).stream.carrier == "twilio"


async def test_socket_is_trusted_after_its_token(pending):
    pending.start()
    assert not pending.socket.is_trusted
    pending.admission.set_result(pending.call)
    await asyncio.sleep(0.01)
    assert pending.socket.is_trusted


async def test_frames_before_start_are_limited(pending):
    for _ in range(MAX_FRAMES_BEFORE_START):
        pending.receive('{"event": "connected"}')
    assert pending.socket.close_codes == []
    pending.receive('{"event": "connected"}')
    assert pending.socket.close_codes == [POLICY_VIOLATION]


async def test_error_before_start_is_ignored(pending, caplog):
    for _ in range(3):
        pending.receive(json.dumps({"event": "error", "payload": {"code": "1", "title": "x" * 50_000}}))
    assert (caplog.records, pending.socket.close_codes) == ([], [])
