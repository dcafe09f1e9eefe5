"""The private server of workers: a real Valkey."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
import redis.asyncio

from gateway import extras
from gateway.cluster import valkey
from gateway.cluster.valkey import ValkeyTimeouts, find_server, private_valkey
from gateway.errors import GatewayError, SettingsError
from tests.stage import until, until_it

QUICK = ValkeyTimeouts(restart_pause=0.05)


def running(folder: Path) -> list[int]:
    """The servers that use this folder."""
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = cmdline.read_bytes().split(b"\0")
            if words[0].endswith(b"-server") or b"-server " in words[0]:
                if str(folder) in str(cmdline.parent.joinpath("cwd").readlink()):
                    found.append(int(cmdline.parent.name))
        except OSError:  # it has ended
            continue
    return found


async def answers(url: str) -> bool:
    async with redis.asyncio.Redis.from_url(url) as client:
        try:
            return bool(await client.ping())
        except (redis.RedisError, OSError):
            return False


async def test_server_runs_while_the_block_does(tmp_path: Path) -> None:
    async with private_valkey(tmp_path / "data", os.environ, QUICK) as server:
        assert await answers(server.url)
        assert len(running(tmp_path)) == 1
    assert not await answers(server.url)
    assert running(tmp_path) == []


async def test_only_the_owner_can_reach_it(tmp_path: Path) -> None:
    async with private_valkey(tmp_path, os.environ, QUICK):
        folder = tmp_path / "valkey"
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_data_outlives_the_server(tmp_path: Path) -> None:
    for expected in (None, b"1"):
        async with private_valkey(tmp_path, os.environ, QUICK) as server:
            async with redis.asyncio.Redis.from_url(server.url) as client:
                assert await client.get("name") == expected
                await client.set("name", "1")


async def test_killed_server_is_restarted(tmp_path: Path) -> None:
    async with private_valkey(tmp_path, os.environ, QUICK) as server:
        [pid] = running(tmp_path)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: running(tmp_path) not in ([], [pid]))
        await until_it(lambda: answers(server.url))


async def test_server_outlives_a_killed_supervisor_while_workers_run(tmp_path: Path) -> None:
    """It ends with the last process that holds the lease, and never before."""
    program = (
        "import asyncio, os, sys, pathlib\n"
        "from gateway.cluster.valkey import private_valkey, ValkeyTimeouts\n"
        "async def main():\n"
        "    async with private_valkey(pathlib.Path(sys.argv[1]), os.environ, ValkeyTimeouts()) as server:\n"
        "        worker = await asyncio.create_subprocess_exec('sleep', '600', pass_fds=[server.lease_fd])\n"
        "        pathlib.Path(sys.argv[1], 'started').write_text(f'{worker.pid} {server.url}')\n"
        "        await worker.wait()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", program, str(tmp_path))
    started = tmp_path / "started"
    worker, url = await until(lambda: started.exists() and started.read_text().split())
    supervisor.kill()
    await supervisor.wait()
    await asyncio.sleep(0.2)
    assert await answers(url)
    os.kill(int(worker), signal.SIGKILL)
    await until(lambda: running(tmp_path) == [])


async def test_server_that_cannot_write_its_snapshot_stops(tmp_path: Path) -> None:
    """As on a full disk."""
    async with private_valkey(tmp_path, os.environ, QUICK) as server:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.set("name", "1")
        (tmp_path / "valkey" / "dump.rdb").mkdir()  # which no snapshot can replace
    assert running(tmp_path) == []


async def test_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    """A Unix socket's address holds about a hundred bytes."""
    folder = tmp_path / ("long" * 30)
    async with private_valkey(folder, os.environ, QUICK) as server:
        assert await answers(server.url)
        assert str(folder) not in server.url


async def test_server_that_does_not_start_names_its_log(tmp_path: Path) -> None:
    (tmp_path / "valkey" / "socket").mkdir(parents=True)
    with pytest.raises(GatewayError, match="Valkey did not start; see .*valkey.log"):
        async with private_valkey(tmp_path, os.environ, ValkeyTimeouts(start=0.5)):
            pass


def test_missing_server_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey.shutil, "which", lambda _: None)
    monkeypatch.setitem(extras.PACKAGES, "workers", ("no_such_package",))  # type: ignore[index]
    with pytest.raises(SettingsError, match="--workers is given without REDIS_URL but the extra workers is not"):
        find_server()
