"""The dashboard: all its pages, made of what they read."""

import contextlib
from collections.abc import Callable
from typing import Any

from starlette.routing import Route

from gateway.calls.operator import OperatorControl
from gateway.dashboard.call_page import CallRoom
from gateway.dashboard.caller_page import CallerRoom
from gateway.dashboard.html import Pages
from gateway.dashboard.sound import SoundShelf
from gateway.dashboard.visitors import Envelope
from gateway.errors import StoreUnavailable
from gateway.history.call_rows import CallRows
from gateway.memory.erasure import DataLocations, Eraser
from gateway.memory.open_stores import Stores
from gateway.web.blueprint import Blueprint
from gateway.web.ground import Ground
from gateway.web.live import LiveDoor
from gateway.web.pages.callers import CallerPages
from gateway.web.pages.calls import CallPages
from gateway.web.pages.entrance import Entrance
from gateway.web.pages.live import LivePages
from gateway.web.pages.phone import PhonePages
from gateway.web.pages.vitals import VitalPages
from gateway.web.phone import PhoneBooth
from gateway.web.public import PublicAddress


async def dashboard(
    blueprint: Blueprint,
    ground: Ground,
    stores: Stores,
    switchboard: OperatorControl,
    live: LiveDoor,
    booth: PhoneBooth,
    state: Callable[[], dict[str, Any]],
) -> list[Route]:
    """Its routes. `stores` are read by nobody whom a call waits for."""
    settings, token, store = blueprint.settings, blueprint.store_keys[0], stores.memory
    with contextlib.suppress(StoreUnavailable):  # a shared database may come later; the next start catches up
        await CallRows(store).catch_up()
    entrance = Entrance(token, Pages(), PublicAddress(settings.public_url))
    envelope, sounds = Envelope(token), SoundShelf(settings.record_dir)
    places = DataLocations.of(settings)
    forgetting = Eraser(store, places, ground.remem, token, local=stores.local, shared=ground.others.traces)
    calls = CallRoom(stores, ground.archive, sounds, places.events, has_remote=ground.remem is not None)
    return [
        *entrance.routes(),
        *LivePages(entrance, store, switchboard, ground.feed, live, envelope, listen_in=settings.listen_in).routes(),
        *CallPages(entrance, stores, calls, sounds, envelope, forgetting).routes(),
        *CallerPages(entrance, store, CallerRoom(store), sounds, envelope, forgetting).routes(),
        *PhonePages(entrance, booth, store, live, envelope, blueprint.agents).routes(),
        *VitalPages(entrance, stores, state).routes(),
    ]
