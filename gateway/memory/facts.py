"""
The book of durable facts: what callers told of themselves, and the calls it rests on.

The log holds every statement as it was made. What is known is worked out from it, in the order of the calls, so that
taking statements out (a call reverted, a caller forgotten, old ones expired) leaves what would be known without them.
Each fact is a document too, and found like any other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Protocol

import orjson

from gateway.memory.caller_scope import CallerScope as CallerScope
from gateway.memory.database import Connection
from gateway.memory.document_table import create_document
from gateway.memory.documents import Document, NewDocument
from gateway.memory.fact_projection import ActiveFact, FactState, Op, Statement, project
from gateway.memory.fact_relations import Similar, StatementReading
from gateway.memory.index import carrying
from gateway.memory.store import MemoryStore
from gateway.memory.summary_parser import SESSION_PREFIX

SOURCE: Final = "caller-fact"

_CALL_ORDER: Final = "started_at, session_id, position"

SCHEMA: Final = (
    # `said` is what is worked with; `op`, `document_id`, `before` and `after` tell what came of it.
    """CREATE TABLE IF NOT EXISTS memory_log (
        number INTEGER PRIMARY KEY,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        session_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        started_at TEXT NOT NULL,
        said TEXT NOT NULL,
        op TEXT NOT NULL DEFAULT '',
        document_id TEXT NOT NULL DEFAULT '',
        before TEXT,
        after TEXT,
        at TEXT NOT NULL,
        UNIQUE (session_id, position))""",
    "CREATE INDEX IF NOT EXISTS memory_log_by_caller ON memory_log (caller, agent)",
    "CREATE INDEX IF NOT EXISTS memory_log_by_age ON memory_log (started_at)",
    f"CREATE INDEX IF NOT EXISTS documents_of_facts ON documents (tags) WHERE source = '{SOURCE}'",
    # Outlives what the session said, so that a late repeat can't bring back what was reverted or forgotten.
    "CREATE TABLE IF NOT EXISTS memory_taken_back (session_id TEXT PRIMARY KEY) WITHOUT ROWID",
)


class LearningSession(Protocol):
    """The call that taught something."""

    id: str
    agent: str
    caller: str
    started_at: datetime


class Learned(Protocol):
    """What a call taught. `turns` are lines of its transcript."""

    @property
    def text(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def confidence(self) -> float: ...

    @property
    def turns(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Fact:
    """
    What is known of a caller; `id` is its document's.

    `session_id` and `turns` tell where it was said first. `superseded_by` is the id of the fact that took its place;
    `instead_of` the text that this one contradicts, newest wins.
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
    """Whose it is, of those on one number; empty where nobody has given a name."""


@dataclass(frozen=True, slots=True)
class FactChange:
    """
    What one statement did to what was known.

    It added a fact, strengthened one (`before` is the same fact), or took the place of one (`before` is the other).
    `said` is the statement in its own words, `turns` where it was made.
    """

    op: Op
    session_id: str
    document_id: str
    said: str
    turns: tuple[int, ...]
    before: FactState | None
    after: FactState
    at: datetime


class FactStore:
    """
    What is known of callers, in a store that was opened with SCHEMA. Raises StoreUnavailable.

    `similar` finds repeats that share no words; without it there are rules.
    """

    def __init__(self, store: MemoryStore, *, similar: Similar | None = None) -> None:
        self._store = store
        self._similar = similar

    async def learn(
        self, session: LearningSession, facts: Sequence[Learned], now: datetime, *, speakers: Sequence[str] = ()
    ) -> list[FactChange]:
        """
        Take in what a session taught; what that changed. `speakers` are who spoke each line, as far as they said so.

        The same again changes nothing. Other facts of the same session, from a better extraction, take the place of
        the first. One that was reverted or forgotten teaches nothing any more.
        """
        scope = _Scope(session.agent, session.caller)
        started_at, at = _time_text(session.started_at), _time_text(now)
        said = [_said(fact, speakers) for fact in facts]

        def work(connection: Connection) -> list[FactChange]:
            said_before = _said_before(connection, session.id)
            if said == said_before or _is_taken_back(connection, session.id):
                return []
            if said_before:
                self._take_out(connection, scope, "session_id = ?", session.id)
            connection.executemany(
                """INSERT INTO memory_log (agent, caller, session_id, position, started_at, said, at)
                    VALUES (?, ?, ?, ?, ?, ?, ?)""",
                [(*scope.names, session.id, position, started_at, text, at) for position, text in enumerate(said)],
            )
            self._settle(connection, scope)
            return _changes(connection, "session_id = ?", session.id)

        return await self._store.run(work)

    async def known(
        self, agent: str, caller: str, limit: int, *, not_before: datetime | None = None, superseded: bool = False
    ) -> list[Fact]:
        """
        What is known, last said first, of one call the surest first.

        What was not said since `not_before` is left out, and so is what was superseded unless asked for.
        """
        facts = await self._store.look(lambda connection: _facts(connection, _Scope(agent, caller)))
        shown = [
            fact
            for fact in facts
            if (superseded or not fact.superseded_by) and (not_before is None or fact.last_said_at >= not_before)
        ]
        return sorted(shown, key=lambda fact: (fact.last_said_at, fact.confidence), reverse=True)[:limit]

    async def history(self, agent: str, caller: str) -> list[FactChange]:
        """All changes, in the order of the calls: why the book says what it says."""
        return await self._store.look(
            lambda connection: _changes(connection, "agent = ? AND caller = ?", agent, caller)
        )

    async def is_taken_back(self, session_id: str) -> bool:
        """Whether a call was reverted, or its caller forgotten."""
        return await self._store.look(lambda connection: _is_taken_back(connection, session_id))

    async def revert(self, session_id: str) -> int:
        """Make it as if a call had not happened, and see that it stays so; how many statements that was."""

        def work(connection: Connection) -> int:
            connection.execute("INSERT INTO memory_taken_back VALUES (?) ON CONFLICT DO NOTHING", (session_id,))
            scopes = _scopes(connection, "session_id = ?", session_id)
            return sum(self._take_out(connection, scope, "session_id = ?", session_id) for scope in scopes)

        return await self._store.run(work)

    async def correct(self, agent: str, caller: str, fact_id: str, text: str, *, by: str, now: datetime) -> bool:
        """
        A person knows better: put this text in the place of a fact, or nothing where it is empty.

        `by` stands where the session of a call would. False when there is no such fact.
        """
        scope, moment = _Scope(agent, caller), _time_text(now)

        def work(connection: Connection) -> bool:
            [kind] = [fact.type for fact in _facts(connection, scope) if fact.id == fact_id] or [""]
            connection.execute("DELETE FROM documents WHERE id = ? AND tags = ?", (fact_id, scope.tags_text))
            if kind and text:
                said = orjson.dumps({"text": text, "type": kind, "confidence": 1.0, "turns": []}).decode()
                connection.execute(
                    """INSERT INTO memory_log (agent, caller, session_id, position, started_at, said, at)
                        VALUES (?, ?, ?, 0, ?, ?, ?)""",
                    (*scope.names, by, moment, said, moment),
                )
            self._settle(connection, scope)
            return bool(kind)

        return await self._store.run(work)

    async def deleted(self, document_id: str) -> None:
        """The document of a fact, if it was one, is there no more: nor is what was said of it."""

        def work(connection: Connection) -> None:
            for scope in _scopes(connection, "document_id = ?", document_id):
                self._settle(connection, scope)

        await self._store.run(work)

    async def forget(self, agent: str | None, caller: str) -> int:
        """Delete all facts about a caller and their history, with one agent or all; how many statements that was."""
        tagged, tokens = carrying(f"caller:{caller}", *([] if agent is None else [f"agent:{agent}"]))

        def work(connection: Connection) -> int:
            whose, names = "caller = ? AND coalesce(agent = ?, true)", (caller, agent)
            connection.execute(
                f"""INSERT INTO memory_taken_back SELECT DISTINCT session_id FROM memory_log WHERE {whose}
                    ON CONFLICT DO NOTHING""",
                names,
            )
            connection.execute(f"DELETE FROM documents WHERE source = ? AND {tagged}", (SOURCE, *tokens))
            return connection.execute(f"DELETE FROM memory_log WHERE {whose}", names).rowcount

        return await self._store.run(work)

    async def expire(self, before: datetime, of: Callable[[str], bool] = lambda agent: True) -> int:
        """Take out what was said in calls of these agents before this moment; how many statements that was."""
        old = "started_at < ?"
        moment = _time_text(before)
        found = await self._store.look(lambda connection: _scopes(connection, old, moment))
        scopes = [scope for scope in found if of(scope.agent)]
        count = 0
        for scope in scopes:
            # One caller a transaction: calls that read memory meanwhile do not wait long.
            count += await self._store.run(partial(self._take_out, scope=scope, condition=old, value=moment))
        return count

    # In a transaction

    def _take_out(self, connection: Connection, scope: "_Scope", condition: str, value: str) -> int:
        """Delete statements, and work out anew what is known without them."""
        statement = f"DELETE FROM memory_log WHERE agent = ? AND caller = ? AND {condition}"
        count = connection.execute(statement, (*scope.names, value)).rowcount
        self._settle(connection, scope)
        return count

    def _settle(self, connection: Connection, scope: "_Scope") -> None:
        """Make documents and log tell what the statements come to."""
        # A document that somebody deleted is not to come back: what was said of it goes too.
        connection.execute(
            """DELETE FROM memory_log WHERE agent = ? AND caller = ? AND document_id <> ''
                AND document_id NOT IN (SELECT id FROM documents WHERE source = ? AND tags = ?)""",
            (*scope.names, SOURCE, scope.tags_text),
        )
        facts, steps = project(_statements(connection, scope), self._similar)
        ids = {fact.source_id: _document_id(connection, scope, fact) for fact in facts}
        for fact in facts:
            _describe(connection, ids[fact.source_id], _metadata(fact, ids))
        connection.executemany(
            "UPDATE memory_log SET op = ?, document_id = ?, before = ?, after = ? WHERE number = ?",
            [
                (step.op, ids[step.fact.source_id], _json(step.before), _json(step.after), step.statement.number)
                for step in steps
            ],
        )
        connection.execute(
            """DELETE FROM documents WHERE source = ? AND tags = ? AND source_id <> ''
                AND id NOT IN (SELECT document_id FROM memory_log WHERE agent = ? AND caller = ?)""",
            (SOURCE, scope.tags_text, *scope.names),
        )


def is_shown(document: Document, not_before: datetime | None = None) -> bool:
    """Whether a search may tell of a document: not of facts that were superseded, or not said since `not_before`."""
    if document.source != SOURCE or "last_said_at" not in document.metadata:
        return True
    in_time = not_before is None or datetime.fromisoformat(document.metadata["last_said_at"]) >= not_before
    return in_time and not document.metadata.get("superseded_by")


class _Scope(CallerScope):
    __slots__ = ()
    source = SOURCE


# The log


def _said(fact: Learned, speakers: Sequence[str]) -> str:
    entry = {"text": fact.text, "type": fact.type, "confidence": fact.confidence, "turns": list(fact.turns)}
    person = next((speakers[turn] for turn in fact.turns if turn < len(speakers)), "")
    return orjson.dumps(entry | ({"person": person} if person else {})).decode()


def _said_before(connection: Connection, session_id: str) -> list[str]:
    statement = "SELECT said FROM memory_log WHERE session_id = ? ORDER BY position"
    return [said for (said,) in connection.execute(statement, (session_id,))]


def _is_taken_back(connection: Connection, session_id: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM memory_taken_back WHERE session_id = ?", (session_id,)).fetchone())


def _scopes(connection: Connection, condition: str, value: str) -> list[_Scope]:
    rows = connection.execute(f"SELECT DISTINCT agent, caller FROM memory_log WHERE {condition}", (value,))
    return [_Scope(agent, caller) for agent, caller in rows]


def _statements(connection: Connection, scope: _Scope) -> list[Statement]:
    """All of a caller's, in the order of the calls: who ended late does not count as newest."""
    rows = connection.execute(
        f"""SELECT number, session_id, position, started_at, said FROM memory_log
            WHERE agent = ? AND caller = ? ORDER BY {_CALL_ORDER}""",
        scope.names,
    )
    return [_statement(*row) for row in rows]


def _statement(number: int, session_id: str, position: int, started_at: str, said: str) -> Statement:
    entry: dict[str, Any] = orjson.loads(said)
    reading = StatementReading.of(entry["text"], entry["type"])
    person = entry.get("person", "")
    return Statement(number, session_id, position, started_at, entry["confidence"], entry["turns"], reading, person)


def _changes(connection: Connection, condition: str, *values: str) -> list[FactChange]:
    rows = connection.execute(
        f"""SELECT op, session_id, document_id, said, before, after, at FROM memory_log
            WHERE {condition} ORDER BY {_CALL_ORDER}""",
        values,
    )
    return [_change(*row) for row in rows]


def _change(
    op: Op, session_id: str, document_id: str, said: str, before: str | None, after: str, at: str
) -> FactChange:
    entry: dict[str, Any] = orjson.loads(said)
    return FactChange(
        op=op,
        session_id=session_id,
        document_id=document_id,
        said=entry["text"],
        turns=tuple(entry["turns"]),
        before=FactState(**orjson.loads(before)) if before else None,
        after=FactState(**orjson.loads(after)),
        at=datetime.fromisoformat(at),
    )


def _json(value: object) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _time_text(time: datetime) -> str:
    """Always the same width, so that text order is time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


# The documents


def _document_id(connection: Connection, scope: _Scope, fact: ActiveFact) -> str:
    """Of the fact's document, which is made if there is none."""
    said_at = datetime.fromisoformat(fact.first.started_at)
    new = NewDocument(
        title=f"Caller Fact — {said_at:%Y-%m-%d}",
        content=fact.first.reading.text,
        source=SOURCE,
        tags=scope.tags,
        created_at=said_at,
        source_id=fact.source_id,
    )
    return create_document(connection, new, datetime.now(UTC)).id


def _metadata(fact: ActiveFact, ids: dict[str, str]) -> dict[str, Any]:
    first = fact.first
    metadata = {
        "session": first.session_id,
        "call_id": first.session_id.removeprefix(SESSION_PREFIX),
        "type": first.reading.type,
        "confidence": fact.confidence,
        "turns": first.turns,
        "last_said_at": fact.last_said_at,
        "status": "superseded" if fact.superseded_by else "active",
    }
    more = {
        "superseded_by": ids[fact.superseded_by.source_id] if fact.superseded_by else "",
        "instead_of": fact.instead_of,
        "person": fact.person,
    }
    return metadata | {name: value for name, value in more.items() if value}


def _describe(connection: Connection, document_id: str, metadata: dict[str, Any]) -> None:
    text = _json(metadata)
    connection.execute(
        "UPDATE documents SET metadata = ?, updated_at = ? WHERE id = ? AND metadata <> ?",
        (text, _time_text(datetime.now(UTC)), document_id, text),
    )


def _facts(connection: Connection, scope: _Scope) -> list[Fact]:
    rows = connection.execute(
        "SELECT id, content, created_at, metadata FROM documents WHERE source = ? AND tags = ? AND source_id <> ''",
        (SOURCE, scope.tags_text),
    )
    return [fact for row in rows if (fact := _readable(*row)) is not None]


def _readable(id_: str, content: str, created_at: str, metadata: str) -> Fact | None:
    """None for what another program has stored in the place of a fact."""
    try:
        return _fact(id_, content, created_at, metadata)
    except (KeyError, TypeError, ValueError):
        return None


def _fact(id_: str, content: str, created_at: str, metadata: str) -> Fact:
    told: dict[str, Any] = orjson.loads(metadata)
    return Fact(
        id=id_,
        text=content,
        type=told["type"],
        confidence=told["confidence"],
        session_id=told["session"],
        turns=tuple(told["turns"]),
        said_at=datetime.fromisoformat(created_at),
        last_said_at=datetime.fromisoformat(told["last_said_at"]),
        superseded_by=told.get("superseded_by", ""),
        instead_of=told.get("instead_of", ""),
        person=told.get("person", ""),
    )
