"""The table of finalization jobs in the embedded store. Processes that share it each run the jobs with their name."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from gateway.errors import SharedStoreUnavailable, StoreUnavailable, TakenOver
from gateway.finalization.job import FinalizationJob, JobState, merged
from gateway.memory.stores.database import Connection, Migration, tables
from gateway.memory.stores.store import MemoryStore
from gateway.session import VoiceSession

SCHEMA: Final = (
    *tables("job_table"),
    # The table's name until November 2026.
    Migration(
        "endings",
        """INSERT INTO finalization_jobs SELECT session_id, session,
            CASE WHEN problem = '' THEN 'queued' ELSE 'failed' END, archived, summary, document_id, version,
            remote_id, remote_version, remote_sent, problem, node FROM endings ORDER BY rowid""",
    ),
)

HANDED_OVER: Final = "stream"
"""The `node` of a job that is in the shared queue."""

_log = logging.getLogger(__name__)


async def never_alive(node: str) -> bool:
    """For a process that shares its table with no other: whatever another name left is its own."""
    return False


class JobTable:
    """
    Also the JobStore of jobs that this node runs itself. Raises StoreUnavailable.

    `alive` says whether a process that shares the table still runs.
    """

    def __init__(
        self, store: MemoryStore, node: str = "", alive: Callable[[str], Awaitable[bool]] = never_alive
    ) -> None:
        self._store = store
        self._node = node
        self._alive = alive

    # A job that is run

    async def add(self, job: FinalizationJob) -> None:
        """Store a new job. One that was handed over before is merged into it."""

        def work(connection: Connection) -> None:
            query = "SELECT session FROM finalization_jobs WHERE session_id = ? AND node = ?"
            for (stored,) in connection.execute(query, (job.session.id, HANDED_OVER)).fetchall():
                job.session = merged(VoiceSession.from_json(orjson.loads(stored)), job.session)
                connection.execute("UPDATE finalization_jobs SET node = '' WHERE session_id = ?", (job.session.id,))
            self._write(connection, job.as_row())

        job.node = job.node or self._node
        await self._store.run(work)

    async def save(self, job: FinalizationJob) -> None:
        job.node = job.node or self._node
        row = job.as_row()  # as of now: another step may change the job before it is written
        await self._store.run(lambda connection: self._write(connection, row))

    def _write(self, connection: Connection, row: dict[str, Any]) -> None:
        query = "SELECT node FROM finalization_jobs WHERE session_id = ?"
        before = connection.execute(query, (row["session_id"],)).fetchone()
        if before is not None and before[0] not in ("", self._node, row["node"]):
            raise TakenOver("another worker runs this job")
        marks = ", ".join(f":{name}" for name in row)
        connection.execute(f"INSERT OR REPLACE INTO finalization_jobs ({', '.join(row)}) VALUES ({marks})", row)

    async def finish(self, job: FinalizationJob) -> None:
        await self._store.change("DELETE FROM finalization_jobs WHERE session_id = ?", job.session.id)

    async def park(self, job: FinalizationJob) -> None:
        await self.save(job)

    async def make_durable(self) -> None:
        """On return, what was saved so far survives a power cut. The store alone survives a killed process."""

        def done(connection: Connection) -> bool:
            busy, *_ = connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            return not busy

        for _ in range(10):
            if await self._store.look(done):
                return
            await asyncio.sleep(0.02)  # another worker's checkpoint may have started before our last save
        raise StoreUnavailable("another process keeps the embedded store busy")

    # Jobs to be run

    async def claim(self, job: FinalizationJob) -> bool:
        """Whether this process may run a job: its own, or that of a dead one."""
        if job.node == self._node:
            return True
        try:
            if job.node and await self._alive(job.node):
                return False
        except SharedStoreUnavailable:  # unknown; there is a next time
            return False

        change = "UPDATE finalization_jobs SET node = ? WHERE session_id = ? AND node = ?"
        claimed = bool(await self._store.change(change, self._node, job.session.id, job.node))
        job.node = self._node if claimed else job.node
        return claimed

    async def retry_failed(self, session_id: str = "") -> int:
        """Queue all failed jobs again, or the one of this call. Returns how many there were."""
        change = """UPDATE finalization_jobs SET state = ?, problem = '', node = ''
            WHERE problem <> '' AND ? IN ('', session_id)"""
        return await self._store.change(change, JobState.QUEUED, session_id)

    async def of(self, session_id: str) -> FinalizationJob | None:
        """The job of one call, if it is not done."""
        rows = await self._store.look(lambda connection: _rows(connection, "WHERE session_id = ?", session_id))
        return _readable(rows[0]) if rows else None

    async def unfinished(self, limit: int = -1) -> list[FinalizationJob]:
        """All jobs or some, the oldest first. A row that cannot be read is left alone and logged."""
        rows = await self._store.look(lambda connection: _rows(connection, limit=limit))
        return [job for row in rows if (job := _readable(row)) is not None]


def _rows(connection: Connection, which: str = "", *values: str, limit: int = -1) -> list[dict[str, Any]]:
    cursor = connection.execute(f"SELECT * FROM finalization_jobs {which} ORDER BY rowid LIMIT ?", (*values, limit))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _readable(row: dict[str, Any]) -> FinalizationJob | None:
    try:
        return FinalizationJob.from_row(row)
    except (ValueError, KeyError, TypeError) as error:
        fields = {"session": row["session_id"], "error": type(error).__name__}
        _log.error("finalization job cannot be read", extra=fields)
        return None
