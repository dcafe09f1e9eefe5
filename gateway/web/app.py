"""The application: every part made and connected, every route in one list, started and stopped in order."""

import contextlib
import functools
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import httpx
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gateway import metrics
from gateway.calls.archive import Archive
from gateway.calls.brain_room import BrainRoom
from gateway.calls.brains import keep_warm
from gateway.calls.desk import CallDesk, Memory
from gateway.calls.event_log import EventLog
from gateway.calls.feed import Feed
from gateway.calls.finalize import Finalizer
from gateway.calls.forgetting import Forgetting, Places
from gateway.calls.functions.kit import KitRoom
from gateway.calls.journal import Journal
from gateway.calls.levels import Levels
from gateway.calls.nodes.neighbours import Neighbours
from gateway.calls.own_store import open_own_stores
from gateway.calls.session_room import SessionRoom
from gateway.links import picows_sockets, websockets_sockets
from gateway.links.carrier_rest import CallControl
from gateway.links.recorder import RecordingRoom
from gateway.links.sockets import Connector
from gateway.memory.embedding import Embedder
from gateway.memory.facts import FactBook
from gateway.memory.notes import CallerNotes
from gateway.memory.personas import PersonaBook
from gateway.memory.pins import PinBook
from gateway.memory.recall import Recall
from gateway.memory.remem import RememClient
from gateway.memory.shown import ShownDocuments
from gateway.memory.store import MemoryStore
from gateway.metrics import ENDINGS, LIVE_CALLS, LOOP_LAG, OLDEST_ENDING, RESTING
from gateway.settings import Settings
from gateway.web import chat_proxy, documents, health, sessions, sharing, traces
from gateway.web.blueprint import Blueprint, carriers, controls, remem, telnyx_control
from gateway.web.engine_room import EngineRoom, engine_room
from gateway.web.live import LiveDoor
from gateway.web.mcp import create_mcp
from gateway.web.media import CODECS, MediaDoor
from gateway.web.pages.dashboard import dashboard
from gateway.web.phone import PhoneBooth
from gateway.web.public import PublicAddress
from gateway.web.rooms import brain_room, kit_room, make_finalizer
from gateway.web.telnyx import TelnyxWebhooks
from gateway.web.twilio import TwilioWebhooks
from gateway.web.upkeep import (
    at_work,
    collect_garbage,
    delete_old,
    delete_old_events,
    expire_facts,
    prepare,
    retention_of,
    sweep,
)

CLOSING_SECONDS: Final = 10.0
"""How long endings may take at shutdown; what is left is taken up at the next start."""

FORGET_SECONDS: Final = 2.0
"""How long a caller who wants to be forgotten waits for whoever else has a database."""


def create_app(
    settings: Settings, *, connect: Connector = picows_sockets.connect, is_worker: bool = False
) -> Starlette:
    """
    The gateway as an ASGI application. SettingsError at once for what a person got wrong.

    `is_worker`: other processes use the same DATA_DIR.

    Everything that runs is started and stopped by the application's lifespan. Its state holds `media_door`, the factory
    for media sockets, which do not pass through ASGI, `desk`, for whoever wants to drain it, and `end_streams`, which
    ends the responses that have no end of their own.
    """
    blueprint = Blueprint.from_settings(settings, connect)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with _running(blueprint, is_worker) as parts:
            app.router.routes.extend(parts.routes)
            yield {"media_door": parts.media_door, "desk": parts.desk, "end_streams": parts.feed.close}

    return Starlette(lifespan=lifespan)


@dataclass(frozen=True)
class _Parts:
    """What the running application shows to the outside."""

    routes: list[BaseRoute]
    media_door: MediaDoor
    desk: CallDesk
    feed: Feed


@contextlib.asynccontextmanager
async def _running(blueprint: Blueprint, is_worker: bool) -> AsyncIterator[_Parts]:
    """Everything that runs. Stopped in the opposite order: calls first, then their endings, then the stores."""
    settings = blueprint.settings
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient())
        embedder = Embedder() if settings.memory_vectors else None
        stores = await open_own_stores(settings.data_dir, settings.database_url, embedder=embedder)
        stack.push_async_callback(stores.close)
        store = stores.memory
        stack.push_async_callback(blueprint.writer.close)
        recordings = RecordingRoom(settings.record_dir)
        stack.callback(recordings.close)
        remote = remem(settings, http)
        archive = Archive(settings.voice_session_archive_dir, retention_days=settings.voice_session_retention_days)
        others = await stack.enter_async_context(sharing.shared(settings, shares_disk=is_worker))
        if others.neighbours is not None:
            await stack.enter_async_context(at_work(others.neighbours.run()))
            stack.push_async_callback(others.neighbours.close)
        journal = Journal(settings.data_dir / "journal.db", others.node)
        stack.callback(journal.close)
        events = EventLog(settings.data_dir / "events.db", shared=is_worker)
        stack.callback(events.close)
        tracer = await stack.enter_async_context(traces.traced(settings))
        feed, levels = others.feed(events, tracer.tell if tracer is not None else None), others.levels()
        forgetting = Forgetting(
            store,
            Places.of(settings),
            remote,
            blueprint.store_keys[0],
            local=stores.local,
            shared=others.traces,
            patience=FORGET_SECONDS,
        )
        finalizer = make_finalizer(blueprint, stores, remote, archive, journal, others, feed, forgetting, embedder)
        stack.push_async_callback(finalizer.close, seconds=CLOSING_SECONDS)
        telnyx_rest = telnyx_control(settings, http)
        memory = _memory(blueprint, store, remote, journal, forgetting)
        rests = controls(settings, http, telnyx_rest)
        kits = await stack.enter_async_context(kit_room(blueprint, store, memory, http))
        brains = await stack.enter_async_context(brain_room(blueprint, memory, others))
        engine = await stack.enter_async_context(engine_room(blueprint, brains.bearers))
        desk = _desk(
            blueprint, engine, memory, finalizer, recordings, rests, kits, brains, others.neighbours, feed, levels
        )
        if others.neighbours is not None:
            figures = functools.partial(_figures, desk, finalizer)
            await stack.enter_async_context(at_work(others.neighbours.listen(desk, figures)))
        stack.push_async_callback(desk.close)
        public = PublicAddress(settings.public_url)
        telnyx = TelnyxWebhooks(desk, public, blueprint.verifier, telnyx_rest)
        stack.push_async_callback(telnyx.close)
        for work in _works(blueprint, store, archive, events, finalizer, forgetting, desk, levels):
            await stack.enter_async_context(at_work(work))
        _measure(desk, finalizer)
        if (crew := others.metrics()) is not None:
            await stack.enter_async_context(at_work(crew.run()))
        await desk.recover(ended=await finalizer.resume())
        room = SessionRoom(stores, data_dir=settings.data_dir, archive_dir=settings.voice_session_archive_dir)
        media_door = MediaDoor(desk, carriers(settings))
        state = functools.partial(_state, settings, store, engine, desk, finalizer, others.neighbours)
        live = LiveDoor(feed, levels, blueprint.store_keys[0])
        board = await stack.enter_async_context(others.own_board(settings.data_dir))
        booth = PhoneBooth(desk, public, blueprint.store_keys[0], board)
        pages = await stack.enter_async_context(
            dashboard(
                settings,
                blueprint.store_keys[0],
                archive=archive,
                remem=remote,
                shared=others.traces,
                desk=desk,
                feed=feed,
                live=live,
                booth=booth,
                agents=blueprint.agents,
                state=state,
            )
        )
        routes = [
            *TwilioWebhooks(desk, public, settings.twilio_auth_token).routes(),
            *telnyx.routes(),
            *booth.routes(),
            *chat_proxy.routes(brains.bearers),
            *_store_routes(blueprint, store, forgetting),
            *sessions.routes(room, blueprint.store_keys[0]),
            *live.routes(),
            *health.routes(
                state,
                lambda: desk.takes_calls and engine.is_ready,
                crew.render if crew is not None else _own_metrics,
            ),
            *pages,
            # Reached only where the server speaks WebSocket through ASGI; the front keeps media sockets from it.
            *websockets_sockets.routes(media_door, CODECS),
        ]
        yield _Parts(routes, media_door, desk, feed)


def _works(
    blueprint: Blueprint,
    store: MemoryStore,
    archive: Archive,
    events: EventLog,
    finalizer: Finalizer,
    forgetting: Forgetting,
    desk: CallDesk,
    levels: Levels,
) -> Iterable[Coroutine[Any, Any, None]]:
    """What goes on beside calls, each until it is cancelled."""
    settings = blueprint.settings
    yield store.watch()
    yield desk.run()
    yield levels.run()
    yield finalizer.sweep()
    yield finalizer.work_off()
    yield finalizer.follow()
    yield keep_warm(blueprint.brains, lambda: desk.live_calls > 0)
    yield delete_old(archive)
    yield delete_old_events(events, settings.voice_session_retention_days)
    yield expire_facts(FactBook(store), PinBook(store), retention_of(settings, blueprint.agents))
    yield sweep(forgetting)
    yield prepare(blueprint.writer)
    yield collect_garbage(lambda: desk.live_calls == 0)


def _store_routes(blueprint: Blueprint, store: MemoryStore, forgetting: Forgetting) -> list[BaseRoute]:
    """What clients of the store and text agents may ask."""
    pins = PinBook(store)
    shown = ShownDocuments(store, retention_of(blueprint.settings, blueprint.agents))
    notes = CallerNotes(shown, forgetting.forget_caller)
    mcp = create_mcp(PersonaBook(store), notes, blueprint.store_keys[0], pins=pins)
    return [*documents.routes(shown, blueprint.store_keys), *mcp.routes()]


async def _own_metrics() -> str:
    return metrics.render()


def _measure(desk: CallDesk, finalizer: Finalizer) -> None:
    LIVE_CALLS.reads(lambda: desk.live_calls)
    ENDINGS.reads(lambda: finalizer.unfinished)
    OLDEST_ENDING.reads(lambda: finalizer.oldest_seconds)
    RESTING.reads(lambda: finalizer.resting)
    LOOP_LAG.reads(lambda: desk.loop_lag)


def _memory(
    blueprint: Blueprint, store: MemoryStore, remem: RememClient | None, journal: Journal, forgetting: Forgetting
) -> Memory | None:
    settings = blueprint.settings
    limit = settings.voice_session_context_limit
    if not settings.voice_session_enabled:
        return None
    retention = retention_of(settings, blueprint.agents)
    recall = Recall(store, remem, limit, facts=FactBook(store), pins=PinBook(store), retention=retention)
    return Memory(recall, limit, journal, forgetting.forget_caller)


def _desk(
    blueprint: Blueprint,
    engine: EngineRoom,
    memory: Memory | None,
    finalizer: Finalizer,
    recordings: RecordingRoom,
    controls: Mapping[str, CallControl],
    kits: KitRoom,
    brains: BrainRoom,
    neighbours: Neighbours | None,
    feed: Feed,
    levels: Levels,
) -> CallDesk:
    return CallDesk(
        agents=blueprint.agents,
        allowed=blueprint.allowed,
        engine=engine.access,
        controls=controls,
        memory=memory,
        finalizer=finalizer,
        recordings=recordings,
        apology=blueprint.apology,
        kits=kits,
        brains=brains,
        neighbours=neighbours,
        feed=feed,
        levels=levels,
    )


def _figures(desk: CallDesk, finalizer: Finalizer) -> dict[str, int]:
    return {"calls": desk.live_calls, "endings": finalizer.unfinished}


def _state(
    settings: Settings,
    store: MemoryStore,
    engine: EngineRoom,
    desk: CallDesk,
    finalizer: Finalizer,
    neighbours: Neighbours | None,
) -> dict[str, Any]:
    nodes = neighbours.nodes if neighbours is not None else []
    return {
        **_figures(desk, finalizer),
        "loop_lag_ms": round(desk.loop_lag * 1000, 1),
        **engine.state(),
        "carriers": sorted(carriers(settings)),
        "store": f"{store.description} and remote" if settings.remem_api_url else store.description,
        **({"database": "away" if store.is_away else "ok"} if settings.database_url else {}),
        **({"nodes": nodes} if len(nodes) > 1 else {}),
    }
