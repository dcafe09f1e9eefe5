"""The telephone exchange: the desk with all that calls need, at work, and what is done when they have ended."""

import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.calls.call_resources import MemoryServices
from gateway.calls.manager import CallManager
from gateway.cluster.worker_metrics import WorkerMetrics
from gateway.finalization.worker import FinalizationWorker
from gateway.llm.agent_llm import keep_warm
from gateway.llm.responder_factory import ResponderFactory
from gateway.maintenance import (
    at_work,
    collect_garbage,
    delete_old,
    delete_old_events,
    expire_facts,
    prepare,
    retention_of,
    sweep,
)
from gateway.memory.erasure import DataLocations, Eraser
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopics
from gateway.memory.recall import Recall
from gateway.metrics import ENDINGS, LIVE_CALLS, LOOP_LAG, OLDEST_ENDING, RESTING
from gateway.telephony.rest import CallControl, TelnyxControl
from gateway.web.blueprint import Blueprint, carriers, controls, telnyx_control
from gateway.web.engine_room import EngineRoom, engine_room
from gateway.web.ground import Ground
from gateway.web.rooms import brain_room, kit_room, make_finalizer

CLOSING_SECONDS: Final = 10.0
"""How long endings may take at shutdown; what is left is taken up at the next start."""

FORGET_SECONDS: Final = 2.0
"""How long a caller who wants to be forgotten waits for whoever else has a database."""


@dataclass(frozen=True)
class Exchange:
    """What web handlers see of it."""

    manager: CallManager
    finalizer: FinalizationWorker
    eraser: Eraser
    engine: EngineRoom
    agent_llms: ResponderFactory
    telnyx: TelnyxControl | None
    controls: Mapping[str, CallControl]
    """The REST interface of each carrier that is set up."""
    supervisor: WorkerMetrics | None
    """What the workers have counted together, where there are several."""

    @property
    def is_ready(self) -> bool:
        return self.manager.takes_calls and self.engine.is_ready

    @property
    def figures(self) -> dict[str, int]:
        return {"calls": self.manager.live_calls, "endings": self.finalizer.unfinished}

    def state(self, blueprint: Blueprint, ground: Ground) -> dict[str, Any]:
        """How everything is, for /health and the dashboard."""
        settings, store = blueprint.settings, ground.store
        nodes = ground.others.cluster.nodes if ground.others.cluster is not None else []
        return {
            **self.figures,
            "loop_lag_ms": round(self.manager.loop_lag * 1000, 1),
            **self.engine.state(),
            "carriers": sorted(carriers(settings)),
            "store": f"{store.description} and remote" if settings.remem_api_url else store.description,
            **({"database": "away" if store.is_away else "ok"} if settings.database_url else {}),
            **({"nodes": nodes} if len(nodes) > 1 else {}),
        }


@contextlib.asynccontextmanager
async def exchange(blueprint: Blueprint, ground: Ground) -> AsyncIterator[Exchange]:
    """At work while the block runs. Stopped in the opposite order: calls first, then their endings."""
    settings, cluster = blueprint.settings, ground.others.cluster
    async with contextlib.AsyncExitStack() as stack:
        eraser = _eraser(blueprint, ground)
        finalizer = make_finalizer(blueprint, ground, eraser)
        stack.push_async_callback(finalizer.close, seconds=CLOSING_SECONDS)
        memory = _memory(blueprint, ground, eraser)
        tool_loader = await stack.enter_async_context(kit_room(blueprint, ground.store, memory, ground.http))
        agent_llms = await stack.enter_async_context(brain_room(blueprint, memory, ground.others))
        engine = await stack.enter_async_context(engine_room(blueprint, agent_llms.endpoint_tokens))
        telnyx = telnyx_control(settings, ground.http)
        rests = controls(settings, ground.http, telnyx)
        manager = CallManager(
            agents=blueprint.agents,
            allowed=blueprint.allowed,
            engine=engine.access,
            controls=rests,
            memory=memory,
            finalizer=finalizer,
            recordings=ground.recordings,
            apology=blueprint.apology,
            tool_loader=tool_loader,
            agent_llms=agent_llms,
            cluster=cluster,
            call_events=ground.call_events,
            levels=ground.levels,
        )
        made = Exchange(manager, finalizer, eraser, engine, agent_llms, telnyx, rests, ground.others.metrics())
        if cluster is not None:
            await stack.enter_async_context(at_work(cluster.listen(manager, lambda: made.figures)))
        stack.push_async_callback(manager.close)
        for work in _works(blueprint, ground, made):
            await stack.enter_async_context(at_work(work))
        _measure(manager, finalizer)
        await manager.recover(ended=await finalizer.resume())
        yield made


def _eraser(blueprint: Blueprint, ground: Ground) -> Eraser:
    return Eraser(
        ground.store,
        DataLocations.of(blueprint.settings),
        ground.remem,
        blueprint.store_keys[0],
        local=ground.stores.local,
        shared=ground.others.traces,
        patience=FORGET_SECONDS,
    )


def _memory(blueprint: Blueprint, ground: Ground, eraser: Eraser) -> MemoryServices | None:
    settings, store = blueprint.settings, ground.store
    limit = settings.voice_session_context_limit
    if not settings.voice_session_enabled:
        return None
    retention = retention_of(settings, blueprint.agents)
    recall = Recall(store, ground.remem, limit, facts=FactStore(store), pins=PinnedTopics(store), retention=retention)
    return MemoryServices(recall, limit, ground.journal, eraser.forget_caller)


def _works(blueprint: Blueprint, ground: Ground, made: Exchange) -> Iterable[Coroutine[Any, Any, None]]:
    """What goes on beside calls, each until it is cancelled."""
    settings, store, manager, finalizer = blueprint.settings, ground.store, made.manager, made.finalizer
    yield store.watch()
    yield manager.run()
    yield ground.levels.run()
    yield finalizer.sweep()
    yield finalizer.work_off()
    yield finalizer.follow()
    yield keep_warm(blueprint.agent_llms, lambda: manager.live_calls > 0)
    yield delete_old(ground.archive)
    yield delete_old_events(ground.events, settings.voice_session_retention_days)
    yield expire_facts(FactStore(store), PinnedTopics(store), retention_of(settings, blueprint.agents))
    yield sweep(made.eraser)
    yield prepare(blueprint.writer)
    yield collect_garbage(lambda: manager.live_calls == 0)
    if made.supervisor is not None:
        yield made.supervisor.run()


def _measure(manager: CallManager, finalizer: FinalizationWorker) -> None:
    LIVE_CALLS.reads(lambda: manager.live_calls)
    ENDINGS.reads(lambda: finalizer.unfinished)
    OLDEST_ENDING.reads(lambda: finalizer.oldest_seconds)
    RESTING.reads(lambda: finalizer.resting)
    LOOP_LAG.reads(lambda: manager.loop_lag)
