"""Calls with the scripted agent without audio. Memory, knowledge and post-call processing are those of the gateway."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from gateway.agents import Agent
from gateway.calls.agent_context import memory_text
from gateway.finalization.document import call_document, speakers, spoken_lines
from gateway.finalization.summary.summarizer import Summarizer
from gateway.history.stores import open_local_store
from gateway.llm.accounts import LlmAccounts
from gateway.llm.agent_llm import build_agent_llms
from gateway.llm.chat import ChatRequest, TextDelta, ToolCallDelta
from gateway.llm.responder import Responder, TurnRecall
from gateway.memory.access import MemoryAccess
from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.facts import FactStore
from gateway.memory.knowledge import Knowledge, rendered
from gateway.memory.loader import MemoryLoader
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.recall import Recall
from gateway.memory.remem_client import NoRemem
from gateway.session import Speaker, TrustLevel, Turn, VoiceSession
from gateway.tools.builtin import END_CALL, SEARCH_KNOWLEDGE, SEARCH_MEMORY, transfer_schema
from gateway.tools.executor import GOODBYE_DUE

CALLER = "+12025550143"
TARGETS = ("desk", "sales")


def tool(schema: Any) -> dict[str, Any]:
    definition = schema.definition
    return {
        "type": "function",
        "function": {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.parameters,
        },
    }


class ScriptedCall:
    """One call. `said` holds what the agent said, `called` the tools that it used with their arguments."""

    def __init__(
        self, line: "ScriptedLine", prompt: str, responder: Responder, tools: Sequence[dict[str, Any]]
    ) -> None:
        self.said: list[str] = []
        self.called: list[tuple[str, dict[str, Any]]] = []
        self.turns: list[Turn] = []
        self._line = line
        self._responder = responder
        self._tools = tuple(tools)
        self._messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}]
        self._now = datetime.now(UTC)

    async def open(self) -> str:
        return await self._answer({"role": "assistant", "content": self._line.agent.greeting})

    async def says(self, text: str) -> str:
        """What the agent answers, after the tools it wants."""
        self._note(Speaker.CALLER, text)
        self._messages.append({"role": "user", "content": text})
        return await self._answer()

    async def _answer(self, *draft: dict[str, Any]) -> str:
        spoken = ""
        while True:
            calls: dict[int, ToolCallDelta] = {}
            request = ChatRequest((*self._messages, *draft), tools=self._tools)
            text = ""
            async for event in self._responder.answer(request):
                if isinstance(event, TextDelta):
                    text += event.text
                elif isinstance(event, ToolCallDelta):
                    calls[event.index] = event
            spoken = f"{spoken} {text.strip()}".strip()
            message: dict[str, Any] = {"role": "assistant", "content": text or None}
            if calls:
                message["tool_calls"] = [
                    {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
                    for one in calls.values()
                ]
            self._messages.append(message)
            for one in calls.values():
                result = await self._run(one.name, json.loads(one.arguments))
                self._messages.append({"role": "tool", "tool_call_id": one.id, "content": result})
            if not calls:
                self._note(Speaker.AGENT, spoken)
                self.said.append(spoken)
                return spoken

    async def _run(self, name: str, arguments: dict[str, Any]) -> str:
        self.called.append((name, arguments))
        if name == SEARCH_KNOWLEDGE.definition.name:
            return rendered(await self._line.knowledge.search(self._line.agent.name, arguments["query"]))
        return orjson.dumps(GOODBYE_DUE).decode()

    def _note(self, speaker: Speaker, text: str) -> None:
        self._now += timedelta(seconds=5)
        self.turns.append(Turn(speaker, text, self._now))


class ScriptedLine:
    """An agent and one of its callers. Calls are finalized by rules, as in the gateway."""

    def __init__(self, store: Any, knowledge: Knowledge, agent: Agent) -> None:
        self.agent = agent
        self.knowledge = knowledge
        self._store = store
        self._recall = Recall(store, NoRemem(), 3)
        self._llm = build_agent_llms([agent], LlmAccounts())[agent.name]
        self._summarizer = Summarizer((), "")

    async def call(self, *, transfer: bool = False, remembers: bool = True) -> ScriptedCall:
        loader = MemoryLoader(self._recall, agent=self.agent.name, caller=CALLER, limit=3)
        access = MemoryAccess(TrustLevel.EVERYTHING, caller=CALLER)
        access.memory = loader if remembers else None
        prompt, _ = await memory_text(self.agent, access, 5)

        async def search(said: str) -> list[str]:
            return await self._recall.search(self.agent.name, CALLER, said)

        memory = {"memory": TurnRecall(search, seconds=5)} if remembers else {}
        responder = Responder(self.agent.name, "", self._llm, kept_seconds=0, **memory)
        tools = [END_CALL, SEARCH_MEMORY, SEARCH_KNOWLEDGE, *([transfer_schema(TARGETS)] if transfer else [])]
        return ScriptedCall(self, prompt, responder, list(map(tool, tools)))

    async def finish(self, call: ScriptedCall, days_ago: int) -> VoiceSession:
        """Finalize the call, as one of some days ago."""
        moved = timedelta(days=days_ago)
        turns = [Turn(turn.speaker, turn.text, turn.at - moved) for turn in call.turns if turn.text]
        session = VoiceSession(
            self.agent.name, CALLER, "twilio", started_at=turns[0].at, ended_at=turns[-1].at, turns=turns
        )
        summary = await self._summarizer.write(spoken_lines(turns))
        await self._store.create(call_document(session, summary, None))
        who = speakers(turns, silence=60.0)
        await FactStore(self._store).learn(session, summary.caller_facts, turns[-1].at, speakers=who)
        await PinnedTopicStore(self._store).note(session, summary.running_topics, turns[-1].at)
        return session


@asynccontextmanager
async def scripted_line(folder: Path, knowledge: Path, **settings: Any) -> AsyncIterator[ScriptedLine]:
    agent = Agent(
        name="maya",
        prompt="{{memory}}",
        greeting="Hello, this is Maya. How can I help you?",
        brain=("script",),
        knowledge=knowledge,
        **settings,
    )
    embedder = Embedder(minilm.load)
    store = await open_local_store(folder, embedder=embedder)
    found = await Knowledge.open(folder / "knowledge.db", {"maya": knowledge}, embedder=embedder.share())
    try:
        await found.refresh()
        yield ScriptedLine(store, found, agent)
    finally:
        await found.close()
        await store.close()
