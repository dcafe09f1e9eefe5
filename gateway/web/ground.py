"""What the running application stands on: its stores and files, the other nodes, and the live feed."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx

from gateway.calls.level_meter import LevelMeters
from gateway.calls.recorder import RecordingDirectory
from gateway.finalization.archive import Archive
from gateway.history import trace_export
from gateway.history.event_store import EventStore
from gateway.history.journal import Journal
from gateway.history.live_events import EventPublisher
from gateway.maintenance import at_work
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.open_stores import Stores, open_own_stores
from gateway.memory.remem_client import RememClient
from gateway.memory.store import MemoryStore
from gateway.web import sharing
from gateway.web.blueprint import Blueprint, remem
from gateway.web.sharing import Sharing


@dataclass(frozen=True)
class Ground:
    """All of it, open."""

    http: httpx.AsyncClient
    embedder: Embedder | None
    stores: Stores
    remem: RememClient | None
    recordings: RecordingDirectory
    archive: Archive
    journal: Journal
    others: Sharing
    events: EventStore
    call_events: EventPublisher
    levels: LevelMeters

    @property
    def store(self) -> MemoryStore:
        """What is known of callers."""
        return self.stores.memory


@contextlib.asynccontextmanager
async def ground(blueprint: Blueprint, *, is_worker: bool) -> AsyncIterator[Ground]:
    """Open it, and close it again. With neighbours, this node is one of them while the block runs."""
    settings = blueprint.settings
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient())
        # Its own connections: while a store hangs, carriers must not wait for theirs.
        store_http = await stack.enter_async_context(httpx.AsyncClient()) if settings.remem_api_url else http
        embedder = Embedder() if settings.memory_vectors else None
        stores = await open_own_stores(settings.data_dir, settings.database_url, embedder=embedder)
        stack.push_async_callback(stores.close)
        stack.push_async_callback(blueprint.writer.close)
        recordings = RecordingDirectory(settings.record_dir)
        stack.callback(recordings.close)
        others = await stack.enter_async_context(sharing.shared(settings, shares_disk=is_worker))
        if others.cluster is not None:
            await stack.enter_async_context(at_work(others.cluster.run()))
            stack.push_async_callback(others.cluster.close)
        journal = Journal(settings.data_dir / "journal.db", others.node)
        stack.callback(journal.close)
        events = EventStore(settings.data_dir / "events.db", shared=is_worker)
        stack.callback(events.close)
        tracer = await stack.enter_async_context(trace_export.traced(settings))
        yield Ground(
            http=http,
            embedder=embedder,
            stores=stores,
            remem=remem(settings, store_http),
            recordings=recordings,
            archive=Archive(settings.voice_session_archive_dir, retention_days=settings.voice_session_retention_days),
            journal=journal,
            others=others,
            events=events,
            call_events=others.call_events(events, tracer.tell if tracer is not None else None),
            levels=others.levels(),
        )
