"""The larger parts that calls use, each made of what it needs, and closed again."""

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import httpx

from gateway.agents import Agent
from gateway.calls.call_resources import MemoryServices
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import FinalizationSteps
from gateway.finalization.worker import FinalizationWorker
from gateway.history.calls_table import CallsTable
from gateway.llm.agent_llm import close as close_brains
from gateway.llm.responder import hashed_caller
from gateway.llm.responder_factory import ResponderFactory
from gateway.maintenance import at_work
from gateway.memory.erasure import Eraser
from gateway.memory.facts import FactStore
from gateway.memory.knowledge import Knowledge
from gateway.memory.personas import PersonaStore
from gateway.memory.pinned_topics import PinnedTopics
from gateway.memory.state import CallerState
from gateway.memory.store import MemoryStore
from gateway.tools.delegation import Delegate, OpenClawAgent, Webhook
from gateway.tools.prepared import ToolLoader
from gateway.web.blueprint import Blueprint
from gateway.web.ground import Ground
from gateway.web.sharing import Sharing

KNOWLEDGE_SECONDS: Final = 5.0
"""How soon a changed file of an agent's knowledge is found."""


@contextlib.asynccontextmanager
async def brain_room(
    blueprint: Blueprint, memory: MemoryServices | None, others: Sharing
) -> AsyncIterator[ResponderFactory]:
    """The agents' own language models, with connections to them kept open while there are calls."""
    try:
        yield ResponderFactory(
            {agent.name: agent for agent in blueprint.agents},
            blueprint.agent_llms,
            blueprint.store_keys[0],
            public_url=blueprint.settings.public_url,
            search=memory.recall.search if memory is not None else None,
            directory=others.cluster.directory if others.cluster is not None else None,
        )
    finally:
        await close_brains(blueprint.agent_llms)


@contextlib.asynccontextmanager
async def kit_room(
    blueprint: Blueprint, store: MemoryStore, memory: MemoryServices | None, http: httpx.AsyncClient
) -> AsyncIterator[ToolLoader]:
    """What agents have at hand in calls, and what keeps it up to date."""
    async with contextlib.AsyncExitStack() as stack:
        folders = {agent.name: agent.knowledge for agent in blueprint.agents if agent.knowledge is not None}
        knowledge = None
        if folders:
            knowledge = await Knowledge.open(blueprint.settings.data_dir / "knowledge.db", folders)
            stack.push_async_callback(knowledge.close)
            await stack.enter_async_context(at_work(knowledge.watch(KNOWLEDGE_SECONDS)))
        tool_loader = ToolLoader(
            blueprint.shelves,
            personas=PersonaStore(store),
            state=CallerState(store) if memory is not None else None,
            search_memory=memory.search if memory is not None else None,
            knowledge=knowledge,
            recipient=lambda agent, caller: _recipient(blueprint, http, agent, caller),
        )
        stack.push_async_callback(tool_loader.close)
        yield tool_loader


def _recipient(blueprint: Blueprint, http: httpx.AsyncClient, agent: Agent, caller: str) -> Delegate:
    if upstream := blueprint.text_agents.get(agent.text_agent):
        return OpenClawAgent(upstream, hashed_caller(agent.name, caller, blueprint.store_keys[0]))
    return Webhook(http, agent.text_agent)


def make_finalizer(blueprint: Blueprint, ground: Ground, eraser: Eraser) -> FinalizationWorker:
    store, others, embedder = ground.store, ground.others, ground.embedder
    table = JobTable(ground.stores.local, others.node)
    steps = FinalizationSteps(
        store=store,
        jobs=others.stream or table,
        remem=ground.remem,
        writer=blueprint.writer,
        archive=ground.archive,
        zones={agent.name: agent.timezone for agent in blueprint.agents},
        book=CallsTable(store),
        facts=FactStore(store),
        pins=PinnedTopics(store, embed=embedder.embed if embedder is not None else None),
        state=CallerState(store),
        state_keys={agent.name: agent.repeat_caller.state_keys for agent in blueprint.agents},
        analysed=frozenset(agent.name for agent in blueprint.agents if agent.repeat_caller.analytics_enabled),
        silences={agent.name: agent.repeat_caller.new_person_after for agent in blueprint.agents},
        is_forgotten=eraser.is_forgotten,
    )
    return FinalizationWorker(
        steps,
        table,
        journal=ground.journal,
        enabled=blueprint.settings.voice_session_enabled,
        stream=others.stream,
        node=others.node,
        alive=others.cluster.directory.alive if others.cluster is not None and others.shares_disk else None,
        call_events=ground.call_events,
        clear_away=eraser.clear_away,
    )
