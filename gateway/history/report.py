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
from gateway.memory.database import Connection
from gateway.memory.documents import Document
from gateway.memory.facts import SOURCE as FACT
from gateway.memory.facts import Fact, FactStore
from gateway.memory.pinned_topics import SOURCE as TOPIC
from gateway.memory.pinned_topics import PinnedTopic, PinnedTopicStore
from gateway.memory.state import CallerStateStore, Value
from gateway.memory.store import MemoryStore
from gateway.memory.summary_parser import SESSION_PREFIX
from gateway.memory.visible_documents import NOTE
from gateway.text.redaction import redact

_ALL: Final = 1_000_000
_DAY: Final = 86_400

_SCOPES: Final = """
    SELECT agent, caller FROM finished_calls UNION SELECT agent, caller FROM archived_calls
    UNION SELECT agent, caller FROM memory_entries
    UNION SELECT agent, caller FROM caller_state_log ORDER BY caller, agent"""
# Facts and topics are read from their own tables.
_DOCUMENTS: Final = f"""
    SELECT tags, content, source_id FROM documents
    WHERE source_id = '' OR source NOT IN ('{FACT}', '{TOPIC}') ORDER BY created_at, key"""
_AGENTS: Final = """
    SELECT agent FROM finished_calls WHERE caller = :caller
    UNION SELECT agent FROM memory_entries WHERE caller = :caller
    UNION SELECT agent FROM caller_state_log WHERE caller = :caller ORDER BY agent"""
_STATE_CHANGES: Final = """
    SELECT at, session_id, key, value, lag(value) OVER (PARTITION BY key ORDER BY at, number)
    FROM caller_state_log WHERE agent = ? AND caller = ? ORDER BY at, number"""

_INSTRUCTION: Final = re.compile(
    r"^(?:please|ignore|disregard|forget|pretend|always|never|from now on|tell|say|give|grant|transfer|reveal)\b"
    r"|\b(?:system prompt|instructions|(?:agent|assistant)s? (?:must|should|has to)|verified|admin)\b",
    re.IGNORECASE,
)
# A summary may begin a line with a verb (an action item), but has no reason to say this.
_OVERRULING: Final = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.;]*\b(?:previous|prior|earlier|above|everything|rules?|told)\b"
    r"|\b(?:system prompt|(?:your|these|those|previous|prior|earlier|all) instructions)\b"
    r"|\b(?:agent|assistant|ai|bot|model)s? (?:must|should|has to)\b|\b(?:you are now|act as|pretend to)\b",
    re.IGNORECASE,
)
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
    One change to memory: of a fact (add, strengthen, supersede), a state key (set) or a topic (note, pin, change,
    close, reopen, unpin).
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
    state: Mapping[str, Mapping[str, Value]]
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
        agents = [name for name, whose in await self._scopes(agent) if whose == caller]
        facts = [KnownFact(name, fact) for name in agents for fact in await self._facts.known(name, caller, _ALL)]
        pins = [
            ReportedTopic(name, pin)
            for name in agents
            for pin in await self._pins.pinned(name, caller, _ALL, closed=True)
        ]
        state = {name: kept for name in agents if (kept := await self._state.load(name, caller))}
        of_them = CallRowFilter(caller=caller, agent=agent)
        calls = await self._calls.newest(of_them, limit=_ALL)
        archived = await ArchivedCalls(self._store).newest(of_them, limit=_ALL)
        tags = (f"caller:{caller}", *([f"agent:{agent}"] if agent else []))
        documents = await self._store.newest(tags=tags, limit=_ALL)
        changes = await self.changes(caller, agents)
        reverted = await self._reverted()
        of_caller = [call.session_id for call in calls if call.session_id in reverted]
        return CallerReport(caller, facts, state, calls, of_caller, documents, changes, pins, archived)

    async def agents_of(self, caller: str) -> list[str]:
        """The agents that have something of a caller."""
        rows = await self._store.look(lambda connection: connection.execute(_AGENTS, {"caller": caller}).fetchall())
        return [agent for (agent,) in rows]

    async def changes(self, caller: str, agents: Iterable[str]) -> list[MemoryChange]:
        """Every change to what these agents have of a caller, oldest first."""
        changes = [change for name in agents for change in await self._changes(name, caller)]
        return sorted(changes, key=lambda change: change.at)

    async def callers(self, agent: str = "") -> list[CallerSummary]:
        return [await self._caller(*scope) for scope in await self._scopes(agent)]

    async def audit(self, agent: str = "") -> list[AuditFinding]:
        """Find duplicates, contradictions, unused facts, secrets, and text that reads like an instruction."""
        found: list[AuditFinding] = []
        for name, caller in await self._scopes(agent):
            facts = await self._facts.known(name, caller, _ALL)
            calls = await self._calls.newest(CallRowFilter(caller=caller, agent=name), limit=_ALL)
            state = await self._state.load(name, caller)
            used = {item.get("id") for call in calls for item in call.receipt.get("items", ())}
            pins = await self._pins.pinned(name, caller, _ALL, closed=True)
            kinds = [*_of_pins(pins), *_of_facts(facts, used), *_of_state(state)]
            found += [AuditFinding(kind, name, caller, session_id, text) for kind, session_id, text in kinds]
        return found + [finding for finding in await self._of_documents() if agent in ("", finding.agent)]

    async def _of_documents(self) -> list[AuditFinding]:
        """Summaries of calls, notes, and what clients have stored."""
        rows = await self._store.look(lambda connection: connection.execute(_DOCUMENTS).fetchall())
        found = []
        for tags, content, source_id in rows:
            whose = dict(tag.split(":", 1) for tag in reversed(orjson.loads(tags)) if ":" in tag)
            if "caller" in whose:
                kinds = _of_call(content) if source_id.startswith(SESSION_PREFIX) else _of_lines(content)
                agent, caller = whose.get("agent", ""), whose["caller"]
                found += [AuditFinding(kind, agent, caller, source_id, text) for kind, text in kinds]
        return found

    async def stats(self, agent: str = "") -> MemoryStats:
        scopes = await self._scopes(agent)
        calls = await self._calls.newest(CallRowFilter(agent=agent), limit=_ALL)
        known = sum([len(await self._facts.known(name, caller, _ALL)) for name, caller in scopes])
        keys = Counter([key for name, caller in scopes for key in await self._state.load(name, caller)])
        callers = {caller for _, caller in scopes}
        times = _times_by_caller(calls)
        gaps = [(later - earlier).total_seconds() / _DAY for of_one in times for earlier, later in pairwise(of_one)]
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

    async def _caller(self, agent: str, caller: str) -> CallerSummary:
        calls = await self._calls.newest(CallRowFilter(caller=caller, agent=agent), limit=_ALL)
        return CallerSummary(
            caller,
            agent,
            calls=len(calls),
            last_call=calls[0].started_at if calls else "",
            facts=len(await self._facts.known(agent, caller, _ALL)),
            state_keys=len(await self._state.load(agent, caller)),
        )

    async def _scopes(self, agent: str) -> list[tuple[str, str]]:
        """Pairs of agent and caller."""
        rows = await self._store.look(lambda connection: connection.execute(_SCOPES).fetchall())
        return [(name, caller) for name, caller in rows if agent in ("", name)]

    async def _reverted(self) -> frozenset[str]:
        query = "SELECT session_id FROM reverted_sessions"
        rows = await self._store.look(lambda connection: connection.execute(query).fetchall())
        return frozenset(session_id for (session_id,) in rows)

    async def _changes(self, agent: str, caller: str) -> list[MemoryChange]:
        logged = [*await self._facts.history(agent, caller), *await self._pins.history(agent, caller)]

        def work(connection: Connection) -> list[Any]:
            return connection.execute(_STATE_CHANGES, (agent, caller)).fetchall()

        of_state = [
            MemoryChange(
                datetime.fromisoformat(at), "set", agent, session_id, _state_text(key, before), _state_text(key, after)
            )
            for at, session_id, key, after, before in await self._store.look(work)
            if after != before
        ]
        return [
            MemoryChange(change.at, change.op, agent, change.session_id, change.before, change.after)
            for change in logged
        ] + of_state


def _state_text(key: str, value: str | None) -> str:
    return "" if value is None else f"{key} = {value}"


def _times_by_caller(calls: Iterable[FinishedCall]) -> list[list[datetime]]:
    """The times of each caller's calls, in order."""
    times: dict[str, list[datetime]] = {}
    for call in calls:
        times.setdefault(call.caller, []).append(datetime.fromisoformat(call.started_at))
    return [sorted(of_one) for of_one in times.values()]


# Findings: (kind, session id, text), or (kind, text) of a document


def _of_call(content: str) -> list[tuple[str, str]]:
    """A summary is redacted already. A line that gives orders to the agent is not something the call agreed on."""
    lines = (line.strip(" -*") for line in content.splitlines())
    return [("like an instruction", line) for line in lines if _OVERRULING.search(line)]


def _of_lines(content: str) -> list[tuple[str, str]]:
    lines = filter(None, (line.strip(" -*#") for line in content.splitlines()))
    return [(kind, line) for line in lines for kind, is_so in _of_text(line).items() if is_so]


def _of_facts(facts: Sequence[Fact], used: set[Any]) -> list[tuple[str, str, str]]:
    spellings = Counter(_spelling(fact.text) for fact in facts)
    found = []
    for fact in facts:
        kinds = _of_text(fact.text) | {
            "duplicate": spellings[_spelling(fact.text)] > 1,
            "contradiction": bool(fact.instead_of),
            "never used": fact.id not in used,
        }
        text = f"{fact.text} (not: {fact.instead_of})" if fact.instead_of else fact.text
        found += [(kind, fact.session_id, text) for kind, is_so in kinds.items() if is_so]
    return found


def _of_pins(pins: Iterable[PinnedTopic]) -> list[tuple[str, str, str]]:
    texts = [(pin, text) for pin in pins for text in (pin.title, pin.about, pin.status, *pin.open_items) if text]
    spellings = Counter(_spelling(pin.title) for pin in pins)
    doubled = [("duplicate", pin.session_id, pin.title) for pin in pins if spellings[_spelling(pin.title)] > 1]
    return doubled + [
        (kind, pin.session_id, text)
        for pin, text in texts
        for kind, is_so in _of_text(_unlabelled(text)).items()
        if is_so
    ]


def _unlabelled(text: str) -> str:
    """The words, without the speaker."""
    return re.sub(r"^(?:Caller|Agent): ", "", text)


def _of_state(state: Mapping[str, Value]) -> list[tuple[str, str, str]]:
    texts = {key: value if isinstance(value, str) else orjson.dumps(value).decode() for key, value in state.items()}
    return [
        (kind, "", f"{key} = {text}") for key, text in texts.items() for kind, is_so in _of_text(text).items() if is_so
    ]


def _of_text(text: str) -> dict[str, bool]:
    return {
        "like an instruction": bool(_INSTRUCTION.search(text)),
        "like a secret": redact(text) != text or bool(_CODE.search(text)),
    }


def _spelling(text: str) -> str:
    """Equal for texts that differ only in case, order of words and punctuation."""
    return " ".join(sorted(re.findall(r"\w+", text.casefold())))
