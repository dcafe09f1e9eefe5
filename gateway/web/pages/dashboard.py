"""The dashboard: all its pages, made of what they read."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.routing import Route

from gateway.calls.agents import AgentBook
from gateway.calls.archive import Archive
from gateway.calls.call_lines import CallLines
from gateway.calls.feed import Feed
from gateway.calls.forgetting import Forgetting, Places, SharedPlace
from gateway.calls.own_store import open_own_stores
from gateway.calls.switchboard import Switchboard
from gateway.dashboard.call_page import CallRoom
from gateway.dashboard.caller_page import CallerRoom
from gateway.dashboard.html import Pages
from gateway.dashboard.sound import SoundShelf
from gateway.dashboard.visitors import Envelope
from gateway.errors import StoreUnavailable
from gateway.memory.remem import RememClient
from gateway.settings import Secret, Settings
from gateway.web.live import LiveDoor
from gateway.web.pages.callers import CallerPages
from gateway.web.pages.calls import CallPages
from gateway.web.pages.entrance import Entrance
from gateway.web.pages.live import LivePages
from gateway.web.pages.phone import PhonePages
from gateway.web.pages.vitals import VitalPages
from gateway.web.phone import PhoneBooth
from gateway.web.public import PublicAddress


@contextlib.asynccontextmanager
async def dashboard(
    settings: Settings,
    token: Secret,
    *,
    archive: Archive,
    remem: RememClient | None,
    shared: SharedPlace | None,
    switchboard: Switchboard,
    feed: Feed,
    live: LiveDoor,
    booth: PhoneBooth,
    agents: AgentBook,
    state: Callable[[], dict[str, Any]],
) -> AsyncIterator[list[Route]]:
    """Its routes. Pages read the store through a connection and a thread of their own: no call waits behind one."""
    stores = await open_own_stores(settings.data_dir, settings.database_url)
    store = stores.memory
    try:
        with contextlib.suppress(StoreUnavailable):  # a shared database may come later; the next start catches up
            await CallLines(store).catch_up()
        entrance = Entrance(token, Pages(), PublicAddress(settings.public_url))
        envelope, sounds = Envelope(token), SoundShelf(settings.record_dir)
        places = Places(settings.data_dir, settings.voice_session_archive_dir, settings.record_dir)
        forgetting = Forgetting(store, places, remem, token, local=stores.local, shared=shared)
        calls = CallRoom(stores, archive, sounds, places.events, has_remote=remem is not None)
        yield [
            *entrance.routes(),
            *LivePages(entrance, store, switchboard, feed, live, envelope, listen_in=settings.listen_in).routes(),
            *CallPages(entrance, stores, calls, sounds, envelope, forgetting).routes(),
            *CallerPages(entrance, store, CallerRoom(store), sounds, envelope, forgetting).routes(),
            *PhonePages(entrance, booth, store, live, envelope, agents).routes(),
            *VitalPages(entrance, stores, state).routes(),
        ]
    finally:
        await stores.close()
