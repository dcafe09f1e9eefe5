"""
Every call that was remembered, in a line of the store: when, who with whom, how it ended, and what the agent was told.

What was said is not in it: that is the archive's, for as long as archives are kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.calls.call_lines import write_line
from gateway.calls.session import VoiceSession
from gateway.memory.database import Connection
from gateway.memory.store import MemoryStore

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS calls (
        session_id TEXT PRIMARY KEY,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        started_at TEXT NOT NULL,
        facts TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS calls_by_caller ON calls (caller, agent, started_at)",
    "CREATE INDEX IF NOT EXISTS calls_by_time ON calls (started_at)",
)


@dataclass(frozen=True)
class BookedCall:
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


class CallBook:
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
            write_line(connection, *row[:4], facts)

        await self._store.run(work)

    async def find(self, session_id: str) -> BookedCall | None:
        """By its id, or by the beginning of its uuid where only one has it."""
        pattern = f"voice-session:{session_id.removeprefix('voice-session:')}"

        def work(connection: Connection) -> list[Any]:
            query = "SELECT * FROM calls WHERE session_id >= ? AND session_id < ? LIMIT 2"
            return connection.execute(query, (pattern, pattern + "\U0010ffff")).fetchall()

        rows = await self._store.look(work)
        return _call(rows[0]) if len(rows) == 1 else None

    async def newest(self, *, caller: str = "", agent: str = "", limit: int = 100) -> list[BookedCall]:
        def work(connection: Connection) -> list[Any]:
            query = """SELECT * FROM calls WHERE ? IN ('', caller) AND ? IN ('', agent)
                ORDER BY started_at DESC LIMIT ?"""
            return connection.execute(query, (caller, agent, limit)).fetchall()

        return [_call(row) for row in await self._store.look(work)]

    async def forget(self, *, caller: str, agent: str = "") -> list[str]:
        """Strike a caller's calls; the ids of their sessions."""

        def work(connection: Connection) -> list[Any]:
            whose = "caller = ? AND ? IN ('', agent)"
            connection.execute(f"DELETE FROM call_lines WHERE {whose}", (caller, agent))
            strike = f"DELETE FROM calls WHERE {whose} RETURNING session_id"
            return connection.execute(strike, (caller, agent)).fetchall()

        return [session_id for (session_id,) in await self._store.run(work)]

    async def strike(self, session_id: str) -> None:
        def work(connection: Connection) -> None:
            for table in ("calls", "call_lines"):
                connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))

        await self._store.run(work)


def _call(row: tuple[str, str, str, str, str]) -> BookedCall:
    session_id, agent, caller, started_at, stored = row
    facts = orjson.loads(stored)
    facts["timings"] = tuple(facts["timings"])
    return BookedCall(session_id=session_id, agent=agent, caller=caller, started_at=started_at, **facts)
