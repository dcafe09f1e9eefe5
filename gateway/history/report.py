"""
Reports on what is remembered, for operators: by caller, as audit findings, as statistics.

Phone numbers are complete in reports and findings. Statistics contain none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from itertools import pairwise
from statistics import median
from typing import Any, Final

import orjson

from gateway.history.archived_calls import ArchivedCall, ArchivedCalls
from gateway.history.calls_table import CallRowFilter, CallsTable, FinishedCall
from gateway.memory.facts import SOURCE as FACT
from gateway.memory.facts import Fact, FactStore
from gateway.memory.pinned_topics import SOURCE as TOPIC
from gateway.memory.pinned_topics import PinnedTopic, PinnedTopicStore
from gateway.memory.state import CallerState, CallerStateStore, Value
from gateway.memory.stores.documents import Document
from gateway.memory.stores.store import MemoryStore
from gateway.memory.summary_parser import SESSION_PREFIX
from gateway.memory.visible_documents import NOTE
from gateway.session import TrustLevel
from gateway.text.languages import cue
from gateway.text.redaction import redact
from gateway.text.sensitive import sensitive_category

_ALL: Final = 1_000_000
# Pairs of agent and caller, of one caller or all.
_SCOPES: Final = " UNION ".join(
    f"SELECT agent, caller FROM {table} {{where}}"
    for table in ("finished_calls", "archived_calls", "memory_entries", "caller_state")
)
# Facts and topics are read from their own tables.
_DOCUMENTS: Final = f"""
    SELECT tags, content, source_id FROM documents
    WHERE source_id = '' OR source NOT IN ('{FACT}', '{TOPIC}') ORDER BY created_at, key"""
_STATE_CHANGES: Final = """
    SELECT at, session_id, key, value, lag(value) OVER (PARTITION BY key ORDER BY at, number), trust
    FROM caller_state WHERE agent = ? AND caller = ? ORDER BY at, number"""

# Letters and digits in one long word: a key or a token.
_CODE: Final = re.compile(r"\b(?=\w*\d)(?=\w*[A-Za-z])[\w-]{20,}\b")


@dataclass(frozen=True)
class KnownFact:
    """A fact, and the agent that has it."""

    agent: str
    fact: Fact


@dataclass(frozen=True)
class ReportedTopic:
    """A pinned topic, and the agent that is given it."""

    agent: str
    pin: PinnedTopic


@dataclass(frozen=True)
class MemoryChange:
    """
    One change to memory: of a fact (add, strengthen, supersede; repeat and refuse by less trusted calls), a state key
    (set) or a topic (note, pin, change, close, reopen, unpin).
    """

    at: datetime
    op: str
    agent: str
    session_id: str
    before: str
    after: str


@dataclass(frozen=True)
class CallerReport:
    """What is remembered of one caller. `reverted` are session ids. Lists have the newest first, `changes` last."""

    caller: str
    facts: Sequence[KnownFact]
    state: Mapping[str, CallerState]
    """By agent."""
    calls: Sequence[FinishedCall]
    reverted: Sequence[str]
    documents: Sequence[Document]
    """Of calls, facts and notes."""
    changes: Sequence[MemoryChange]
    pins: Sequence[ReportedTopic] = ()
    """Including closed ones."""
    archived: Sequence[ArchivedCall] = ()

    @property
    def notes(self) -> list[Document]:
        """What text agents have noted about the caller."""
        return [document for document in self.documents if document.source == NOTE]

    def as_json(self) -> dict[str, Any]:
        """Everything, for an export."""
        content = {field.name: getattr(self, field.name) for field in fields(self)}
        archived = [{**old.call.as_json(), "document": old.document} for old in self.archived]
        return {**content, "calls": [call.as_json() for call in self.calls], "archived": archived}

    def __bool__(self) -> bool:
        return bool(self.facts or self.pins or self.state or self.calls or self.documents or self.archived)


@dataclass(frozen=True)
class CallerSummary:
    """A caller that an agent has something of."""

    caller: str
    agent: str
    calls: int
    last_call: str
    facts: int
    state_keys: int


@dataclass(frozen=True)
class AuditFinding:
    """Something that an operator should look at."""

    kind: str
    agent: str
    caller: str
    session_id: str
    text: str


@dataclass(frozen=True)
class MemoryStats:
    """How much is remembered, and used."""

    calls: int
    callers: int
    first_time: int
    returning: int
    days_between_calls: float | None
    """The median; None if no caller has called twice."""
    facts_per_caller: float
    state_keys: Mapping[str, int]
    """How many callers have a value, by key."""
    share_told: float
    """The share of calls whose agent was given something of earlier calls."""


class MemoryReports:
    """An empty agent means all. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._calls = CallsTable(store)
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._state = CallerStateStore(store)

    async def of(self, caller: str, agent: str = "") -> CallerReport:
        """Everything about one caller; false if there is nothing."""
        agents = [name for name in await self.agents_of(caller) if agent in ("", name)]
        facts = [KnownFact(name, fact) for name in agents for fact in await self._facts.known(name, caller, _ALL)]
        topics = {name: await self._pins.pinned(name, caller, _ALL, closed=True) for name in agents}
        pins = [ReportedTopic(name, pin) for name, pinned in topics.items() for pin in pinned]
        state = {name: kept for name in agents if (kept := await self._state.load(name, caller))}
        of_them = CallRowFilter(caller=caller, agent=agent)
        calls = await self._calls.newest(of_them, limit=_ALL)
        archived = await ArchivedCalls(self._store).newest(of_them, limit=_ALL)
        tags = (f"caller:{caller}", *([f"agent:{agent}"] if agent else []))
        documents = await self._store.newest(tags=tags, limit=_ALL)
        changes = await self.changes(caller, agents)
        reverted = {session_id for (session_id,) in await self._store.fetch("SELECT session_id FROM reverted_sessions")}
        of_caller = [call.session_id for call in calls if call.session_id in reverted]
        return CallerReport(caller, facts, state, calls, of_caller, documents, changes, pins, archived)

    async def agents_of(self, caller: str) -> list[str]:
        """The agents that have something of a caller."""
        rows = await self._store.fetch(_SCOPES.format(where="WHERE caller = ?"), *[caller] * 4)
        return sorted(agent for agent, _ in rows)

    async def changes(self, caller: str, agents: Iterable[str]) -> list[MemoryChange]:
        """Every change to what these agents have of a caller, oldest first."""
        changes: list[MemoryChange] = []
        for agent in agents:
            for change in (*await self._facts.history(agent, caller), *await self._pins.history(agent, caller)):
                parts = change.session_id, change.before, change.after
                changes.append(MemoryChange(change.at, change.op, agent, *parts))
            for at, session_id, key, value, previous, trust in await self._store.fetch(_STATE_CHANGES, agent, caller):
                if value != previous:
                    before = "" if previous is None else f"{key} = {previous}"
                    mark = " (unverified)" if trust < TrustLevel.EVERYTHING else ""
                    after = "" if value is None else f"{key} = {value}{mark}"
                    changes.append(MemoryChange(datetime.fromisoformat(at), "set", agent, session_id, before, after))
        return sorted(changes, key=lambda change: change.at)

    async def callers(self, agent: str = "") -> list[CallerSummary]:
        summaries = []
        for name, caller in await self._scopes(agent):
            calls = await self._calls.newest(CallRowFilter(caller=caller, agent=name), limit=_ALL)
            facts = len(await self._facts.known(name, caller, _ALL))
            state_keys = len(await self._state.load(name, caller))
            last_call = calls[0].started_at if calls else ""
            summaries.append(CallerSummary(caller, name, len(calls), last_call, facts, state_keys))
        return summaries

    async def audit(self, agent: str = "") -> list[AuditFinding]:
        """Find duplicates, contradictions, unused facts, secrets, sensitive statements, and what reads like orders."""
        found: list[AuditFinding] = []
        for name, caller in await self._scopes(agent):
            facts = await self._facts.known(name, caller, _ALL)
            calls = await self._calls.newest(CallRowFilter(caller=caller, agent=name), limit=_ALL)
            state = await self._state.load(name, caller)
            used = {item.get("id") for call in calls for item in call.receipt.get("items", ())}
            pins = await self._pins.pinned(name, caller, _ALL, closed=True)
            kinds = [*_of_pins(pins), *_of_facts(facts, used), *_of_state(state)]
            found += [AuditFinding(kind, name, caller, session_id, text) for kind, session_id, text in kinds]
        # Summaries of calls, notes, and what clients have stored.
        for tags, content, source_id in await self._store.fetch(_DOCUMENTS):
            whose = dict(tag.split(":", 1) for tag in reversed(orjson.loads(tags)) if ":" in tag)
            name = whose.get("agent", "")
            if "caller" in whose and agent in ("", name):
                of_document = _of_call(content) if source_id.startswith(SESSION_PREFIX) else _of_lines(content)
                found += [AuditFinding(kind, name, whose["caller"], source_id, text) for kind, text in of_document]
        return found

    async def stats(self, agent: str = "") -> MemoryStats:
        scopes = await self._scopes(agent)
        calls = await self._calls.newest(CallRowFilter(agent=agent), limit=_ALL)
        known = sum([len(await self._facts.known(name, caller, _ALL)) for name, caller in scopes])
        keys = Counter([key for name, caller in scopes for key in await self._state.load(name, caller)])
        callers = {caller for _, caller in scopes}
        started: dict[str, list[datetime]] = {}
        for call in reversed(calls):
            started.setdefault(call.caller, []).append(datetime.fromisoformat(call.started_at))
        times = started.values()
        gaps = [(later - earlier).total_seconds() / 86_400 for of_one in times for earlier, later in pairwise(of_one)]
        return MemoryStats(
            calls=len(calls),
            callers=len(callers),
            first_time=sum(len(of_one) == 1 for of_one in times),
            returning=sum(len(of_one) > 1 for of_one in times),
            days_between_calls=round(median(gaps), 2) if gaps else None,
            facts_per_caller=round(known / len(callers), 2) if callers else 0.0,
            state_keys=dict(sorted(keys.items())),
            share_told=round(sum(bool(call.receipt.get("items")) for call in calls) / len(calls), 3) if calls else 0.0,
        )

    async def _scopes(self, agent: str) -> list[tuple[str, str]]:
        """Pairs of agent and caller."""
        rows = await self._store.fetch(_SCOPES.format(where="") + " ORDER BY caller, agent")
        return [(name, caller) for name, caller in rows if agent in ("", name)]


# Findings: (kind, session id, text), or (kind, text) of a document


def _of_call(content: str) -> list[tuple[str, str]]:
    """A summary is redacted already. A line that gives orders to the agent is not something the call agreed on."""
    lines = [line.strip(" -*") for line in content.splitlines()]
    found = [("like an instruction", line) for line in lines if cue("audit", "overruling").search(line)]
    return found + [("sensitive", line) for line in lines if sensitive_category(line)]


def _of_lines(content: str) -> list[tuple[str, str]]:
    lines = filter(None, (line.strip(" -*#") for line in content.splitlines()))
    return [(kind, line) for line in lines for kind in _suspicions(line)]


def _of_facts(facts: Sequence[Fact], used: set[Any]) -> list[tuple[str, str, str]]:
    spellings = Counter(_spelling(fact.text) for fact in facts)
    found = []
    for fact in facts:
        kinds = _suspicions(fact.text)
        kinds += ["duplicate"] if spellings[_spelling(fact.text)] > 1 else []
        kinds += ["contradiction"] if fact.instead_of else []
        kinds += ["never used"] if fact.id not in used else []
        text = f"{fact.text} (not: {fact.instead_of})" if fact.instead_of else fact.text
        found += [(kind, fact.session_id, text) for kind in kinds]
    return found


def _of_pins(pins: Sequence[PinnedTopic]) -> list[tuple[str, str, str]]:
    spellings = Counter(_spelling(pin.title) for pin in pins)
    found = [("duplicate", pin.session_id, pin.title) for pin in pins if spellings[_spelling(pin.title)] > 1]
    for pin in pins:
        for text in filter(None, (pin.title, pin.about, pin.status, *pin.open_items)):
            words = re.sub(r"^(?:Caller|Agent): ", "", text)
            found += [(kind, pin.session_id, text) for kind in _suspicions(words)]
    return found


def _of_state(state: Mapping[str, Value]) -> list[tuple[str, str, str]]:
    texts = {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in state.items()}
    return [(kind, "", f"{key} = {text}") for key, text in texts.items() for kind in _suspicions(text)]


def _suspicions(text: str) -> list[str]:
    kinds = {
        "like an instruction": cue("audit", "instruction").search(text),
        "like a secret": redact(text) != text or _CODE.search(text),
        "sensitive": sensitive_category(text),
    }
    return [kind for kind, is_so in kinds.items() if is_so]


def _spelling(text: str) -> str:
    """Equal for texts that differ only in case, order of words and punctuation."""
    return " ".join(sorted(re.findall(r"\w+", text.casefold())))
