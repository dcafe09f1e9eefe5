"""The simulated engine as a gateway sees it."""

import asyncio

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from gateway.audio import SILENCE_FRAME
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.frames import AudioFrame, JsonFrame, TextFrame
from tests.stage import PATIENCE


async def test_frames_go_both_ways():
    async with SimulatedEngine() as engine, connect(engine.url) as socket:
        assert await engine.wait_connected(PATIENCE)
        for frame in ('{"type":"Settings"}', b"\x01" * 160, "not JSON", SILENCE_FRAME, "[1]"):
            await socket.send(frame)
        assert await engine.sink.wait_for(messages=3, audio_bytes=160, timeout=PATIENCE)
        received = [frame.content for frame in engine.sink.frames]
        assert received == [
            JsonFrame({"type": "Settings"}),
            AudioFrame(b"\x01" * 160),
            TextFrame("not JSON"),
            TextFrame("[1]"),
        ]
        assert engine.sink.silent_frames == 1
        for frame in (JsonFrame({"type": "Welcome"}), AudioFrame(b"\x02"), TextFrame("text")):
            await engine.send(frame)
        assert [await socket.recv() for _ in range(3)] == ['{"type":"Welcome"}', b"\x02", "text"]


async def test_refused_handshake_has_the_status():
    async with SimulatedEngine() as engine:
        engine.begin_call(refusal=401)
        with pytest.raises(InvalidStatus) as raised:
            await connect(engine.url)
        assert raised.value.response.status_code == 401


async def test_disconnect_refuses_the_next_handshake():
    async with SimulatedEngine() as engine:
        async with connect(engine.url) as socket:
            await engine.wait_connected(PATIENCE)
            await engine.disconnect(refusal=503)
            await socket.wait_closed()
        with pytest.raises(InvalidStatus):
            await connect(engine.url)


async def test_held_handshakes_are_admitted_one_by_one():
    """A gateway that gives a connection up opens the next one before the recording comes to that."""
    async with SimulatedEngine() as engine:
        engine.begin_call(holds=True)
        async with asyncio.TaskGroup() as tasks:
            first, second = (tasks.create_task(connect_to(engine)) for _ in range(2))
            engine.admit()
            socket = await first
            await engine.wait_connected(PATIENCE)
            await engine.disconnect()
            await socket.wait_closed()
            assert not second.done()
            engine.admit()
        assert await engine.wait_connected(PATIENCE)
        await second.result().send('{"type":"Settings"}')
        assert await engine.sink.wait_for(messages=1, audio_bytes=0, timeout=PATIENCE)
        await second.result().close()


async def test_refusal_is_for_one_handshake():
    async with SimulatedEngine() as engine:
        engine.begin_call(holds=True)
        refused, later = asyncio.create_task(connect_to(engine)), asyncio.create_task(connect_to(engine))
        await engine.refuse(503, timeout=PATIENCE)
        with pytest.raises(InvalidStatus):
            await refused
        assert not later.done()
        engine.end_call()
        await (await later).close()


async def connect_to(engine: SimulatedEngine) -> ClientConnection:
    return await connect(engine.url)


async def test_missing_frame_times_out():
    async with SimulatedEngine() as engine:
        assert not await engine.sink.wait_for(messages=1, audio_bytes=0, timeout=0.01)
        assert not await engine.wait_connected(0.01)
