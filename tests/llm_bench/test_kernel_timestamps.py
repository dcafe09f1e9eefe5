import asyncio
import time

import pytest

from scripts.llm_bench.kernel_timestamps import StampedConnection


async def connected(serve):
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, await StampedConnection.open(*server.sockets[0].getsockname())


async def test_late_reader_knows_when_it_came():
    """The event loop is held up between the arrival and the reading."""
    writers = asyncio.Queue()
    server, connection = await connected(lambda reader, writer: writers.put(writer))
    async with server, connection:
        writer = await writers.get()
        for _ in range(100):  # the kernel takes a moment to begin with it
            writer.write(b"word")
            sent_ns = time.monotonic_ns()
            time.sleep(0.02)  # noqa: ASYNC251  holding up the loop is the test
            data, at_ns = await connection.read()
            assert data == b"word"
            if at_ns < sent_ns + 10_000_000:
                break
        else:
            pytest.fail("the kernel does not tell")
        assert at_ns > sent_ns - 1_000_000_000
        writer.close()
        assert (await connection.read()).data == b""


async def test_what_is_written_arrives():
    async def echo(reader, writer):
        writer.write(await reader.readexactly(5))
        writer.close()

    server, connection = await connected(echo)
    async with server, connection:
        await connection.write(b"hello")
        assert (await connection.read()).data == b"hello"
        assert (await connection.read()).data == b""


async def test_closed_port_is_an_os_error():
    server, connection = await connected(lambda reader, writer: writer.close())
    port = server.sockets[0].getsockname()[1]
    async with server, connection:
        pass
    with pytest.raises(OSError):
        await StampedConnection.open("127.0.0.1", port)
