"""The application: everything that runs, started and stopped in order, and every route in one list."""

import contextlib
import functools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gateway import metrics
from gateway.calls.manager import CallManager
from gateway.calls.outbound import OutboundCallStore
from gateway.history.live_events import EventPublisher
from gateway.history.queries import CallHistory
from gateway.maintenance import retention_of
from gateway.memory.agent_notes import CallerNotes
from gateway.memory.erasure import Eraser
from gateway.memory.open_stores import open_own_stores
from gateway.memory.personas import PersonaStore
from gateway.memory.pinned_topics import PinnedTopics
from gateway.memory.store import MemoryStore
from gateway.memory.visible_documents import VisibleDocuments
from gateway.settings import Settings
from gateway.web import chat_completions, documents, health, sessions
from gateway.web.blueprint import Blueprint, carriers
from gateway.web.dashboard.routes import dashboard
from gateway.web.exchange import Exchange, exchange
from gateway.web.ground import Ground, ground
from gateway.web.live import LiveEventsEndpoint
from gateway.web.mcp import create_mcp
from gateway.web.media import CODECS, MediaEndpoint
from gateway.web.outbound import OutboundEndpoint
from gateway.web.public_url import PublicUrl
from gateway.web.softphone import SoftphoneEndpoint
from gateway.web.telnyx import TelnyxWebhooks
from gateway.web.twilio import TwilioWebhooks
from gateway.websocket import picows, portable
from gateway.websocket.interface import Connector


def create_app(settings: Settings, *, connect: Connector = picows.connect, is_worker: bool = False) -> Starlette:
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
            yield {"media_door": parts.media_door, "desk": parts.manager, "end_streams": parts.call_events.close}

    return Starlette(lifespan=lifespan)


@dataclass(frozen=True)
class _Parts:
    """What the running application shows to the outside."""

    routes: list[BaseRoute]
    media_door: MediaEndpoint
    manager: CallManager
    call_events: EventPublisher


@contextlib.asynccontextmanager
async def _running(blueprint: Blueprint, is_worker: bool) -> AsyncIterator[_Parts]:
    """Everything that runs. Stopped in the opposite order: calls first, then their endings, then the stores."""
    async with (
        ground(blueprint, is_worker=is_worker) as under,
        exchange(blueprint, under) as calls,
        _doors(blueprint, under, calls) as parts,
    ):
        yield parts


@contextlib.asynccontextmanager
async def _doors(blueprint: Blueprint, under: Ground, calls: Exchange) -> AsyncIterator[_Parts]:
    """Every route, and what handlers have of their own."""
    settings, token, manager = blueprint.settings, blueprint.store_keys[0], calls.manager
    public = PublicUrl(settings.public_url)
    async with contextlib.AsyncExitStack() as stack:
        shared_store = await stack.enter_async_context(under.others.own_board(settings.data_dir))
        outbound_calls = OutboundCallStore(shared_store, token)
        telnyx = TelnyxWebhooks(manager, public, blueprint.verifier, calls.telnyx, outbound_calls)
        stack.push_async_callback(telnyx.close)
        media_door = MediaEndpoint(manager, carriers(settings))
        live = LiveEventsEndpoint(under.call_events, under.levels, token)
        booth = SoftphoneEndpoint(manager, public, token, shared_store)
        # Pages and lists read through a connection and a thread of their own: no call waits behind one.
        read = await open_own_stores(settings.data_dir, settings.database_url)
        stack.push_async_callback(read.close)
        room = CallHistory(read, data_dir=settings.data_dir, archive_dir=settings.voice_session_archive_dir)
        state = functools.partial(calls.state, blueprint, under)
        counted = calls.supervisor.render if calls.supervisor is not None else _own_metrics
        pages = await dashboard(blueprint, under, read, manager.switchboard, live, booth, state)
        routes = [
            *TwilioWebhooks(manager, public, settings.twilio_auth_token, outbound_calls).routes(),
            *telnyx.routes(),
            *OutboundEndpoint(manager, public, token, outbound_calls, blueprint.agents, calls.controls).routes(),
            *booth.routes(),
            *chat_completions.routes(calls.agent_llms.endpoint_tokens),
            *_store_routes(blueprint, under.store, calls.eraser),
            *sessions.routes(room, token),
            *live.routes(),
            *health.routes(state, lambda: calls.is_ready, counted),
            *pages,
            # Reached only where the server speaks WebSocket through ASGI; the front keeps media sockets from it.
            *portable.routes(media_door, CODECS),
        ]
        yield _Parts(routes, media_door, manager, under.call_events)


def _store_routes(blueprint: Blueprint, store: MemoryStore, eraser: Eraser) -> list[BaseRoute]:
    """What clients of the store and text agents may ask."""
    pins = PinnedTopics(store)
    shown = VisibleDocuments(store, retention_of(blueprint.settings, blueprint.agents))
    notes = CallerNotes(shown, eraser.forget_caller)
    mcp = create_mcp(PersonaStore(store), notes, blueprint.store_keys[0], pins=pins)
    return [*documents.routes(shown, blueprint.store_keys), *mcp.routes()]


async def _own_metrics() -> str:
    return metrics.render()
