"""What the engine is given for a call: the agent's prompt, the caller's memory, and the conversation so far."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from gateway.agents import Agent, render_prompt, wants_memory
from gateway.calls.consent import first_words
from gateway.calls.transcript import Transcript
from gateway.engines.interface import AgentFunction, AgentSettings
from gateway.llm.chat import LlmEndpoint
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.memory.facts import Fact
from gateway.memory.loader import MemoryLoader
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import find_names, plain_name, render, render_facts, render_name, render_topics, stands_in
from gateway.memory.summary_parser import PastCall
from gateway.session import TrustLevel, VoiceSession

_Item = TypeVar("_Item", Fact, PinnedTopic)

RecordedMemory = dict[str, Sequence[PastCall | Fact | PinnedTopic]]
"""Calls, facts and pins, as a recording stores them."""

NO_NOTES: Final = "Nothing: there are no notes of an earlier call."


class AgentContext:
    """Builds the settings of each engine session, and tracks which parts of the memory the engine has been given."""

    def __init__(
        self,
        session: VoiceSession,
        agent: Agent,
        transcript: Transcript,
        access: MemoryAccess,
        functions: Sequence[AgentFunction],
        personas: Mapping[str, str],
        llm: LlmEndpoint | None,
    ) -> None:
        self._session = session
        self._agent = agent
        self._transcript = transcript
        self._access = access
        self._functions = functions
        self._personas = personas
        self._llm = llm
        self._opening: list[str] = []
        self._greeting_has_left = False
        self._preparation: asyncio.Task[None] | None = None
        self._wants_memory = wants_memory(agent.prompt)
        self._memory = access.memory if self._wants_memory else None
        self._calls: list[PastCall] = []
        self._calls_given = 0
        self._facts: list[Fact] = []
        self._topics: list[PinnedTopic] = []
        self._earlier_receipt: dict[str, Any] = {}

    # Settings

    def wait_for(self, preparation: "asyncio.Task[None]") -> None:
        """Let the first settings wait for this task too, as long as they wait for memory."""
        self._preparation = preparation

    def add_to_greeting(self, text: str) -> bool:
        """Say this as part of the greeting. Returns False when the greeting has left."""
        if self._greeting_has_left:
            return False
        self._opening.append(text)
        return True

    async def load_settings(self, memory_seconds: float) -> AgentSettings:
        """The settings of a new session, after waiting up to `memory_seconds` for memory."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + memory_seconds
        if self._preparation is not None:
            await asyncio.wait({self._preparation}, timeout=max(memory_seconds, 0))
        if self._memory is not None:
            self._take(self._memory, await self._memory.by(deadline - clock()))
        settings = self.settings()
        self._greeting_has_left = True
        return settings

    @property
    def greeting(self) -> str:
        """The agent's greeting, with what tools added to it."""
        return " ".join(filter(None, [self._agent.greeting, *self._opening]))

    def settings(self) -> AgentSettings:
        """The settings with what is known, and may be used, at this moment."""
        history = self._transcript.history
        has_begun = history or self._transcript.has_audio
        return AgentSettings(
            agent=self._agent,
            prompt=self._prompt(),
            greeting="" if has_begun else first_words(self._agent, self.greeting),
            functions=self._functions,
            history=history,
            llm=self._llm,
            keyterms=self._keyterms(),
        )

    # Memory

    def _take(self, memory: MemoryLoader, calls: list[PastCall]) -> None:
        """Use these calls, and the facts and topics that are loaded by now, in the next settings."""
        self._calls += calls
        everything = self._access.allows(TrustLevel.EVERYTHING)
        self._facts = memory.facts if everything else []
        self._topics = memory.topics if everything else []
        self._calls_given = len(self._calls) if self._access.allows(TrustLevel.SUMMARIES) else 0

    def memory_changed(self, change: AccessChange) -> None:
        """Drop a memory that may not be used any more. The receipt keeps what the engine was given."""
        if change is AccessChange.LEVEL_RAISED and self._memory is None and self._wants_memory:
            self._memory = self._access.memory  # the lower level did not allow it
        if change in (AccessChange.CALLER_CHANGED, AccessChange.CONTENT_CHANGED, AccessChange.REVOKED):
            self._earlier_receipt = self.receipt
            self._calls, self._facts, self._topics, self._calls_given = [], [], [], 0
            self._memory = self._access.memory if self._wants_memory and change is not AccessChange.REVOKED else None
            if self._memory is not None:
                self._take(self._memory, self._memory.found())

    async def load_rest(self) -> None:
        """Wait for memory that was too late for the first settings."""
        if self._memory is not None:
            self._calls += await self._memory.rest()

    def late_memory(self) -> str:
        """Memory that was loaded, or allowed, after the settings: as text for the prompt, once; empty for none."""
        if not self._access.allows(TrustLevel.SUMMARIES):
            return ""
        calls, self._calls_given = self._calls[self._calls_given :], len(self._calls)
        facts: list[Fact] = []
        topics: list[PinnedTopic] = []
        if self._memory is not None and self._access.allows(TrustLevel.EVERYTHING):
            facts = _new(self._memory.facts, self._facts)
            topics = _new(self._memory.topics, self._topics)
            self._facts, self._topics = [*self._facts, *facts], [*self._topics, *topics]
        return _block(topics, facts, calls, self._now())

    @property
    def memory_event(self) -> dict[str, Any]:
        """The fields of the live event `memory`: how much the agent was given, and how long loading took."""
        counts = {"facts": len(self._facts), "calls": self._calls_given, "tier": str(self._access.level)}
        if self._memory is None:
            return {**counts, "seconds": None, "outcome": "off"}
        outcome = self._memory.outcome
        if outcome == "loaded" and not (self._facts or self._calls_given):
            outcome = "nothing"
        return {**counts, "seconds": self._memory.seconds, "outcome": outcome}

    @property
    def memory_seconds(self) -> float:
        """How long loading took, or has taken until now."""
        return self._memory.elapsed if self._memory is not None else 0.0

    @property
    def recorded_memory(self) -> RecordedMemory:
        """
        The memory as a recording stores it, so that a replay can provide the same.

        Not only what the agent is given: the rest identifies the speaker, or is another one's.
        """
        memory = self._access.memory
        calls, facts, topics = memory.of_everyone if memory is not None else ([], [], [])
        return {"calls": calls, "facts": facts, "pins": topics}

    @property
    def receipt(self) -> dict[str, Any]:
        """The version of the agent's texts, what it was given of earlier calls, and where each item came from."""
        calls = self._calls[: self._calls_given]
        now, earlier = self._now(), self._earlier_receipt
        name, level = self._name_alone(), str(self._access.level)
        block = "\n".join(filter(None, [name, _block(self._topics, self._facts, calls, now)]))
        items: list[dict[str, Any]] = []
        if name:
            by_calls = [(call.session_id, call.started_at) for call in self._calls if call.caller_name]
            facts = self._memory.facts if self._memory is not None else []
            by_facts = [(fact.session_id, fact.said_at) for fact in facts if fact.person]
            session_id, at = next(iter(by_calls + by_facts), ("", now))
            items.append({"kind": "name", "text": self._name, **_source(session_id, at, now, name)})
        for topic in self._topics:
            if stands_in(block, topic.title):
                line, text = render_topics([topic], now=now), f"{topic.title} ({topic.state})"
                source = _source(topic.session_id, topic.last_said_at, now, line, topic.turns)
                items.append({"kind": "pin", "id": topic.id, "text": text, **source, **topic.trust.mark})
        for fact in self._facts:
            if stands_in(block, fact.text):
                source = _source(fact.session_id, fact.last_said_at, now, fact.text, fact.turns)
                said = {"id": fact.id, "text": fact.text, **source, "score": fact.confidence}
                items.append({"kind": "fact", **said, **fact.trust.mark})
        for call in calls:  # of all its turns
            source = _source(call.session_id, call.started_at, now, render([call], now=now))
            items.append({"kind": "call", **source, **call.trust.mark})
        return {
            "version": self._agent.version,
            "tier": earlier.get("tier") or level,
            "block": "\n".join(filter(None, [earlier.get("block"), block])),
            "items": earlier.get("items", []) + [item | {"tier": level} for item in items],
        }

    # The prompt

    def _prompt(self) -> str:
        now, name = self._now(), plain_name(self._name)
        number = self._session.number or self._session.caller
        caller = f"{name} ({number})" if name else number
        calls = self._calls if self._access.allows(TrustLevel.SUMMARIES) else []
        newest_first = sorted(calls, key=lambda call: call.started_at, reverse=True)
        block = _block(self._topics, self._facts, newest_first, now)
        memory = "\n".join(filter(None, [self._name_alone(), block])) or NO_NOTES
        return render_prompt(self._agent.prompt, memory=memory, now=now, caller=caller, personas=self._personas)

    @property
    def _name(self) -> str:
        """The caller's name, if it is known and the agent may know it."""
        if not self._access.allows(TrustLevel.NAME):
            return ""
        known = self._memory.person if self._memory is not None else ""
        return known or next((call.caller_name for call in self._calls if call.caller_name), "")

    def _name_alone(self) -> str:
        """The name as a line of its own, at levels without facts; it is one of the facts otherwise."""
        return "" if self._access.allows(TrustLevel.EVERYTHING) else render_name(self._name)

    def _keyterms(self) -> list[str]:
        """The names in what the agent was given: the caller's first, then those in facts, topics and calls."""
        calls = self._calls if self._access.allows(TrustLevel.SUMMARIES) else []
        texts = [fact.text for fact in self._facts] + [topic.title for topic in self._topics]
        return find_names(self._name, [*texts, *(call.context for call in calls)])

    def _now(self) -> datetime:
        return datetime.now().astimezone(self._agent.timezone)


async def memory_text(agent: Agent, access: MemoryAccess, seconds: float) -> tuple[str, str]:
    """Memory as text for a prompt that another platform has, and the caller's name: what is loaded within `seconds`."""
    memory = access.memory
    if memory is None:
        return NO_NOTES, ""
    calls = await memory.by(seconds)
    everything = access.allows(TrustLevel.EVERYTHING)
    calls = sorted(calls, key=lambda call: call.started_at, reverse=True) if access.allows(TrustLevel.SUMMARIES) else []
    name = memory.person if access.allows(TrustLevel.NAME) else ""
    now = datetime.now().astimezone(agent.timezone)
    block = _block(memory.topics if everything else [], memory.facts if everything else [], calls, now)
    return "\n".join(filter(None, ["" if everything else render_name(name), block])) or NO_NOTES, plain_name(name)


def _new(items: Sequence[_Item], given: Sequence[_Item]) -> list[_Item]:
    ids = {item.id for item in given}
    return [item for item in items if item.id not in ids]


def _block(topics: Sequence[PinnedTopic], facts: Sequence[Fact], calls: Sequence[PastCall], now: datetime) -> str:
    """Memory as text for the prompt: what is verified first, and what lasts before what is past."""
    blocks: list[str] = []
    for level in reversed(TrustLevel):
        blocks.append(render_topics([topic for topic in topics if topic.trust is level], now=now))
        blocks.append(render_facts([fact for fact in facts if fact.trust is level]))
        blocks.append(render([call for call in calls if call.trust is level], now=now))
    return "\n".join(filter(None, blocks))


def _source(session_id: str, at: datetime, now: datetime, line: str, turns: Sequence[int] = ()) -> dict[str, Any]:
    """Where an item of the receipt came from, and its weight. The score is 1 for now, half as much after each month."""
    age_days = (now - at).days
    score = round(math.exp2(-max(age_days, 0) / 30), 4)
    return {"session": session_id, "turns": list(turns), "age_days": age_days, "score": score, "tokens": len(line) // 4}
