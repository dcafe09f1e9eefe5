import asyncio
import socket
import sys
import time

import pytest

from gateway.simulate import virtual_time
from gateway.simulate.virtual_time import Deadlock, VirtualTimeLoop

pytestmark = pytest.mark.virtual_time

ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the clock knows only Linux's sockets")


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


@ON_LINUX
async def test_clock_stands_while_the_kernel_carries_data(monkeypatch):
    """A busy kernel is simulated: it says a few times that a byte has not arrived yet."""
    loop = asyncio.get_running_loop()
    asked_at = []

    def received(fd):
        asked_at.append(loop.time())
        return 6 if len(asked_at) < 5 else 7

    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            loop.add_reader(client, pytest.fail)
            loop.add_reader(server, pytest.fail)
            monkeypatch.setattr(virtual_time, "_sent", lambda fd: 7)
            monkeypatch.setattr(virtual_time, "_received", received)
            before = loop.time()
            await asyncio.sleep(1)
            assert loop.time() == before + 1
            loop.remove_reader(client)
            loop.remove_reader(server)
    assert set(asked_at[:5]) == {before}


@ON_LINUX
def test_bytes_sent_and_received_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"hello")
            assert server.recv(100) == b"hello"
            assert virtual_time._received(server.fileno()) == 5
            assert virtual_time._sent(client.fileno()) in (5, 0)  # 0 once it has been acknowledged


def test_deadlock_is_reported():
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner, pytest.raises(Deadlock):
        runner.run(asyncio.Event().wait())
