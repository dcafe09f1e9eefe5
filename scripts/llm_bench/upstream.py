"""
A minimal OpenAI-compatible language model in its own process.

The first token of every answer is its send time in nanoseconds of the monotonic clock.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import uvloop

import gateway
from gateway.errors import BenchFailed
from scripts.llm_bench.interference import raise_priority

FIRST_PIECE_SECONDS: Final = 0.4
PIECES: Final = 30
PIECE_SECONDS: Final = 0.02
"""Fifty tokens a second, a typical rate of small models."""

_READY_SECONDS: Final = 20.0
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
_NO_BODY: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_RECORD: Final = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1790000000,"model":"bench",'
    b'"choices":[{"index":0,"delta":{%b},"finish_reason":%b}]}\n\n'
)


@contextlib.asynccontextmanager
async def running_upstream() -> AsyncIterator[str]:
    """Yield its URL. Raises BenchFailed if it does not start."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", "from scripts.llm_bench.upstream import main; main()"),
        env={**os.environ, "PYTHONPATH": str(Path(gateway.__file__).parent.parent)},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_READY_SECONDS):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    except (TimeoutError, ValueError):
        raise BenchFailed("the simulated language model did not start") from None
    finally:
        process.kill()
        await process.wait()


# The process


def main() -> None:
    """Listen on a free loopback port and print its number."""
    raise_priority()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_listen())


async def _listen() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(_length_of(head))
            if head.startswith(b"POST"):
                await _answer(writer)
            else:
                _send(writer, _NO_BODY)


def _length_of(head: bytes) -> int:
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    return next((int(value) for name, _, value in fields if name == b"content-length"), 0)


async def _answer(writer: asyncio.StreamWriter) -> None:
    _send(writer, _HEAD + _chunk(_record(b'"role":"assistant","content":""')))
    await asyncio.sleep(FIRST_PIECE_SECONDS)
    _send(writer, _chunk(_record(b'"content":"%d"' % time.monotonic_ns())))
    for _ in range(PIECES - 1):
        await asyncio.sleep(PIECE_SECONDS)
        _send(writer, _chunk(_record(b'"content":" word"')))
    _send(writer, _chunk(_record(b"", b'"stop"')) + _chunk(b"data: [DONE]\n\n") + _chunk(b""))


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    if writer.is_closing():
        raise ConnectionResetError("the client has disconnected")
    writer.write(data)


def _record(delta: bytes, finish_reason: bytes = b"null") -> bytes:
    return _RECORD % (delta, finish_reason)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
