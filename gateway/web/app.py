"""The application: every part made and connected, every route in one list, started and stopped in order."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from gateway.calls.agents import Agent, AgentBook, find_text
from gateway.calls.archive import Archive
from gateway.calls.brain_room import BrainRoom
from gateway.calls.brains import Accounts, Brain, build_brains, keep_warm
from gateway.calls.brains import close as close_brains
from gateway.calls.desk import CallDesk, Memory
from gateway.calls.ending_steps import EndingSteps
from gateway.calls.endings import Endings
from gateway.calls.engine_keeper import EngineAccess
from gateway.calls.finalize import Finalizer
from gateway.calls.functions.kit import KitRoom, shelves_of
from gateway.calls.functions.text_side import OpenClawAgent, Recipient, Webhook
from gateway.calls.functions.toolbox import ToolboxShelf
from gateway.calls.journal import Journal
from gateway.calls.neighbours import Neighbours
from gateway.calls.own_store import open_own_store
from gateway.calls.thinking import hashed_caller
from gateway.carriers.numbers import AllowList
from gateway.carriers.signatures import TelnyxVerifier
from gateway.errors import SettingsError
from gateway.links import picows_sockets, websockets_sockets
from gateway.links.carrier_rest import CallControl, TelnyxControl, TwilioControl
from gateway.links.recorder import RecordingRoom
from gateway.links.sockets import Connector, tls_context
from gateway.llm.chat import Upstream
from gateway.llm.openclaw_chat import OpenClawUpstream
from gateway.llm.writer import SummaryWriter, build_writer
from gateway.memory.knowledge import Knowledge
from gateway.memory.recall import Recall
from gateway.memory.remem import RememClient
from gateway.memory.sqlite import SqliteStore
from gateway.memory.state import CallerState
from gateway.settings import Secret, Settings
from gateway.sounds import bundled_sound
from gateway.web import chat_proxy, documents, health, sharing
from gateway.web.admin_token import admin_token
from gateway.web.media import CODECS, MediaDoor
from gateway.web.public import PublicAddress
from gateway.web.sharing import Sharing
from gateway.web.telnyx import TelnyxWebhooks
from gateway.web.twilio import TwilioWebhooks

CLOSING_SECONDS: Final = 10.0
"""How long endings may take at shutdown; what is left is taken up at the next start."""
KNOWLEDGE_SECONDS: Final = 5.0
"""How soon a changed file of an agent's knowledge is found."""
RETENTION_CHECK_SECONDS: Final = 3600.0
PREPARE_AFTER: Final = 1.0

_log = logging.getLogger(__name__)


def create_app(
    settings: Settings, *, connect: Connector = picows_sockets.connect, is_worker: bool = False
) -> Starlette:
    """
    The gateway as an ASGI application. SettingsError at once for what a person got wrong.

    `is_worker`: other processes use the same DATA_DIR.

    Everything that runs is started and stopped by the application's lifespan. Its state holds `media_door`, the factory
    for media sockets, which do not pass through ASGI, and `desk`, for whoever wants to drain it.
    """
    blueprint = _Blueprint.from_settings(settings, connect)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with _running(blueprint, is_worker) as parts:
            app.router.routes.extend(parts.routes)
            yield {"media_door": parts.media_door, "desk": parts.desk}

    return Starlette(lifespan=lifespan)


@dataclass(frozen=True)
class _Blueprint:
    """What can be made, and can be wrong, before anything runs."""

    settings: Settings
    agents: AgentBook
    allowed: AllowList
    verifier: TelnyxVerifier | None
    engine: EngineAccess | None
    writer: SummaryWriter
    apology: bytes
    store_keys: tuple[Secret, ...]
    shelves: Mapping[str, ToolboxShelf]
    text_agents: Mapping[str, Upstream]
    brains: Mapping[str, Brain]

    @classmethod
    def from_settings(cls, settings: Settings, connect: Connector) -> "_Blueprint":
        _check_folder(settings.record_dir, "RECORD_DIR")
        sharing.check(settings)
        own_key = (settings.remem_api_key,) if settings.remem_api_key and not settings.remem_api_url else ()
        agents = AgentBook(settings.agents, settings.folder)
        return cls(
            settings=settings,
            agents=agents,
            allowed=AllowList(settings.allowed_callers),
            verifier=TelnyxVerifier(settings.telnyx_public_key) if settings.telnyx_public_key else None,
            engine=_engine(settings, connect),
            writer=_writer(settings),
            apology=bundled_sound("apology"),
            store_keys=(admin_token(settings), *own_key),
            shelves=shelves_of(agents),
            text_agents=_text_agents(settings, agents),
            brains=build_brains(agents, _accounts(settings)),
        )


@dataclass(frozen=True)
class _Parts:
    """What the running application shows to the outside."""

    routes: list[BaseRoute]
    media_door: MediaDoor
    desk: CallDesk


@contextlib.asynccontextmanager
async def _running(blueprint: _Blueprint, is_worker: bool) -> AsyncIterator[_Parts]:
    """Everything that runs. Stopped in the opposite order: calls first, then their endings, then the stores."""
    settings = blueprint.settings
    async with contextlib.AsyncExitStack() as stack:
        http = await stack.enter_async_context(httpx.AsyncClient())
        store = await open_own_store(settings.data_dir)
        stack.push_async_callback(store.close)
        stack.push_async_callback(blueprint.writer.close)
        recordings = RecordingRoom(settings.record_dir)
        stack.callback(recordings.close)
        remem = _remem(settings, http)
        archive = Archive(settings.voice_session_archive_dir, retention_days=settings.voice_session_retention_days)
        others = await stack.enter_async_context(sharing.shared(settings, shares_disk=is_worker))
        if others.neighbours is not None:
            await stack.enter_async_context(_at_work(others.neighbours.run()))
            stack.push_async_callback(others.neighbours.close)
        journal = Journal(settings.data_dir / "journal.db", others.node)
        stack.callback(journal.close)
        finalizer = _finalizer(blueprint, store, remem, archive, journal, others)
        stack.push_async_callback(finalizer.close, seconds=CLOSING_SECONDS)
        telnyx_control = _telnyx_control(settings, http)
        memory = _memory(settings, store, remem, journal)
        controls = _controls(settings, http, telnyx_control)
        kits = await stack.enter_async_context(_kit_room(blueprint, store, memory, http))
        brains = await stack.enter_async_context(_brain_room(blueprint, memory, others))
        desk = _desk(blueprint, memory, finalizer, recordings, controls, kits, brains, others.neighbours)
        if others.neighbours is not None:
            figures = functools.partial(_figures, desk, finalizer)
            await stack.enter_async_context(_at_work(others.neighbours.listen(desk, figures)))
        stack.push_async_callback(desk.close)
        public = PublicAddress(settings.public_url)
        telnyx = TelnyxWebhooks(desk, public, blueprint.verifier, telnyx_control)
        stack.push_async_callback(telnyx.close)
        for work in (
            desk.run(),
            finalizer.sweep(),
            finalizer.work_off(),
            finalizer.follow(),
            keep_warm(blueprint.brains, lambda: desk.live_calls > 0),
            _delete_old(archive),
            _prepare(blueprint.writer),
        ):
            await stack.enter_async_context(_at_work(work))
        await desk.recover(ended=await finalizer.resume())
        media_door = MediaDoor(desk, _carriers(settings))
        yield _Parts(
            routes=[
                *TwilioWebhooks(desk, public, settings.twilio_auth_token).routes(),
                *telnyx.routes(),
                *chat_proxy.routes(brains.bearers),
                *documents.routes(store, blueprint.store_keys),
                *health.routes(lambda: _state(settings, desk, finalizer, others.neighbours), lambda: desk.takes_calls),
                # Reached only where the server speaks WebSocket through ASGI; the front keeps media sockets from it.
                *websockets_sockets.routes(media_door, CODECS),
            ],
            media_door=media_door,
            desk=desk,
        )


def _memory(settings: Settings, store: SqliteStore, remem: RememClient | None, journal: Journal) -> Memory | None:
    limit = settings.voice_session_context_limit
    return Memory(Recall(store, remem, limit), limit, journal) if settings.voice_session_enabled else None


def _desk(
    blueprint: _Blueprint,
    memory: Memory | None,
    finalizer: Finalizer,
    recordings: RecordingRoom,
    controls: Mapping[str, CallControl],
    kits: KitRoom,
    brains: BrainRoom,
    neighbours: Neighbours | None,
) -> CallDesk:
    return CallDesk(
        agents=blueprint.agents,
        allowed=blueprint.allowed,
        engine=blueprint.engine,
        controls=controls,
        memory=memory,
        finalizer=finalizer,
        recordings=recordings,
        apology=blueprint.apology,
        kits=kits,
        brains=brains,
        neighbours=neighbours,
    )


@contextlib.asynccontextmanager
async def _brain_room(blueprint: _Blueprint, memory: Memory | None, others: Sharing) -> AsyncIterator[BrainRoom]:
    """The agents' own language models, with connections to them kept open while there are calls."""
    try:
        yield BrainRoom(
            {agent.name: agent for agent in blueprint.agents},
            blueprint.brains,
            blueprint.store_keys[0],
            search=memory.recall.search if memory is not None else None,
            commons=others.neighbours.commons if others.neighbours is not None else None,
        )
    finally:
        await close_brains(blueprint.brains)


@contextlib.asynccontextmanager
async def _kit_room(
    blueprint: _Blueprint, store: SqliteStore, memory: Memory | None, http: httpx.AsyncClient
) -> AsyncIterator[KitRoom]:
    """What agents have at hand in calls, and what keeps it up to date."""
    async with contextlib.AsyncExitStack() as stack:
        folders = {agent.name: agent.knowledge for agent in blueprint.agents if agent.knowledge is not None}
        knowledge = None
        if folders:
            knowledge = await Knowledge.open(blueprint.settings.data_dir / "knowledge.db", folders)
            stack.push_async_callback(knowledge.close)
            await stack.enter_async_context(_at_work(knowledge.watch(KNOWLEDGE_SECONDS)))
        kits = KitRoom(
            blueprint.shelves,
            state=CallerState(store) if memory is not None else None,
            search_memory=memory.search if memory is not None else None,
            knowledge=knowledge,
            recipient=lambda agent, caller: _recipient(blueprint, http, agent, caller),
        )
        stack.push_async_callback(kits.close)
        yield kits


def _recipient(blueprint: _Blueprint, http: httpx.AsyncClient, agent: Agent, caller: str) -> Recipient:
    if upstream := blueprint.text_agents.get(agent.text_agent):
        return OpenClawAgent(upstream, hashed_caller(agent.name, caller, blueprint.store_keys[0]))
    return Webhook(http, agent.text_agent)


def _finalizer(
    blueprint: _Blueprint,
    store: SqliteStore,
    remem: RememClient | None,
    archive: Archive,
    journal: Journal,
    others: Sharing,
) -> Finalizer:
    table = Endings(store, others.node)
    steps = EndingSteps(
        store=store,
        endings=others.stream or table,
        remem=remem,
        writer=blueprint.writer,
        archive=archive,
        zones={agent.name: agent.timezone for agent in blueprint.agents},
        state=CallerState(store),
        state_keys={agent.name: agent.state_keys for agent in blueprint.agents},
    )
    return Finalizer(
        steps,
        table,
        journal=journal,
        enabled=blueprint.settings.voice_session_enabled,
        stream=others.stream,
        node=others.node,
        alive=others.neighbours.commons.alive if others.neighbours is not None and others.shares_disk else None,
    )


def _check_folder(folder: Path | None, name: str) -> None:
    try:
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{name} {folder} can't be used: {error.strerror}; set {name} to a folder of yours"
        ) from None


def _engine(settings: Settings, connect: Connector) -> EngineAccess | None:
    if settings.engine != "deepgram" or settings.deepgram_api_key is None:
        return None
    tls_context()  # now, not in the first call
    key = Secret(f"Token {settings.deepgram_api_key.reveal()}")
    return EngineAccess(connect, settings.deepgram_agent_url, {"Authorization": key})


def _writer(settings: Settings) -> SummaryWriter:
    return build_writer(
        provider=settings.summary_provider,
        model=settings.summary_model,
        anthropic_api_key=settings.anthropic_api_key,
        anthropic_base_url=settings.anthropic_base_url,
        xai_api_key=settings.xai_api_key,
        xai_api_url=settings.xai_api_url,
        instructions=_summary_prompt(settings.folder),
    )


def _summary_prompt(folder: Path) -> str:
    missing = "prompts/summary.md is missing; it tells the language model how to write a summary"
    return find_text("prompts/summary.md", folder, missing=missing)


def _accounts(settings: Settings) -> Accounts:
    return Accounts(
        anthropic_api_key=settings.anthropic_api_key,
        anthropic_base_url=settings.anthropic_base_url,
        xai_api_key=settings.xai_api_key,
        xai_api_url=settings.xai_api_url,
        openclaw_gateway_url=settings.openclaw_gateway_url,
        openclaw_gateway_token=settings.openclaw_gateway_token,
        environ=settings.environ,
    )


def _text_agents(settings: Settings, agents: AgentBook) -> dict[str, Upstream]:
    """Those that are OpenClaw's, by how they are written; the others are webhooks."""
    names = {agent.text_agent for agent in agents if agent.text_agent.startswith("openclaw")}
    if names and not (settings.openclaw_gateway_url and settings.openclaw_gateway_token):
        raise SettingsError(f"text_agent {min(names)} needs OPENCLAW_GATEWAY_URL and OPENCLAW_GATEWAY_TOKEN")
    url, token = settings.openclaw_gateway_url, settings.openclaw_gateway_token or Secret("")
    return {name: OpenClawUpstream(url, name.partition("/")[2], token) for name in names}


def _remem(settings: Settings, http: httpx.AsyncClient) -> RememClient | None:
    if not settings.remem_api_url:
        return None
    return RememClient(settings.remem_api_url, settings.remem_api_key or Secret(""), http)


def _telnyx_control(settings: Settings, http: httpx.AsyncClient) -> TelnyxControl | None:
    if settings.telnyx_api_key is None:
        return None
    return TelnyxControl(http, api_url=settings.telnyx_api_url, api_key=settings.telnyx_api_key)


def _controls(settings: Settings, http: httpx.AsyncClient, telnyx: TelnyxControl | None) -> dict[str, CallControl]:
    controls: dict[str, CallControl] = {}
    if telnyx is not None:
        controls["telnyx"] = telnyx
    if settings.twilio_auth_token is not None:
        controls["twilio"] = TwilioControl(
            http,
            api_url=settings.twilio_api_url,
            account_sid=settings.twilio_account_sid,
            auth_token=settings.twilio_auth_token,
        )
    return controls


def _carriers(settings: Settings) -> frozenset[str]:
    keys = {"twilio": settings.twilio_auth_token, "telnyx": settings.telnyx_api_key}
    return frozenset(name for name, key in keys.items() if key is not None)


def _figures(desk: CallDesk, finalizer: Finalizer) -> dict[str, int]:
    return {"calls": desk.live_calls, "endings": finalizer.unfinished}


def _state(settings: Settings, desk: CallDesk, finalizer: Finalizer, neighbours: Neighbours | None) -> dict[str, Any]:
    nodes = neighbours.nodes if neighbours is not None else []
    return {
        **_figures(desk, finalizer),
        "loop_lag_ms": round(desk.loop_lag * 1000, 1),
        "engine": settings.engine if settings.engine == "deepgram" else "not set up",
        "carriers": sorted(_carriers(settings)),
        "store": "embedded and remote" if settings.remem_api_url else "embedded",
        **({"nodes": nodes} if len(nodes) > 1 else {}),
    }


async def _prepare(writer: SummaryWriter) -> None:
    """A provider's library takes seconds to load: after the start, and before the first call needs it."""
    await asyncio.sleep(PREPARE_AFTER)
    await writer.prepare()


async def _delete_old(archive: Archive) -> None:
    while True:
        try:
            if deleted := await archive.delete_old():
                _log.info("old transcripts deleted", extra={"files": deleted})
        except OSError as error:
            _log.warning("old transcripts could not be deleted", extra={"error": type(error).__name__})
        await asyncio.sleep(RETENTION_CHECK_SECONDS)


@contextlib.asynccontextmanager
async def _at_work(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """A task that runs until the application stops."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
