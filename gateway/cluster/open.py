"""Open what this process shares with other nodes or workers: Redis, or nothing for a single process."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gateway import extras
from gateway.cluster.directory import CallDirectory, ClusterTimeouts
from gateway.cluster.node import Cluster, ClusterNode, SingleNode
from gateway.cluster.store import ExpiringStore, LocalStore, NoSharedStore
from gateway.errors import SettingsError
from gateway.finalization.job import NoJobQueue
from gateway.history.erasure import NoSharedData, SharedData
from gateway.history.live_events import EventSource
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.cluster.event_stream import EventStream
    from gateway.finalization.redis_queue import RedisJobQueue


class NoEventStream:
    """The events of this process stay in its call log."""

    def share(self, event: bytes) -> None: ...

    def source(self, log: EventSource) -> EventSource:
        return log


@dataclass(frozen=True)
class Sharing:
    """What this process shares with others."""

    cluster: Cluster
    store: ExpiringStore
    """For outbound requests, used guest links, and limits of all nodes."""
    levels: ExpiringStore
    """For the audio levels of live calls, which are not worth a write to disk."""
    shares_disk: bool
    jobs: "RedisJobQueue | NoJobQueue"
    events: "EventStream | NoEventStream"
    traces: SharedData


def check_redis_url(settings: Settings) -> None:
    """Raise SettingsError for a REDIS_URL that Redis would not accept."""
    if settings.redis_url is None:
        return
    extras.require("redis", "REDIS_URL is set")
    from redis.asyncio.connection import parse_url  # here, because the import takes 0.1 s

    address = settings.redis_url.reveal()
    try:
        parse_url(address)
        is_complete = bool(urlsplit(address).hostname or urlsplit(address).path)
    except ValueError:
        is_complete = False
    if not is_complete:  # outside of the handler: the error may quote the password
        raise SettingsError("REDIS_URL is not an address of Redis; write it like redis://127.0.0.1:6379/0")


@contextlib.asynccontextmanager
async def open_sharing(
    settings: Settings, timeouts: ClusterTimeouts, *, shares_disk: bool, private_redis: str
) -> AsyncIterator[Sharing]:
    """
    Open what is shared while the block runs.

    `shares_disk`: other workers use the same DATA_DIR. Without REDIS_URL they share calls through `private_redis`, and
    everything that outlives a call through the files in DATA_DIR: no words of a caller stay in that server.
    """
    sync_seconds = max(1, settings.voice_session_sync_interval)
    address, password = private_redis, None
    if settings.redis_url is not None:
        address, password = settings.redis_url.reveal(), settings.redis_password
    if address:
        # Here, because the import takes 0.1 s and a single node does not need it.
        from gateway.cluster import redis_store
        from gateway.cluster.event_stream import EventStream, SharedErasure
        from gateway.finalization.redis_queue import RedisJobQueue

        client = redis_store.connect(address, password)
        store = redis_store.RedisStore(client)
        directory = CallDirectory(store, timeouts)
        cluster = ClusterNode(directory, timeouts, sync_seconds=sync_seconds, shares_disk=shares_disk)
        try:
            if settings.redis_url is None:
                yield Sharing(cluster, store, store, shares_disk, NoJobQueue(), NoEventStream(), NoSharedData())
            else:
                jobs = RedisJobQueue(client, directory.node, directory.alive)
                events, erasure = EventStream(client, directory), SharedErasure(client, patience=timeouts.erasure)
                yield Sharing(cluster, store, store, shares_disk, jobs, events, erasure)
        finally:
            await store.close()
        return
    local = await LocalStore.open(settings.data_dir / "local.db")
    try:
        yield Sharing(SingleNode(), local, NoSharedStore(), False, NoJobQueue(), NoEventStream(), NoSharedData())
    finally:
        await local.close()


@contextlib.asynccontextmanager
async def open_shared_store(settings: Settings) -> AsyncIterator[ExpiringStore]:
    """What nodes share in Redis, for a command that is not a node itself."""
    if settings.redis_url is None:
        yield NoSharedStore()
        return
    from gateway.cluster import redis_store

    store = redis_store.RedisStore(redis_store.connect(settings.redis_url.reveal(), settings.redis_password))
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def open_shared_erasure(settings: Settings) -> AsyncIterator[SharedData]:
    """The data of calls in Redis, for a command that erases them and is not a node itself."""
    if settings.redis_url is None:
        yield NoSharedData()
        return
    from gateway.cluster import redis_store
    from gateway.cluster.event_stream import SharedErasure

    client = redis_store.connect(settings.redis_url.reveal(), settings.redis_password)
    try:
        yield SharedErasure(client)
    finally:
        await client.aclose()
