"""What the engine is told about a call: the agent's prompt, what is remembered, and the conversation so far."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gateway import prompts
from gateway.agents import Agent
from gateway.calls.transcript import Transcript
from gateway.engines.interface import AgentFunction, AgentSettings, LlmEndpoint
from gateway.memory.facts import Fact
from gateway.memory.loader import MemoryLoader
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import plain_name, render, render_facts, render_name, render_pins, stands_in
from gateway.memory.summary_parser import PastCall
from gateway.memory.trust import MemoryAccess, TrustLevel
from gateway.session import VoiceSession

NO_NOTES: Final = "Nothing: there are no notes of an earlier call."


class AgentContext:
    """Makes the brief for each connection to the engine, and keeps track of which notes it has been given."""

    def __init__(
        self,
        session: VoiceSession,
        agent: Agent,
        transcript: Transcript,
        memory: MemoryLoader | None,
        functions: Sequence[AgentFunction],
        *,
        endpoint: LlmEndpoint | None = None,
        personas: Mapping[str, str] | None = None,
        access: MemoryAccess | None = None,
    ) -> None:
        self._session = session
        self._agent = agent
        self._transcript = transcript
        self._memory = memory if prompts.wants_memory(agent.prompt) else None
        self._functions = functions
        self._endpoint = endpoint
        self._personas = personas or {}
        self._access = access or MemoryAccess()
        self._opening: list[str] | None = []
        self._preparing: asyncio.Task[None] | None = None
        self._notes: list[PastCall] = []
        self._facts: list[Fact] = []
        self._pins: list[PinnedTopic] = []
        self._told = 0
        self._told_before: dict[str, Any] = {}

    def waits_for(self, preparing: "asyncio.Task[None]") -> None:
        """The first brief waits for this as well, as long as it waits for memory."""
        self._preparing = preparing

    def opens_with(self, text: str) -> bool:
        """Have it said with the greeting; false when it is too late for that."""
        if self._opening is None:
            return False
        self._opening.append(text)
        return True

    async def agent_settings(self, memory_seconds: float) -> AgentSettings:
        """The brief as of now, waiting so long for memory and no longer."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + memory_seconds
        if self._preparing is not None:
            await asyncio.wait({self._preparing}, timeout=max(memory_seconds, 0))
        if self._memory is not None:
            self._take(await self._memory.by(deadline - clock()))
        agent_settings = self.as_of_now()
        self._opening = None
        return agent_settings

    def _take(self, notes: list[PastCall]) -> None:
        """For the brief: notes that came, facts and topics."""
        self._notes += notes
        memory = self._memory if self._access.allows(TrustLevel.EVERYTHING) else None
        self._facts = memory.facts if memory is not None else []
        self._pins = memory.pins if memory is not None else []
        self._told = len(self._notes) if self._access.allows(TrustLevel.SUMMARIES) else 0

    def as_of_now(self) -> AgentSettings:
        """The brief with what is known, and may be told, at this moment."""
        history, opening = self._transcript.conversation, self._opening or []
        has_begun = history or self._transcript.has_sound
        return AgentSettings(
            agent=self._agent,
            prompt=self._prompt(),
            greeting="" if has_begun else " ".join(filter(None, [self._agent.greeting, *opening])),
            functions=self._functions,
            history=history,
            llm=self._endpoint,
        )

    def knows(self, memory: MemoryLoader | None) -> None:
        """It is somebody else's memory that counts. What was told before stays in the receipt."""
        self.forget()
        self._memory = memory if prompts.wants_memory(self._agent.prompt) else None
        if self._memory is not None:
            self._take(self._memory.found())

    def forget(self) -> None:
        """From here on there is nothing to tell. What was told stays in the receipt."""
        self._told_before = self.receipt
        self._memory = None
        self._notes, self._facts, self._pins, self._told = [], [], [], 0

    async def load_rest(self) -> None:
        """Wait for memory that was too late for the first brief."""
        if self._memory is not None:
            self._notes += await self._memory.rest()

    def untold(self) -> str:
        """Notes that came after the brief, or may be told only now, for the prompt; empty for none. Tells once."""
        if not self._access.allows(TrustLevel.SUMMARIES):
            return ""
        later, self._told = self._notes[self._told :], len(self._notes)
        return _block(self._untold_pins(), self._untold_facts(), later, self._now())

    def _untold_pins(self) -> list[PinnedTopic]:
        if self._memory is None or not self._access.allows(TrustLevel.EVERYTHING):
            return []
        told = {pin.id for pin in self._pins}
        new = [pin for pin in self._memory.pins if pin.id not in told]
        self._pins = [*self._pins, *new]
        return new

    def _untold_facts(self) -> list[Fact]:
        if self._memory is None or not self._access.allows(TrustLevel.EVERYTHING):
            return []
        told = {fact.id for fact in self._facts}
        new = [fact for fact in self._memory.facts if fact.id not in told]
        self._facts = [*self._facts, *new]
        return new

    @property
    def told(self) -> dict[str, Any]:
        """How much was told of earlier calls, and how long that took to load."""
        loading = self._memory
        counts = {"facts": len(self._facts), "calls": self._told, "tier": str(self._access.tier)}
        if loading is None:
            return {**counts, "seconds": None, "outcome": "off"}
        outcome = loading.outcome
        if outcome == "loaded" and not (self._facts or self._told):
            outcome = "nothing"
        return {**counts, "seconds": loading.seconds, "outcome": outcome}

    @property
    def memory_seconds(self) -> float:
        """How long it has been loaded for: until all was there, or until now."""
        return self._memory.so_long if self._memory is not None else 0.0

    @property
    def receipt(self) -> dict[str, Any]:
        """What was told of earlier calls, and where it came from."""
        told = self._notes[: self._told]
        now, before = self._now(), self._told_before
        name = self._name_alone()
        block = "\n".join(filter(None, [name, _block(self._pins, self._facts, told, now)]))
        items = [
            *([self._receipt_of_name(name, now)] if name else []),
            *(_receipt_of_pin(pin, now) for pin in self._pins if stands_in(block, pin.title)),
            *(_receipt_of(fact, now) for fact in self._facts if stands_in(block, fact.text)),
            *(_receipt_of_call(call, now) for call in told),
        ]
        tier = before.get("tier") or str(self._access.tier)
        return {
            "tier": tier,
            "block": "\n".join(filter(None, [before.get("block"), block])),
            "items": before.get("items", []) + [item | {"tier": str(self._access.tier)} for item in items],
        }

    @property
    def memory(self) -> dict[str, Sequence[PastCall | Fact | PinnedTopic]]:
        """What is known by now: notes of calls, told or not, and the facts and topics that were told."""
        return {"calls": list(self._notes), "facts": list(self._facts), "pins": list(self._pins)}

    def _prompt(self) -> str:
        now, name = self._now(), plain_name(self._name)
        number = self._session.number or self._session.caller
        caller = f"{name} ({number})" if name else number
        notes = self._notes if self._access.allows(TrustLevel.SUMMARIES) else []
        newest_first = sorted(notes, key=lambda call: call.started_at, reverse=True)
        block = _block(self._pins, self._facts, newest_first, now)
        memory = "\n".join(filter(None, [self._name_alone(), block])) or NO_NOTES
        return prompts.render(self._agent.prompt, memory=memory, now=now, caller=caller, personas=self._personas)

    @property
    def _name(self) -> str:
        """The caller's name, if it is known and may be told."""
        if not self._access.allows(TrustLevel.NAME):
            return ""
        known = self._memory.person if self._memory is not None else ""
        return known or next((call.caller_name for call in self._notes if call.caller_name), "")

    def _name_alone(self) -> str:
        """For who may not be told the facts, of which it is one."""
        return "" if self._access.allows(TrustLevel.EVERYTHING) else render_name(self._name)

    def _receipt_of_name(self, text: str, now: datetime) -> dict[str, Any]:
        calls = [(call.session_id, call.started_at) for call in self._notes if call.caller_name]
        facts = self._memory.facts if self._memory is not None else []
        by_facts = [(fact.session_id, fact.said_at) for fact in facts if fact.person]
        session_id, at = next(iter(calls + by_facts), ("", now))
        return {
            "kind": "name",
            "text": self._name,
            "session": session_id,
            "turns": [],
            "age_days": (now - at).days,
            "score": _recency(at, now),
            "tokens": len(text) // 4,
        }

    def _now(self) -> datetime:
        return datetime.now().astimezone(self._agent.timezone)


def _block(pins: Sequence[PinnedTopic], facts: Sequence[Fact], calls: Sequence[PastCall], now: datetime) -> str:
    """What is known, the lasting before the past."""
    return "\n".join(filter(None, [render_pins(pins, now=now), render_facts(facts), render(calls, now=now)]))


def _receipt_of_pin(pin: PinnedTopic, now: datetime) -> dict[str, Any]:
    return {
        "kind": "pin",
        "id": pin.id,
        "text": f"{pin.title} ({pin.state})",
        "session": pin.session_id,
        "turns": list(pin.turns),
        "age_days": (now - pin.last_said_at).days,
        "score": _recency(pin.last_said_at, now),
        "tokens": len(render_pins([pin], now=now)) // 4,
    }


def _receipt_of(fact: Fact, now: datetime) -> dict[str, Any]:
    return {
        "kind": "fact",
        "id": fact.id,
        "text": fact.text,
        "session": fact.session_id,
        "turns": list(fact.turns),
        "age_days": (now - fact.last_said_at).days,
        "score": fact.confidence,
        "tokens": len(fact.text) // 4,
    }


def _receipt_of_call(call: PastCall, now: datetime) -> dict[str, Any]:
    return {
        "kind": "call",
        "session": call.session_id,
        "turns": [],  # all of it
        "age_days": (now - call.started_at).days,
        "score": _recency(call.started_at, now),
        "tokens": len(render([call], now=now)) // 4,
    }


def _recency(then: datetime, now: datetime) -> float:
    """By which calls and topics are chosen: 1 for now, half as much after a month."""
    return round(math.exp2(-max((now - then).days, 0) / 30), 4)
