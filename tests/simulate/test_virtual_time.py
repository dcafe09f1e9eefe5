import asyncio
import time

import pytest

from gateway.simulate.virtual_time import Deadlock, VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


async def test_hours_pass_at_once():
    loop, started = asyncio.get_running_loop(), time.monotonic()
    before = loop.time()
    await asyncio.sleep(3600)
    assert loop.time() - before == pytest.approx(3600)
    assert time.monotonic() - started < 1


async def test_timers_fire_in_order():
    order = []

    async def sleeper(seconds):
        await asyncio.sleep(seconds)
        order.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (3, 1, 2, 0)))
    assert order == [0, 1, 2, 3]


async def test_timeout_expires():
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await asyncio.Event().wait()


async def test_clock_stands_while_a_thread_works():
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(time.sleep, 0.05)
    assert loop.time() - before < 0.001


async def test_loopback_data_arrives_before_the_timer():
    async def echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        async with asyncio.timeout(5):
            assert await reader.readline() == b"hello\n"
        writer.close()


def test_deadlock_is_reported():
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, pytest.raises(Deadlock):
        runner.run(asyncio.Event().wait())
