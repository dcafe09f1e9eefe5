"""The ending of each call, step by step, in the embedded store: what is done, and what is still to do."""

import asyncio
import logging
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import orjson

from gateway.errors import StoreUnavailable, TakenOver
from gateway.finalization.merge import merged
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory.database import Connection
from gateway.memory.store import MemoryStore
from gateway.session import VoiceSession

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
        problem TEXT NOT NULL DEFAULT '',
        node TEXT NOT NULL DEFAULT '')""",
)

HANDED_OVER: Final = "stream"
"""Who sees to an ending that all nodes were offered."""

CHECKPOINT_TRIES: Final = 10

_log = logging.getLogger(__name__)


@dataclass
class FinalizationJob:
    """How far the ending of one call has come."""

    session: VoiceSession
    archived: bool = False
    summary: CallSummary | None = None
    document_id: str = ""
    version: int = 0
    """
    Of the document: 1 as first written, one more when a language model has rewritten an extractive summary, or when
    more was known of the call. Without a `document_id`: of the one that is to be replaced.
    """
    remote_id: str = ""
    remote_version: int = 0
    """Of the document that the remote store has; 0 for none."""
    remote_sent: bool = False
    """A create was sent whose answer we don't know: ask before sending it again."""
    problem: str = ""
    """Why a step can't be done; it rests until somebody has it tried again."""
    node: str = ""
    """Who sees to it, where several could."""
    claim: str = ""
    """By what right this node carries it out, where another one could take it over. Not stored."""
    looked_for: bool = False
    """The remote store was asked for what was sent to it, and did not know of it yet. Not stored."""
    outdone: bool = False
    """A longer transcript was there already: whoever wrote that knew more. Not stored."""

    def as_json(self) -> dict[str, Any]:
        return {**_as_row(self), "session": self.session.as_json()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "FinalizationJob":
        return _from_row({**stored, "session": orjson.dumps(stored["session"])})


def retold(known: FinalizationJob, session: VoiceSession) -> FinalizationJob | None:
    """The ending of a call of which `session` tells more, begun anew: documents are replaced. None if it does not."""
    whole = merged(known.session, session)
    if whole.turns == known.session.turns:
        return None
    return FinalizationJob(
        whole,
        version=max(1, known.version, known.remote_version),
        remote_id=known.remote_id,
        remote_version=known.remote_version,
        remote_sent=True,
    )


class JobStore(Protocol):
    """Where the state of an ending is kept while it is carried out. TakenOver when another node does it now."""

    async def save(self, job: FinalizationJob) -> None: ...

    async def finish(self, job: FinalizationJob) -> None:
        """The ending is done: nothing of it is kept."""

    async def rest(self, job: FinalizationJob) -> None:
        """It can't be done now: it waits until somebody has it tried again."""


class JobTable:
    """The table of endings. Workers that share it each see to those with their name on them."""

    def __init__(self, store: MemoryStore, node: str = "") -> None:
        self._store = store
        self._node = node

    async def begin(self, job: FinalizationJob) -> None:
        """Keep a new one. To one that was handed over before, it adds what else is known of the call."""

        def work(connection: Connection) -> None:
            query = "SELECT session FROM endings WHERE session_id = ? AND node = ?"
            for (stored,) in connection.execute(query, (job.session.id, HANDED_OVER)).fetchall():
                job.session = merged(VoiceSession.from_json(orjson.loads(stored)), job.session)
                connection.execute("UPDATE endings SET node = '' WHERE session_id = ?", (job.session.id,))
            self._write(connection, _as_row(job))

        job.node = job.node or self._node
        await self._store.run(work)

    async def save(self, job: FinalizationJob) -> None:
        """Keep the state as it is now."""
        job.node = job.node or self._node
        row = _as_row(job)
        await self._store.run(lambda connection: self._write(connection, row))

    def _write(self, connection: Connection, row: dict[str, Any]) -> None:
        query = "SELECT node FROM endings WHERE session_id = ?"
        before = connection.execute(query, (row["session_id"],)).fetchone()
        if before is not None and before[0] not in ("", self._node, row["node"]):
            raise TakenOver("another worker sees to this ending")
        marks = ", ".join(f":{name}" for name in row)
        connection.execute(f"INSERT OR REPLACE INTO endings ({', '.join(row)}) VALUES ({marks})", row)

    async def finish(self, job: FinalizationJob) -> None:
        def work(connection: Connection) -> None:
            connection.execute("DELETE FROM endings WHERE session_id = ?", (job.session.id,))

        await self._store.run(work)

    async def rest(self, job: FinalizationJob) -> None:
        await self.save(job)

    async def adopt(self, job: FinalizationJob, node: str) -> bool:
        """See to what a dead worker left, if no other one does yet."""

        def work(connection: Connection) -> int:
            change = "UPDATE endings SET node = ? WHERE session_id = ? AND node = ?"
            return connection.execute(change, (node, job.session.id, job.node)).rowcount

        adopted = bool(await self._store.run(work))
        job.node = node if adopted else job.node
        return adopted

    async def make_durable(self) -> None:
        """On return, what was saved so far outlives a power cut too. The store alone outlives a killed process."""

        def done(connection: Connection) -> bool:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            return not busy

        for _ in range(CHECKPOINT_TRIES):
            if await self._store.look(done):
                return
            await asyncio.sleep(0.02)  # another worker is at it, and may have begun before our last save
        raise StoreUnavailable("another process keeps the embedded store busy")

    async def try_again(self, session_id: str = "") -> int:
        """Wake the endings that rest, or the one of this call; how many those were."""

        def work(connection: Connection) -> int:
            resting = "UPDATE endings SET problem = '', node = '' WHERE problem <> '' AND ? IN ('', session_id)"
            return connection.execute(resting, (session_id,)).rowcount

        return await self._store.run(work)

    async def of(self, session_id: str) -> FinalizationJob | None:
        """The ending of one call, if it is not done."""

        def work(connection: Connection) -> list[dict[str, Any]]:
            return _rows(connection, "WHERE session_id = ?", session_id)

        rows = await self._store.look(work)
        return _readable(rows[0]) if rows else None

    async def waiting(self, limit: int) -> list[tuple[str, str]]:
        """Calls whose ending is not done, the oldest first, each with why it rests; empty for one under way."""
        query = "SELECT session_id, problem FROM endings ORDER BY rowid LIMIT ?"
        return await self._store.look(lambda connection: connection.execute(query, (limit,)).fetchall())

    async def open_ones(self) -> list[FinalizationJob]:
        """Endings that an earlier process did not finish. One that can't be read is left alone, and logged."""

        readable = [_readable(row) for row in await self._store.look(_rows)]
        return [job for job in readable if job is not None]


def _rows(connection: Connection, which: str = "", *values: str) -> list[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM endings {which} ORDER BY rowid", values)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _as_row(job: FinalizationJob) -> dict[str, Any]:
    return {
        "session_id": job.session.id,
        "session": orjson.dumps(job.session.as_json()).decode(),
        "archived": job.archived,
        "summary": orjson.dumps(asdict(job.summary)).decode() if job.summary else None,
        "document_id": job.document_id,
        "version": job.version,
        "remote_id": job.remote_id,
        "remote_version": job.remote_version,
        "remote_sent": job.remote_sent,
        "problem": job.problem,
        "node": job.node,
    }


def _readable(row: dict[str, Any]) -> FinalizationJob | None:
    try:
        return _from_row(row)
    except (ValueError, KeyError, TypeError) as error:
        _log.error("an ending can't be read", extra={"ending": row["session_id"], "error": type(error).__name__})
        return None


def _from_row(row: dict[str, Any]) -> FinalizationJob:
    return FinalizationJob(
        session=VoiceSession.from_json(orjson.loads(row["session"])),
        archived=bool(row["archived"]),
        summary=CallSummary.from_json(orjson.loads(row["summary"])) if row["summary"] else None,
        document_id=row["document_id"],
        version=row["version"],
        remote_id=row["remote_id"],
        remote_version=row["remote_version"],
        remote_sent=bool(row["remote_sent"]),
        problem=row["problem"],
        node=row["node"],
    )
