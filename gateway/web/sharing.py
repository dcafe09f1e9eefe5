"""What this process shares with others: everything through Redis, or a disk with the workers beside it, or nothing."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gateway.calls.call_table import TOKEN_SECONDS
from gateway.calls.level_meter import LevelMeters
from gateway.cluster.directory import CallDirectory
from gateway.cluster.file_store import FileStore
from gateway.cluster.node import ClusterNode
from gateway.cluster.store import SharedStore
from gateway.cluster.worker_metrics import WorkerMetrics
from gateway.errors import SettingsError
from gateway.history.event_store import EventStore
from gateway.history.live_events import EventPublisher
from gateway.memory.erasure import SharedData
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.cluster.event_stream import EventStream
    from gateway.finalization.redis_queue import RedisJobQueue


@dataclass(frozen=True)
class Sharing:
    """How a process knows of others. Without neighbours it is alone, and has no name."""

    cluster: ClusterNode | None = None
    stream: "RedisJobQueue | None" = None
    shares_disk: bool = False
    events: "EventStream | None" = None
    shared_store: SharedStore | None = None
    traces: SharedData | None = None

    def call_events(self, events: EventStore, listener: Callable[[Mapping[str, Any]], None] | None) -> EventPublisher:
        """What is told of calls: here, or to every node."""
        share = self.events.share if self.events is not None else None
        return EventPublisher(events, self.events, share, listener=listener)

    def metrics(self) -> WorkerMetrics | None:
        """What this process and the workers beside it have counted."""
        if self.cluster is None or self.shared_store is None or not self.shares_disk:
            return None
        return WorkerMetrics(self.shared_store, self.cluster.directory)

    @contextlib.asynccontextmanager
    async def own_board(self, data_dir: Path) -> AsyncIterator[SharedStore]:
        """The board that is shared; for a process that is alone, one that outlives it."""
        if self.shared_store is not None:
            yield self.shared_store
            return
        shared_store = await FileStore.open(data_dir / "workers.db")
        try:
            yield shared_store
        finally:
            await shared_store.close()

    def levels(self) -> LevelMeters:
        """How loud calls are: here, or at every node."""
        others = self.cluster
        if others is None:
            return LevelMeters()
        return LevelMeters(self.shared_store, node=self.node, nodes=lambda: [node["node"] for node in others.nodes])

    @property
    def node(self) -> str:
        return self.cluster.directory.node if self.cluster is not None else ""


def check(settings: Settings) -> None:
    """A person's mistake in REDIS_URL, before anything runs."""
    if settings.redis_url is None:
        return
    from redis.asyncio.connection import parse_url  # only here, as below

    address = settings.redis_url.reveal()
    mistake = SettingsError("REDIS_URL is not an address of Redis; write it like redis://127.0.0.1:6379/0")
    try:
        parse_url(address)
    except ValueError:
        raise mistake from None  # what it says may hold the password
    parts = urlsplit(address)
    if not (parts.hostname or parts.path):
        raise mistake


@contextlib.asynccontextmanager
async def shared(settings: Settings, *, shares_disk: bool) -> AsyncIterator[Sharing]:
    """Open what is shared, and close it again."""
    sync_seconds = max(1, settings.voice_session_sync_interval)
    if settings.redis_url is not None:
        # Only here: its import takes 0.1 s, and one node needs none.
        from gateway.cluster import redis_store
        from gateway.cluster.erasure import SharedErasure
        from gateway.cluster.event_stream import EventStream
        from gateway.finalization.redis_queue import RedisJobQueue

        client = redis_store.connect(settings.redis_url.reveal())
        shared_store = redis_store.RedisStore(client)
        directory = CallDirectory(shared_store, token_seconds=TOKEN_SECONDS)
        cluster = ClusterNode(directory, sync_seconds=sync_seconds, shares_disk=shares_disk)
        try:
            jobs = RedisJobQueue(client, directory.node, directory.alive)
            events = EventStream(client, directory)
            yield Sharing(cluster, jobs, shares_disk, events, shared_store, SharedErasure(client))
        finally:
            await shared_store.close()
    elif shares_disk:
        file = await FileStore.open(settings.data_dir / "workers.db")
        directory = CallDirectory(file, token_seconds=TOKEN_SECONDS)
        try:
            yield Sharing(
                ClusterNode(directory, sync_seconds=sync_seconds, shares_disk=True), None, True, shared_store=file
            )
        finally:
            await file.close()
    else:
        yield Sharing()


@contextlib.asynccontextmanager
async def shared_traces(settings: Settings) -> AsyncIterator[SharedData | None]:
    """What calls have left for other nodes, for a process that is none itself."""
    if settings.redis_url is None:
        yield None
        return
    from gateway.cluster import redis_store
    from gateway.cluster.erasure import SharedErasure

    client = redis_store.connect(settings.redis_url.reveal())
    try:
        yield SharedErasure(client)
    finally:
        await client.aclose()
