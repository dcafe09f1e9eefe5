"""
Every call that was remembered, in a line of the store: when, who with whom, how it ended, and what the agent was told.

What was said is not in it: that is the archive's, for as long as archives are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.history.call_rows import write_line
from gateway.memory.database import Connection
from gateway.memory.store import MemoryStore
from gateway.session import VoiceSession

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS calls (
        session_id TEXT PRIMARY KEY,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        started_at TEXT NOT NULL,
        facts TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS calls_by_caller ON calls (caller, agent, started_at)",
    "CREATE INDEX IF NOT EXISTS calls_by_agent ON calls (agent, started_at)",
    "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (started_at)",
    # Beside the book, since a column can't be added to one that is there.
    """CREATE TABLE IF NOT EXISTS call_outcomes (
        session_id TEXT PRIMARY KEY,
        outcome TEXT NOT NULL,
        started_at TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS call_outcomes_by_outcome ON call_outcomes (outcome, started_at)",
)


@dataclass(frozen=True)
class FinishedCall:
    """One call. `receipt` is what the agent was told of earlier calls, and where each piece came from."""

    session_id: str
    agent: str
    caller: str
    carrier: str
    started_at: str
    seconds: float
    end_reason: str
    turns: int
    timings: tuple[Mapping[str, float | None], ...]
    receipt: Mapping[str, Any]
    document_id: str = ""
    summary_by: str = ""


class CallsTable:
    """The table of calls. All methods raise StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def write(self, session: VoiceSession, *, document_id: str, summary_by: str) -> None:
        """Note a call; the same one again changes the line."""
        facts = {
            "carrier": session.carrier,
            "seconds": round(session.seconds, 1),
            "end_reason": str(session.end_reason or ""),
            "turns": len(session.turns),
            "timings": session.timings,
            "receipt": session.receipt,
            "document_id": document_id,
            "summary_by": summary_by,
        }
        row = (session.id, session.agent, session.caller, session.started_at.isoformat(), orjson.dumps(facts).decode())

        def work(connection: Connection) -> None:
            connection.execute(
                """INSERT INTO calls VALUES (?, ?, ?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET
                    agent = excluded.agent, caller = excluded.caller, started_at = excluded.started_at,
                    facts = excluded.facts""",
                row,
            )
            connection.execute(
                """INSERT INTO call_outcomes VALUES (?, ?, ?) ON CONFLICT (session_id) DO UPDATE SET
                    outcome = excluded.outcome, started_at = excluded.started_at""",
                (session.id, facts["end_reason"], row[3]),
            )
            write_line(connection, *row[:4], facts)

        await self._store.run(work)

    async def find(self, session_id: str) -> FinishedCall | None:
        """By its id, or by the beginning of its uuid where only one has it."""
        pattern = f"voice-session:{session_id.removeprefix('voice-session:')}"

        def work(connection: Connection) -> list[Any]:
            query = "SELECT * FROM calls WHERE session_id >= ? AND session_id < ? LIMIT 2"
            return connection.execute(query, (pattern, pattern + "\U0010ffff")).fetchall()

        rows = await self._store.look(work)
        return _call(rows[0]) if len(rows) == 1 else None

    async def newest(
        self,
        *,
        caller: str = "",
        agent: str = "",
        outcomes: Sequence[str] = (),
        since: str = "",
        before: str = "",
        limit: int = 100,
    ) -> list[FinishedCall]:
        """The newest first; what is empty does not matter. Moments are ISO text in UTC, as the book has them."""
        query, values = newest_query(caller, agent, outcomes, since, before)

        def work(connection: Connection) -> list[FinishedCall]:
            return [_call(row) for row in connection.execute(f"{query} LIMIT ?", (*values, limit))]

        return await self._store.look(work)

    async def forget(self, *, caller: str, agent: str = "") -> list[str]:
        """Strike a caller's calls; the ids of their sessions."""

        def work(connection: Connection) -> list[Any]:
            strike = "DELETE FROM calls WHERE caller = ? AND ? IN ('', agent) RETURNING session_id"
            struck = connection.execute(strike, (caller, agent)).fetchall()
            for table in ("call_outcomes", "call_lines"):
                connection.executemany(f"DELETE FROM {table} WHERE session_id = ?", struck)
            return struck

        return [session_id for (session_id,) in await self._store.run(work)]

    async def strike(self, session_id: str) -> None:
        def work(connection: Connection) -> None:
            for table in ("calls", "call_outcomes", "call_lines"):
                connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

        await self._store.run(work)


def newest_query(
    caller: str, agent: str, outcomes: Sequence[str], since: str, before: str
) -> tuple[str, tuple[str, ...]]:
    """Only the conditions that are wanted stand in it: so each way to ask has its index."""
    marks = ", ".join("?" * len(outcomes))
    table = "call_outcomes JOIN calls USING (session_id)" if outcomes else "calls"
    order = "call_outcomes.started_at" if outcomes else "started_at"
    conditions = [
        ("caller = ?", caller),
        ("agent = ?", agent),
        (f"{order} >= ?", since),
        (f"{order} < ?", before),
    ]
    given = [(condition, value) for condition, value in conditions if value]
    wheres = [*([f"outcome IN ({marks})"] if outcomes else []), *(condition for condition, _ in given)]
    where = f"WHERE {' AND '.join(wheres)}" if wheres else ""
    columns = "calls.session_id, agent, caller, calls.started_at, facts"
    query = f"SELECT {columns} FROM {table} {where} ORDER BY {order} DESC"
    return query, (*outcomes, *(value for _, value in given))


def _call(row: tuple[str, str, str, str, str]) -> FinishedCall:
    session_id, agent, caller, started_at, stored = row
    facts = orjson.loads(stored)
    facts["timings"] = tuple(facts["timings"])
    return FinishedCall(session_id=session_id, agent=agent, caller=caller, started_at=started_at, **facts)
