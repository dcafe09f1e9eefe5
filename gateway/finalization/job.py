"""
A finalization job: how far the work after one call has come.

    QUEUED ──► RUNNING ──► DONE
      ▲          │  ▲
      │          ▼  └──► RETRYING   a step failed and will be tried again
      └─────── FAILED               a step cannot succeed until an operator retries it
"""

import enum
from dataclasses import asdict, dataclass
from typing import Any, Final, Protocol

import orjson

from gateway.finalization.merge import merged
from gateway.finalization.summary.call_summary import CallSummary
from gateway.session import VoiceSession


class JobState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    RETRYING = "retrying"
    FAILED = "failed"
    DONE = "done"


_NEXT: Final = {
    JobState.QUEUED: {JobState.RUNNING},
    JobState.RUNNING: {JobState.RETRYING, JobState.FAILED, JobState.DONE, JobState.QUEUED},
    JobState.RETRYING: {JobState.RUNNING, JobState.FAILED, JobState.DONE, JobState.QUEUED},
    JobState.FAILED: {JobState.QUEUED},
    JobState.DONE: set(),
}


@dataclass
class FinalizationJob:
    """
    The job of one call. Not stored: `claim`, `remote_checked` and `superseded`.

    A job that was stored while it ran, by a process that has died since, is QUEUED again when it is read.
    """

    session: VoiceSession
    state: JobState = JobState.QUEUED
    archived: bool = False
    summary: CallSummary | None = None
    document_id: str = ""
    version: int = 0
    """
    Of the document: 1 as first written, one more when a language model has rewritten an extractive summary, or when
    more of the call became known. Without a `document_id`: of the document to be replaced.
    """
    remote_id: str = ""
    remote_version: int = 0
    """Of the document in the remote store; 0 for none."""
    remote_sent: bool = False
    """A create was sent and its answer was lost: search before sending it again."""
    problem: str = ""
    """The permanent error of a FAILED job, or of a RUNNING one whose other steps go on."""
    node: str = ""
    """The node that runs it, where several could."""
    claim: str = ""
    """This node's right to run it, where another node could take it over."""
    remote_checked: bool = False
    """The remote store was searched for a lost create and did not have it yet."""
    superseded: bool = False
    """The archive had a longer transcript: another node knew more of the call."""

    def move_to(self, state: JobState) -> None:
        """Raises RuntimeError for an impossible step. A step to the same state changes nothing."""
        if state is not self.state:
            if state not in _NEXT[self.state]:
                raise RuntimeError(f"finalization job cannot go from {self.state} to {state}")
            self.state = state

    def requeue(self) -> None:
        """Start over with the steps that are not done."""
        self.problem = ""
        self.move_to(JobState.QUEUED)

    def as_json(self) -> dict[str, Any]:
        return {**self.as_row(), "session": self.session.as_json()}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> "FinalizationJob":
        return cls.from_row({**stored, "session": orjson.dumps(stored["session"])})

    def as_row(self) -> dict[str, Any]:
        return {
            "session_id": self.session.id,
            "session": orjson.dumps(self.session.as_json()).decode(),
            "state": self.state,
            "archived": self.archived,
            "summary": orjson.dumps(asdict(self.summary)).decode() if self.summary else None,
            "document_id": self.document_id,
            "version": self.version,
            "remote_id": self.remote_id,
            "remote_version": self.remote_version,
            "remote_sent": self.remote_sent,
            "problem": self.problem,
            "node": self.node,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> "FinalizationJob":
        return cls(
            session=VoiceSession.from_json(orjson.loads(row["session"])),
            state=JobState.FAILED if row.get("state", row["problem"] and "failed") == "failed" else JobState.QUEUED,
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


def merge_and_requeue(known: FinalizationJob, session: VoiceSession) -> FinalizationJob | None:
    """
    A new job for a call of which `session` has turns that the known job lacks; None if it has none.

    It replaces the documents of the known job.
    """
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
    """Where the state of a running job is kept. Raises TakenOver when another node runs it now."""

    async def save(self, job: FinalizationJob) -> None: ...

    async def finish(self, job: FinalizationJob) -> None:
        """The job is DONE: delete it."""

    async def park(self, job: FinalizationJob) -> None:
        """The job has FAILED: keep it until it is retried."""


class JobQueue(Protocol):
    """Hands jobs to whichever node is free. Raises SharedStoreUnavailable."""

    @property
    def is_shared(self) -> bool:
        """Whether other nodes may run this node's jobs."""

    async def hand_over(self, job: FinalizationJob) -> None: ...

    async def status(self, session_id: str) -> "QueueStatus": ...

    async def load(self, session_id: str) -> FinalizationJob | None:
        """A job that is not done, as the queue has it."""

    async def next(self) -> list[FinalizationJob]:
        """The next jobs for this node; empty if there was none for a second."""


class QueueStatus(enum.StrEnum):
    """What has become of a job that was handed over."""

    DONE = "done"
    FAILED = "failed"
    PENDING = "pending"
    LOST = "lost"


class NoJobQueue:
    """Every node runs its own jobs."""

    is_shared = False

    async def hand_over(self, job: FinalizationJob) -> None: ...

    async def status(self, session_id: str) -> QueueStatus:
        return QueueStatus.PENDING

    async def load(self, session_id: str) -> FinalizationJob | None:
        return None

    async def next(self) -> list[FinalizationJob]:
        return []
