"""The ending of each call, step by step, in the embedded store: what is done, and what is still to do."""

import sqlite3
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from gateway.calls.session import VoiceSession
from gateway.llm.summary import CallSummary
from gateway.memory.sqlite import SqliteStore

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS endings (
        session_id TEXT PRIMARY KEY,
        session TEXT NOT NULL,
        archived INTEGER NOT NULL DEFAULT 0,
        summary TEXT,
        document_id TEXT NOT NULL DEFAULT '',
        version INTEGER NOT NULL DEFAULT 0,
        remote_id TEXT NOT NULL DEFAULT '',
        remote_version INTEGER NOT NULL DEFAULT 0,
        remote_sent INTEGER NOT NULL DEFAULT 0,
        complete INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX IF NOT EXISTS endings_open ON endings (complete) WHERE complete = 0",
)


@dataclass
class Ending:
    """How far the ending of one call has come."""

    session: VoiceSession
    archived: bool = False
    summary: CallSummary | None = None
    document_id: str = ""
    version: int = 0
    """Of the document: 1 as first written, 2 when a language model has rewritten an extractive summary."""
    remote_id: str = ""
    remote_version: int = 0
    """Of the document that the remote store has; 0 for none."""
    remote_sent: bool = False
    """A create was sent whose answer we don't know: ask before sending it again."""
    complete: bool = False


class Endings:
    """The table of endings."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def save(self, ending: Ending) -> None:
        """Keep the state as it is now."""
        row = _as_row(ending)
        names = ", ".join(row)
        marks = ", ".join(f":{name}" for name in row)

        def work(connection: sqlite3.Connection) -> None:
            connection.execute(f"INSERT OR REPLACE INTO endings ({names}) VALUES ({marks})", row)

        await self._store.run(work)

    async def open_ones(self) -> list[Ending]:
        """Endings that an earlier process did not finish."""

        def work(connection: sqlite3.Connection) -> list[Ending]:
            cursor = connection.execute("SELECT * FROM endings WHERE complete = 0 ORDER BY rowid")
            names = [column[0] for column in cursor.description]
            return [_from_row(dict(zip(names, row, strict=True))) for row in cursor]

        return await self._store.run(work)


def _as_row(ending: Ending) -> dict[str, Any]:
    return {
        "session_id": ending.session.id,
        "session": orjson.dumps(ending.session.as_json()).decode(),
        "archived": ending.archived,
        "summary": orjson.dumps(asdict(ending.summary)).decode() if ending.summary else None,
        "document_id": ending.document_id,
        "version": ending.version,
        "remote_id": ending.remote_id,
        "remote_version": ending.remote_version,
        "remote_sent": ending.remote_sent,
        "complete": ending.complete,
    }


def _from_row(row: dict[str, Any]) -> Ending:
    return Ending(
        session=VoiceSession.from_json(orjson.loads(row["session"])),
        archived=bool(row["archived"]),
        summary=_summary(orjson.loads(row["summary"])) if row["summary"] else None,
        document_id=row["document_id"],
        version=row["version"],
        remote_id=row["remote_id"],
        remote_version=row["remote_version"],
        remote_sent=bool(row["remote_sent"]),
        complete=bool(row["complete"]),
    )


def _summary(stored: dict[str, Any]) -> CallSummary:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    return CallSummary(**fields)
