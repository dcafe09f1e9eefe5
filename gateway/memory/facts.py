"""Durable facts about callers: what they said of themselves, and the calls that it comes from."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal

from gateway.memory.database import Connection
from gateway.memory.documents import NewDocument
from gateway.memory.fact_projection import ActiveFact, FactOp, FactState, Statement, project
from gateway.memory.fact_relations import StatementReading
from gateway.memory.memory_log import CallerScope, LearningSession, LogEntry, MemoryLog, NewEntry
from gateway.memory.summary_parser import SESSION_PREFIX

SOURCE: Final = "caller-fact"


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


@dataclass(frozen=True, slots=True)
class FactChange:
    """
    The effect of one statement: it added a fact, strengthened one (`before` is the same fact), or superseded one
    (`before` is the other). `statement` is its own text, `turns` are its lines of the transcript.
    """

    op: FactOp
    session_id: str
    document_id: str
    statement: str
    turns: tuple[int, ...]
    before: FactState | None
    after: FactState
    at: datetime


class FactStore(MemoryLog[ActiveFact]):
    """The facts about all callers."""

    source = SOURCE

    async def learn(
        self, session: LearningSession, facts: Sequence[CallerFact], now: datetime, *, speakers: Sequence[str] = ()
    ) -> list[FactChange]:
        """
        Store the facts that a session contributed. Returns the changes.

        `speakers` are the names of the people who spoke each line, as far as they gave one. Other facts of the same
        session, from a better extraction, replace its first ones.
        """
        changed = await self._replace_session(session, [NewEntry(_content(fact, speakers)) for fact in facts], now)
        history = await self.history(session.agent, session.caller) if changed else []
        return [change for change in history if change.session_id == session.id]

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
            if kind and text:
                correction = {"text": text, "type": kind, "confidence": 1.0, "turns": ()}
                self._append(connection, scope, by, now, [NewEntry(correction)], now)
            self._rebuild(connection, scope)
            return bool(kind)

        return await self._store.run(work)

    async def known(
        self, agent: str, caller: str, limit: int, *, not_before: datetime | None = None, superseded: bool = False
    ) -> list[Fact]:
        """
        The facts about a caller, last said first, those of one call by confidence.

        Leaves out what was last said before `not_before`, and superseded facts unless requested.
        """
        scope = self._scope(agent, caller)
        facts = await self._store.look(lambda connection: self._stored(connection, scope, _fact))
        visible = [
            fact
            for fact in facts
            if (superseded or not fact.superseded_by) and (not_before is None or fact.last_said_at >= not_before)
        ]
        return sorted(visible, key=lambda fact: (fact.last_said_at, fact.confidence), reverse=True)[:limit]

    async def history(self, agent: str, caller: str) -> list[FactChange]:
        """All changes in the order of the calls: why each fact is what it is."""
        scope = self._scope(agent, caller)
        entries = await self._store.look(lambda connection: self._entries(connection, scope))
        _, steps = project([_statement(entry) for entry in entries])
        return [
            FactChange(
                op=step.op,
                session_id=entry.session_id,
                document_id=entry.document_id,
                statement=entry.content["text"],
                turns=tuple(entry.content["turns"]),
                before=step.before,
                after=step.after,
                at=datetime.fromisoformat(entry.logged_at),
            )
            for entry, step in zip(entries, steps, strict=True)
        ]

    def _project(self, entries: Sequence[LogEntry]) -> Sequence[ActiveFact]:
        return project([_statement(entry) for entry in entries])[0]

    def _document(self, item: ActiveFact, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument:
        said_at = datetime.fromisoformat(item.first.started_at)
        return NewDocument(
            title=f"Caller Fact — {said_at:%Y-%m-%d}",
            content=item.reading.text,
            source=SOURCE,
            tags=scope.tags,
            created_at=said_at,
            metadata=_metadata(item, ids),
            source_id=item.source_id,
        )

    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        return [entry for entry in entries if entry.started_at < before]


def _content(fact: CallerFact, speakers: Sequence[str]) -> dict[str, Any]:
    person = next((speakers[turn] for turn in fact.turns if turn < len(speakers)), "")
    return asdict(fact) | ({"person": person} if person else {})


def _statement(entry: LogEntry) -> Statement:
    content = entry.content
    return Statement(
        entry.key,
        entry.started_at,
        content["confidence"],
        tuple(content["turns"]),
        StatementReading.of(content["text"], content["type"]),
        content.get("person", ""),
    )


def _metadata(fact: ActiveFact, ids: Mapping[str, str]) -> dict[str, Any]:
    first = fact.first
    session_id = first.key[0]
    metadata = {
        "session": session_id,
        "call_id": session_id.removeprefix(SESSION_PREFIX),
        "type": first.reading.type,
        "confidence": fact.confidence,
        "turns": list(first.turns),
        "last_said_at": fact.last_said_at,
        "status": "superseded" if fact.superseded_by else "active",
    }
    optional = {
        "superseded_by": ids.get(fact.superseded_by.source_id, "") if fact.superseded_by else "",
        "instead_of": fact.instead_of,
        "person": fact.person,
    }
    return metadata | {name: value for name, value in optional.items() if value}


def _fact(document_id: str, content: str, created_at: datetime, metadata: dict[str, Any]) -> Fact:
    return Fact(
        id=document_id,
        text=content,
        type=metadata["type"],
        confidence=metadata["confidence"],
        session_id=metadata["session"],
        turns=tuple(metadata["turns"]),
        said_at=created_at,
        last_said_at=datetime.fromisoformat(metadata["last_said_at"]),
        superseded_by=metadata.get("superseded_by", ""),
        instead_of=metadata.get("instead_of", ""),
        person=metadata.get("person", ""),
    )
