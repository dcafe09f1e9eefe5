"""A TCP proxy between a node and a server that can be cut, restored, and silenced."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.ports import free_port


class Link:
    """Cut, it refuses and drops connections; silent, it keeps existing ones open and forwards nothing."""

    def __init__(self, port: int) -> None:
        self.port = free_port()
        """The proxy's own port."""
        self._target = port
        self._server: asyncio.Server | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._silent: set[asyncio.Task[None]] = set()

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @contextlib.asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Cut the link during the block."""
        await self.cut()
        try:
            yield
        finally:
            await self.mend()

    async def mend(self) -> None:
        """Listen again on the same port."""
        if self._server is not None:
            return
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for line in self._lines:
            line.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)

    def falls_silent(self) -> None:
        """Existing connections stay open without forwarding; new ones work."""
        self._silent |= self._lines

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        if self._server is None:  # accepted just before the link was cut
            writer.close()
            return
        self._lines.add(line)
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(writer):
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
            with contextlib.closing(their_writer):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(reader, their_writer, line))
                    group.create_task(self._copy(their_reader, writer, line))
        self._lines.discard(line)
        self._silent.discard(line)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: asyncio.Task[None]) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if line not in self._silent:
                    writer.write(data)
                    await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def linked(port: int) -> AsyncIterator[Link]:
    link = Link(port)
    await link.mend()
    try:
        yield link
    finally:
        await link.cut()
