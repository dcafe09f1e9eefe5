"""Durable facts about callers: what they said of themselves, and the calls that it comes from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

from gateway.memory.fact_relations import StatementReading, relation
from gateway.memory.identity import same_person
from gateway.memory.memory_log import CallerScope, EntryKey, LogChange, LogEntry, MemoryLog, NewEntry, delete_undo
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import NewDocument
from gateway.memory.summary_parser import SESSION_PREFIX
from gateway.session import VoiceSession

SOURCE: Final = "caller-fact"
MOST_CONFIDENCE: Final = 0.99

FactType = Literal["identity", "preference", "identifier", "commitment", "need", "constraint"]


@dataclass(frozen=True, slots=True)
class CallerFact:
    """
    A lasting fact extracted from a call, as a sentence without its subject: "Prefers mornings".

    `confidence` is 0 to 1. `turns` are the lines of the call's transcript that support it, counted from 0.
    """

    text: str
    type: FactType
    confidence: float
    turns: tuple[int, ...]

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CallerFact":
        return cls(stored["text"], stored["type"], stored["confidence"], tuple(stored["turns"]))


@dataclass(frozen=True, slots=True)
class Fact:
    """
    A fact about a caller; `id` is its document's.

    `session_id` and `turns` name the call and the lines where it was first said. `superseded_by` is the id of the fact
    that replaced it; `instead_of` is the text that this one contradicts. `person` is the owner where several people
    share a number; empty if no name was given. Recordings of calls contain these fields under these names.
    """

    id: str
    text: str
    type: str
    confidence: float
    session_id: str
    turns: tuple[int, ...]
    said_at: datetime
    last_said_at: datetime
    superseded_by: str = ""
    instead_of: str = ""
    person: str = ""


@dataclass(slots=True)
class ActiveFact:
    """A fact under construction: `first` introduced it, `reading` is its fullest statement."""

    first: LogEntry
    reading: StatementReading
    person: str
    confidence: float
    last_said_at: str
    superseded_by: "ActiveFact | None" = None
    instead_of: str = ""
    keys: list[EntryKey] = field(default_factory=list)

    @property
    def source_id(self) -> str:
        return f"{self.first.session_id}#fact-{self.first.position}"

    def describe(self) -> str:
        """One line for the list of changes."""
        return f"{self.reading.text} ({self.confidence * 100:.0f}% confidence)"


def project(entries: Sequence[LogEntry]) -> tuple[list[ActiveFact], list[LogChange]]:
    """
    The facts that the entries of one caller add up to, and the effect of each entry. Pure.

    Repeats gain confidence, refinements the fuller text too; corrections replace all facts that they exclude.
    """
    facts: list[ActiveFact] = []
    changes: list[LogChange] = []
    for entry, person in zip(entries, _people(entries), strict=True):
        reading = StatementReading.of(entry.content["text"], entry.content["type"])
        confidence = entry.content["confidence"]
        active = [fact for fact in reversed(facts) if fact.person == person and fact.superseded_by is None]
        related = [(kind, fact) for fact in active if (kind := relation(fact.reading, reading))]
        # Repeats first, then refinements, then the newest.
        related.sort(key=lambda found: (found[0] != "repeat", found[0] != "refinement"))
        kind, old = related[0] if related else (None, None)
        before = old.describe() if old else ""
        if old and kind in ("repeat", "refinement"):
            doubt = (1 - old.confidence) * (1 - confidence)
            old.confidence = max(old.confidence, round(min(1 - doubt, MOST_CONFIDENCE), 4))
            old.last_said_at = entry.started_at
            old.reading = reading if kind == "refinement" else old.reading
            fact, op = old, "strengthen"
        else:
            fact, op = ActiveFact(entry, reading, person, confidence, entry.started_at), "supersede" if old else "add"
            fact.instead_of = old.reading.text if old and kind == "contradiction" else ""
            for _, excluded in related:
                excluded.superseded_by = fact
            facts.append(fact)
        fact.keys.append(entry.key)
        at = datetime.fromisoformat(entry.logged_at)
        changes.append(LogChange(op, entry.session_id, before, fact.describe(), at))
    return facts, changes


def _people(entries: Sequence[LogEntry]) -> Iterator[str]:
    """
    The person each statement belongs to: the last one named, under the first spelling of that name.

    Statements before the first name belong to the first person named.
    """
    names = [entry.content.get("person", "") for entry in entries]
    known: list[str] = []
    person = next(filter(None, names), "")
    for given in names:
        if given:
            person = next((name for name in known if same_person(name, given)), given)
        if person not in known:
            known.append(person)
        yield person


class FactStore(MemoryLog[ActiveFact]):
    """The facts about all callers."""

    source = SOURCE

    async def learn(
        self, session: VoiceSession, facts: Sequence[CallerFact], now: datetime, *, speakers: Sequence[str] = ()
    ) -> bool:
        """
        Store the facts that a session contributed. Returns whether that changed anything.

        `speakers` are the names of the people who spoke each line, as far as they gave one. Other facts of the same
        session, from a better extraction, replace its first ones.
        """
        entries = []
        for fact in facts:
            person = next((speakers[turn] for turn in fact.turns if turn < len(speakers)), "")
            entries.append(NewEntry(asdict(fact) | ({"person": person} if person else {})))
        return await self.replace_session(session, entries, now)

    async def correct(self, agent: str, caller: str, fact_id: str, text: str, *, by: str, now: datetime) -> bool:
        """
        Replace a fact by an operator's text, or delete it where the text is empty. Returns whether it exists.

        `by` is stored in place of a session id.
        """
        scope = self._scope(agent, caller)

        def work(connection: Connection) -> bool:
            kind = next((fact.type for fact in self._stored(connection, scope, _fact) if fact.id == fact_id), "")
            delete = "DELETE FROM documents WHERE id = ? AND source = ? AND tags = ?"
            connection.execute(delete, (fact_id, *scope.documents))
            delete_undo(connection, caller, agent)
            if kind and text:
                correction = {"text": text, "type": kind, "confidence": 1.0, "turns": ()}
                self._append(connection, scope, by, now, [NewEntry(correction)], now)
            self._rebuild(connection, scope)
            return bool(kind)

        return await self._store.run(work)

    async def known(
        self, agent: str, caller: str, limit: int, *, not_before: datetime | None = None, superseded: bool = False
    ) -> list[Fact]:
        """The facts about a caller since `not_before`, last said first, those of one call by confidence."""
        scope = self._scope(agent, caller)
        facts = await self._store.look(lambda connection: self._stored(connection, scope, _fact))
        in_time = [fact for fact in facts if not_before is None or fact.last_said_at >= not_before]
        visible = [fact for fact in in_time if superseded or not fact.superseded_by]
        return sorted(visible, key=lambda fact: (fact.last_said_at, fact.confidence), reverse=True)[:limit]

    def _project(self, entries: Sequence[LogEntry]) -> tuple[list[ActiveFact], list[LogChange]]:
        return project(entries)

    def _document(self, item: ActiveFact, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument:
        first = item.first
        said_at = datetime.fromisoformat(first.started_at)
        metadata = {
            "session": first.session_id,
            "call_id": first.session_id.removeprefix(SESSION_PREFIX),
            "type": item.first.content["type"],
            "confidence": item.confidence,
            "turns": list(first.content["turns"]),
            "last_said_at": item.last_said_at,
            "status": "superseded" if item.superseded_by else "active",
        }
        optional = {
            "superseded_by": ids.get(item.superseded_by.source_id, "") if item.superseded_by else "",
            "instead_of": item.instead_of,
            "person": item.person,
        }
        return NewDocument(
            title=f"Caller Fact — {said_at:%Y-%m-%d}",
            content=item.reading.text,
            source=SOURCE,
            tags=scope.tags,
            created_at=said_at,
            metadata=metadata | {name: value for name, value in optional.items() if value},
            source_id=item.source_id,
        )

    def _entries_deleted(self, connection: Connection, sessions: Iterable[tuple[str]]) -> None:
        """The documents of these calls in the remote store, which list their facts, have to be sent again."""
        connection.executemany("INSERT INTO remote_updates VALUES (?) ON CONFLICT DO NOTHING", sessions)

    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        return [entry for entry in entries if entry.started_at < before]


def _fact(document_id: str, content: str, created_at: datetime, metadata: dict[str, Any]) -> Fact:
    times = created_at, datetime.fromisoformat(metadata["last_said_at"])
    first_said = metadata["session"], tuple(metadata["turns"])
    optional = {name: metadata.get(name, "") for name in ("superseded_by", "instead_of", "person")}
    return Fact(document_id, content, metadata["type"], metadata["confidence"], *first_said, *times, **optional)
