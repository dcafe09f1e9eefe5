"""The dashboard: all its pages, made of what they read."""

import contextlib
from collections.abc import Callable
from typing import Any

from starlette.routing import Route

from gateway.calls.operator import OperatorControl
from gateway.errors import StoreUnavailable
from gateway.history.call_rows import CallRows
from gateway.memory.erasure import DataLocations, Eraser
from gateway.memory.open_stores import Stores
from gateway.web.blueprint import Blueprint
from gateway.web.dashboard.call_pages import CallPages
from gateway.web.dashboard.call_query import CallPageQuery
from gateway.web.dashboard.caller_pages import CallerPages
from gateway.web.dashboard.caller_query import CallerPageQuery
from gateway.web.dashboard.html import Pages
from gateway.web.dashboard.live_pages import LivePages
from gateway.web.dashboard.phone_pages import PhonePages
from gateway.web.dashboard.recordings import RecordingCache
from gateway.web.dashboard.stats_pages import StatsPages
from gateway.web.ground import Ground
from gateway.web.live import LiveEventsEndpoint
from gateway.web.login import LoginGuard
from gateway.web.login_sessions import SealedParam
from gateway.web.public_url import PublicUrl
from gateway.web.softphone import SoftphoneEndpoint


async def dashboard(
    blueprint: Blueprint,
    ground: Ground,
    stores: Stores,
    switchboard: OperatorControl,
    live: LiveEventsEndpoint,
    booth: SoftphoneEndpoint,
    state: Callable[[], dict[str, Any]],
) -> list[Route]:
    """Its routes. `stores` are read by nobody whom a call waits for."""
    settings, token, store = blueprint.settings, blueprint.store_keys[0], stores.memory
    with contextlib.suppress(StoreUnavailable):  # a shared database may come later; the next start catches up
        await CallRows(store).catch_up()
    entrance = LoginGuard(token, Pages(), PublicUrl(settings.public_url))
    envelope, sounds = SealedParam(token), RecordingCache(settings.record_dir)
    places = DataLocations.of(settings)
    eraser = Eraser(store, places, ground.remem, token, local=stores.local, shared=ground.others.traces)
    calls = CallPageQuery(stores, ground.archive, sounds, places.events, has_remote=ground.remem is not None)
    return [
        *entrance.routes(),
        *LivePages(
            entrance, store, switchboard, ground.call_events, live, envelope, listen_in=settings.listen_in
        ).routes(),
        *CallPages(entrance, stores, calls, sounds, envelope, eraser).routes(),
        *CallerPages(entrance, store, CallerPageQuery(store), sounds, envelope, eraser).routes(),
        *PhonePages(entrance, booth, store, live, envelope, blueprint.agents).routes(),
        *StatsPages(entrance, stores, state).routes(),
    ]
