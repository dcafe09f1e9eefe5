"""One caller as their page shows it: what is known, since when, how surely and from which call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gateway.history.calls_table import CallRow, CallRowFilter, CallsTable
from gateway.history.report import KnownFact, MemoryChange, MemoryReports, ReportedTopic
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.state import CallerStateStore, Value
from gateway.memory.store import MemoryStore
from gateway.memory.summary_parser import read_call

MOST_FACTS: Final = 200
MOST_CALLS: Final = 20
MOST_CHANGES: Final = 50


@dataclass(frozen=True)
class CallerView:
    """What the page shows; lists are cut to what a person reads. False when nothing is known."""

    caller: str
    name: str
    agents: Sequence[str]
    facts: Sequence[KnownFact]
    pins: Sequence[ReportedTopic]
    state: Mapping[str, Mapping[str, Value]]
    calls: Sequence[CallRow]
    call_count: int
    changes: Sequence[MemoryChange]

    def __bool__(self) -> bool:
        return bool(self.agents)


class CallerPageQuery:
    """Reads callers, for pages. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._lines = CallsTable(store)
        self._dossiers = MemoryReports(store)
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._state = CallerStateStore(store)

    async def view(self, caller: str) -> CallerView:
        agents = await self._dossiers.agents_of(caller)
        known = [(name, await self._facts.known(name, caller, MOST_FACTS)) for name in agents]
        calls = await self._lines.page(CallRowFilter(caller=caller), limit=MOST_CALLS)
        names = await self.names([call.session_id for call in calls])
        changes = await self._dossiers.changes(caller, agents)
        return CallerView(
            caller=caller,
            name=next((names[call.session_id] for call in calls if names.get(call.session_id)), ""),
            agents=agents,
            facts=[KnownFact(name, fact) for name, facts in known for fact in facts],
            pins=[
                ReportedTopic(name, pin)
                for name in agents
                for pin in await self._pins.pinned(name, caller, MOST_FACTS, closed=True)
            ],
            state={name: kept for name in agents if (kept := await self._state.load(name, caller))},
            calls=calls,
            call_count=await self._lines.count(CallRowFilter(caller=caller)),
            changes=changes[: -MOST_CHANGES - 1 : -1],
        )

    async def names(self, session_ids: Sequence[str]) -> dict[str, str]:
        """What callers said their name was, by the call."""
        documents = await self._store.by_source_ids(session_ids)
        notes = [read_call(document) for document in documents]
        return {note.session_id: note.caller_name for note in notes if note is not None}
