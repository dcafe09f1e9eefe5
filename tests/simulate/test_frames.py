"""The sink of a simulated peer."""

import asyncio

import pytest

from gateway.simulate.frames import AudioFrame, FrameSink, JsonFrame, TextFrame, wait_processed

pytestmark = pytest.mark.virtual_time


async def test_sink_keeps_frames_with_their_time():
    sink = FrameSink()
    began = asyncio.get_running_loop().time()
    sink.put(JsonFrame({"event": "mark"}))
    await asyncio.sleep(1)
    sink.put(AudioFrame(b"\x01"))
    assert [(frame.at - began, frame.content) for frame in sink.frames] == [
        (0.0, JsonFrame({"event": "mark"})),
        (1.0, AudioFrame(b"\x01")),
    ]


async def test_wait_counts_messages_and_audio_apart():
    sink = FrameSink()
    waiting = asyncio.create_task(sink.wait_for(messages=2, audio_bytes=320, timeout=10))
    for frame in (TextFrame("one"), AudioFrame(bytes(160)), JsonFrame({}), AudioFrame(bytes(160))):
        await asyncio.sleep(1)
        assert not waiting.done()
        sink.put(frame)
    assert await waiting


async def test_wait_ends_after_its_timeout():
    sink = FrameSink()
    began = asyncio.get_running_loop().time()
    sink.put(TextFrame("one"))
    assert not await sink.wait_for(messages=2, audio_bytes=0, timeout=10)
    assert asyncio.get_running_loop().time() - began == 10


class DeafSocket:
    """Answers no ping but the third, as a media socket that the gateway accepts late."""

    def __init__(self) -> None:
        self.pings = 0

    async def ping(self):
        self.pings += 1
        pong = asyncio.get_running_loop().create_future()
        if self.pings == 3:
            pong.set_result(0.0)
        return pong


async def test_unanswered_ping_is_repeated():
    socket, began = DeafSocket(), asyncio.get_running_loop().time()
    await wait_processed(socket)
    assert socket.pings == 3
    assert asyncio.get_running_loop().time() - began < 1
