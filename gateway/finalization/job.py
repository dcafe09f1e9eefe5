"""
A finalization job: how far the work after one call has come.

    QUEUED ──► RUNNING ──► DONE
      ▲          │  ▲
      │          ▼  └──► RETRYING   a step failed and will be tried again
      └─────── FAILED               a step cannot succeed until an operator retries it
"""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson

from gateway.finalization.document import redact_turns
from gateway.finalization.summary.call_summary import CallSummary
from gateway.session import EndReason, Speaker, Turn, VoiceSession


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
_STORED: Final = "archived document_id version remote_id remote_version remote_sent problem node".split()
"""The fields that are stored as they are."""


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
            "summary": orjson.dumps(asdict(self.summary)).decode() if self.summary else None,
            **{name: getattr(self, name) for name in _STORED},
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "FinalizationJob":
        is_failed = row.get("state", row["problem"] and "failed") == "failed"
        stored = {name: row[name] for name in _STORED}
        return cls(
            session=VoiceSession.from_json(orjson.loads(row["session"])),
            state=JobState.FAILED if is_failed else JobState.QUEUED,
            summary=CallSummary.from_json(orjson.loads(row["summary"])) if row["summary"] else None,
            **stored | {"archived": bool(row["archived"]), "remote_sent": bool(row["remote_sent"])},
        )


class QueueStatus(enum.StrEnum):
    """What has become of a job that was handed over."""

    DONE = "done"
    FAILED = "failed"
    PENDING = "pending"
    LOST = "lost"


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

    async def status(self, session_id: str) -> QueueStatus: ...

    async def load(self, session_id: str) -> FinalizationJob | None:
        """A job that is not done, as the queue has it."""

    async def next(self) -> list[FinalizationJob]:
        """The next jobs for this node; empty if there was none for a second."""


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


# Two nodes that know the same call


def merge_and_requeue(known: FinalizationJob, session: VoiceSession) -> FinalizationJob | None:
    """
    A new job for a call of which `session` has turns that the known job lacks; None if it has none.

    It replaces the documents of the known job.
    """
    whole = merged(known.session, session)
    if whole.turns == known.session.turns:
        return None
    new = FinalizationJob(whole, version=max(1, known.version, known.remote_version), remote_sent=True)
    new.remote_id, new.remote_version = known.remote_id, known.remote_version
    return new


def merged(one: VoiceSession, other: VoiceSession) -> VoiceSession:
    """
    Every turn of either, once, in the order spoken. Secrets spread over both parts are redacted.

    How the call ended is taken from the node that had it last.
    """

    def ending(session: VoiceSession) -> tuple[bool, datetime]:
        knows_ending = session.end_reason not in (None, EndReason.GATEWAY_DIED)
        return knows_ending, session.ended_at or datetime.min.replace(tzinfo=UTC)

    earlier, later = sorted((one, other), key=ending)
    retracted = list(dict.fromkeys([*one.taken_back, *other.taken_back]))
    turns = merged_turns(earlier.turns, later.turns)
    return replace(
        later,
        started_at=min(one.started_at, other.started_at),
        turns=redact_turns([turn for turn in turns if turn.name not in retracted]),
        state=later.state or earlier.state,
        engine=later.engine or earlier.engine,
        first_audio=later.first_audio if earlier.first_audio is None else earlier.first_audio,
        usage={name: one.usage.get(name, 0) + other.usage.get(name, 0) for name in {**one.usage, **other.usage}},
        timings=max(one.timings, other.timings, key=len),
        receipt=later.receipt or earlier.receipt,
        taken_over=one.taken_over or other.taken_over,
        taken_back=retracted,
        trust=max(one.trust, other.trust),
    )


def merged_turns(one: Iterable[Turn], other: Iterable[Turn]) -> list[Turn]:
    """Turns that both have anchor the order. Between those, each keeps its own order, and the clock decides."""
    first, second = _by_merge_key(one), _by_merge_key(other)
    turns: list[Turn] = []
    while first and second:
        (key, here), (other_key, there) = next(iter(first.items())), next(iter(second.items()))
        if key in second and other_key in first:
            turns.append(_fuller(first.pop(key), second.pop(key)))
        elif key not in second and (other_key in first or here.at <= there.at):
            turns.append(first.pop(key))
        else:
            turns.append(second.pop(other_key))
    return [*turns, *first.values(), *second.values()]


def _by_merge_key(turns: Iterable[Turn]) -> dict[tuple[Speaker, datetime, int], Turn]:
    """The key is (speaker, start time, occurrence)."""
    seen: Counter[tuple[Speaker, datetime]] = Counter()
    keyed = {}
    for turn in turns:
        seen[turn.speaker, turn.at] += 1
        keyed[turn.speaker, turn.at, seen[turn.speaker, turn.at]] = turn
    return keyed


def _fuller(one: Turn, other: Turn) -> Turn:
    """The longer of two versions of an answer, or the one that says where it was cut off."""
    return max(one, other, key=lambda turn: (len(f"{turn.text} {turn.unheard}".strip()), bool(turn.unheard)))
