"""What a process shares: nothing, a private Redis with its workers, or a Redis with other nodes."""

from pathlib import Path

import pytest
import redis.asyncio

from gateway.cluster.directory import ClusterTimeouts
from gateway.cluster.event_stream import SharedErasure
from gateway.cluster.node import ClusterNode, SingleNode
from gateway.cluster.open import Sharing, check_redis_url, open_shared_erasure, open_shared_store, open_sharing
from gateway.cluster.store import NoSharedStore
from gateway.errors import SettingsError
from gateway.history.erasure import NoSharedData
from gateway.history.live_events import NoCallLog
from gateway.settings import Secret, Settings
from tests.redis_server import running_redis

TIMEOUTS = ClusterTimeouts()


def settings(folder: Path, redis_url: str = "") -> Settings:
    return Settings(data_dir=folder, redis_url=Secret(redis_url) if redis_url else None)


def keeps_all_for_itself(sharing: Sharing) -> None:
    """Jobs, events and what erasure has to find."""
    log = NoCallLog()
    assert not sharing.jobs.is_shared
    assert sharing.events.source(log) is log
    assert isinstance(sharing.traces, NoSharedData)


async def test_single_process_shares_nothing(tmp_path):
    async with open_sharing(settings(tmp_path), TIMEOUTS, shares_disk=False, private_redis="") as sharing:
        assert isinstance(sharing.cluster, SingleNode)
        assert isinstance(sharing.levels, NoSharedStore)
        assert not sharing.shares_disk
        keeps_all_for_itself(sharing)
        await sharing.store.put("order:1", b"sealed", 60.0)
    async with open_sharing(settings(tmp_path), TIMEOUTS, shares_disk=False, private_redis="") as sharing:
        assert await sharing.store.get("order:1") == b"sealed"


async def test_workers_share_calls_and_nothing_that_outlives_them(tmp_path):
    async with running_redis(tmp_path / "redis") as redis:
        given = settings(tmp_path)
        async with open_sharing(given, TIMEOUTS, shares_disk=True, private_redis=redis.url) as sharing:
            assert isinstance(sharing.cluster, ClusterNode) and sharing.shares_disk
            assert sharing.levels is sharing.store
            keeps_all_for_itself(sharing)


async def test_nodes_share_jobs_and_events_too(tmp_path):
    async with running_redis(tmp_path / "redis") as redis:
        given = settings(tmp_path, redis.url)
        async with open_sharing(given, TIMEOUTS, shares_disk=False, private_redis="") as sharing:
            assert isinstance(sharing.cluster, ClusterNode)
            assert sharing.jobs.is_shared
            assert sharing.events.source(NoCallLog()) is sharing.events
            assert isinstance(sharing.traces, SharedErasure)
        async with open_shared_erasure(given) as erasure:
            assert isinstance(erasure, SharedErasure)


async def test_command_without_redis_has_nothing_to_erase_there(tmp_path):
    async with open_shared_erasure(settings(tmp_path)) as erasure:
        assert isinstance(erasure, NoSharedData)


@pytest.mark.parametrize(
    "address", ["redis://127.0.0.1:6379/0", "rediss://user:pw@host/1", "unix:///run/redis.sock", ""]
)
def test_address_is_accepted(tmp_path, address):
    check_redis_url(settings(tmp_path, address))


def test_password_is_not_quoted(tmp_path):
    with pytest.raises(SettingsError) as raised:
        check_redis_url(settings(tmp_path, "redis://:hunter2@127.0.0.1:port/0"))
    assert "hunter2" not in str(raised.value) and raised.value.__cause__ is None


async def test_commands_use_the_password_of_redis(tmp_path):
    async with running_redis(tmp_path / "redis") as server:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.config_set("requirepass", "p@ss")
        given = Settings(data_dir=tmp_path, redis_url=Secret(server.url), redis_password=Secret("p@ss"))
        async with open_shared_store(given) as store:
            await store.put("pin-failures:1", b"3", 60.0)
            assert await store.get("pin-failures:1") == b"3"
