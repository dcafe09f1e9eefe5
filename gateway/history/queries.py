"""
Queries over past calls: a list, one call with everything, and the latency of answers.

The results are plain values, ready for JSON: the CLI and the HTTP API return the same.
"""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gateway.errors import DocumentNotFound
from gateway.finalization.archive import Archive
from gateway.finalization.job import FinalizationJob
from gateway.finalization.job_table import JobTable
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.call_log import FILE_NAME, events_of_call, turns_from_rows
from gateway.history.calls_table import (
    STAGES,
    CallRowFilter,
    CallsTable,
    FinishedCall,
    LatencyBucket,
    percentiles,
    stage_seconds,
)
from gateway.history.stores import Stores
from gateway.session import EndReason

_RANKS: Final = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
TIME_STEPS: Final = 24

_ABOUT: Final = ("caller", "session", "agent", "carrier")
"""Fields that are equal in all events of a call."""


@dataclass(frozen=True)
class CallFilter:
    """Selects calls; an empty field selects all. `outcome` is the beginning of an end reason, or `unfinished`."""

    caller: str = ""
    agent: str = ""
    outcome: str = ""
    since: str = ""
    before: str = ""

    @property
    def outcomes(self) -> tuple[str, ...]:
        """The end reasons that begin so; empty if none does or all are selected."""
        wanted = self.outcome.lower()
        return tuple(str(reason) for reason in EndReason if wanted and str(reason).startswith(wanted))

    @property
    def in_table(self) -> CallRowFilter:
        return CallRowFilter(
            agent=self.agent, outcomes=self.outcomes, caller=self.caller, since=self.since, before=self.before
        )


class CallHistory:
    """Raises StoreUnavailable."""

    def __init__(self, stores: Stores, *, data_dir: Path, archive_dir: Path) -> None:
        self._documents = stores.memory
        self._table = CallsTable(stores.memory)
        self._old_calls = ArchivedCalls(stores.memory)
        self._jobs = JobTable(stores.local)
        self._log = data_dir / FILE_NAME
        self._archive = Archive(archive_dir, retention_days=0)

    async def calls(self, wanted: CallFilter, *, limit: int = 50, archived: bool = False) -> list[dict[str, Any]]:
        """The newest first, including calls whose finalization job is not done; or those in the archive."""
        if archived:
            return [_finished(old.call) for old in await self._old_calls.newest(wanted.in_table, limit=limit)]
        rows = {job.session.id: _unfinished(job) for job in await self._jobs.unfinished() if _fits(job, wanted)}
        if wanted.outcome != "unfinished" and (wanted.outcomes or not wanted.outcome):
            found = await self._table.newest(wanted.in_table, limit=limit)
            rows = {call.session_id: _finished(call) for call in found} | rows
        return sorted(rows.values(), key=lambda row: str(row["started_at"]), reverse=True)[:limit]

    async def call(self, session: str) -> dict[str, Any] | None:
        """Everything of one call, by its id or the beginning of it; None if no call or several match."""
        uuid = session.removeprefix("voice-session:")
        jobs = [job for job in await self._jobs.unfinished() if job.session.uuid.startswith(uuid)]
        if len(jobs) > 1 or not uuid:
            return None
        finished, summary = await self._table.find(session), ""
        if finished is None and (old := await self._old_calls.find(session)):
            finished, summary = old.call, old.document
        if jobs:
            [job] = jobs
            row = (_finished(finished) if finished else {}) | _unfinished(job)
            timings, receipt = job.session.timings, job.session.receipt
        elif finished:
            row, receipt = _finished(finished), dict(finished.receipt)
            timings = [dict(turn) for turn in finished.timings]
        else:
            return None
        if not summary and row["document"]:
            with contextlib.suppress(DocumentNotFound):
                summary = (await self._documents.get(row["document"])).content
        events = await asyncio.to_thread(events_of_call, self._log, row["session"])
        turns = job.session.as_json()["turns"] if jobs else _transcript(events)
        return {
            **row,
            "summary": summary,
            "transcript": turns or await self._archived(row["session"]),
            "timings": timings,
            "receipt": receipt,
            "steps": _steps(events),
            "timeline": [{name: event[name] for name in event if name not in _ABOUT} for event in events],
        }

    async def latency(self, wanted: CallFilter) -> dict[str, Any]:
        """Percentiles of each stage, in seconds from the end of the caller's speech, and their median over time."""
        chosen = replace(wanted, outcome="").in_table
        now = datetime.now(UTC).isoformat()
        begin = datetime.fromisoformat(wanted.since or await self._table.oldest(chosen) or now)
        end = datetime.fromisoformat(wanted.before or now)
        width = max(end - begin, timedelta(seconds=1)) / TIME_STEPS
        starts = [(begin + step * width).isoformat() for step in range(TIME_STEPS)]
        buckets = await self._table.latency_buckets(starts, chosen)
        stages = await asyncio.to_thread(lambda: {stage: _stage(stage, buckets) for stage in STAGES})
        return {
            "since": begin.isoformat(),
            "before": end.isoformat(),
            "calls": sum(bucket.calls for bucket in buckets),
            "turns": max(figures["turns"] for figures in stages.values()),
            "stages": stages,
        }

    async def _archived(self, session: str) -> list[dict[str, Any]]:
        """The raw transcript, if the events have been deleted. It has neither times nor unheard words."""
        text = await self._archive.read(session.removeprefix("voice-session:"))
        pairs = [line.partition(": ")[::2] for line in (text or "").splitlines()]
        return [{"speaker": speaker.lower(), "text": text, "at": "", "unheard": ""} for speaker, text in pairs]


def _transcript(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "speaker": logged.turn.speaker,
            "text": logged.turn.text,
            "at": logged.turn.at.isoformat(),
            "unheard": logged.turn.unheard,
            "latency": logged.latency,
        }
        for logged in turns_from_rows(events)
    ]


def _finished(call: FinishedCall) -> dict[str, Any]:
    return {
        "session": call.session_id,
        "started_at": call.started_at,
        "agent": call.agent,
        "caller": call.caller,
        "carrier": call.carrier,
        "seconds": call.seconds,
        "outcome": call.outcome,
        "turns": call.turns,
        "told": call.memory_items,
        "archived": True,
        "document": call.document_id,
        "summary_by": call.summary_by,
        "remote": True,  # or there is no remote store
        "problem": "",
        "ending": "done",
    }


def _unfinished(job: FinalizationJob) -> dict[str, Any]:
    session = job.session
    return {
        "session": session.id,
        "started_at": session.started_at.isoformat(),
        "agent": session.agent,
        "caller": session.caller,
        "carrier": session.carrier,
        "seconds": round(session.seconds, 1),
        "outcome": str(session.end_reason or ""),
        "turns": len(session.turns),
        "told": len(session.receipt.get("items", ())),
        "archived": job.archived,
        "document": job.document_id,
        "summary_by": job.summary.written_by if job.summary else "",
        "remote": job.remote_version > 0,
        "problem": job.problem,
        "ending": "rests" if job.problem else "under way",
    }


def _fits(job: FinalizationJob, wanted: CallFilter) -> bool:
    session = job.session
    outcome = wanted.outcome in ("", "unfinished") or session.end_reason in wanted.outcomes
    started = session.started_at.astimezone(UTC).isoformat()
    in_time = wanted.since <= started and (not wanted.before or started < wanted.before)
    return outcome and in_time and wanted.caller in ("", session.caller) and wanted.agent in ("", session.agent)


def _steps(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """The last state of each finalization step."""
    return {
        event["step"]: {"state": event["state"], "at": event["at"], "reason": event.get("reason", "")}
        for event in events
        if event["event"] == "step"
    }


def _stage(stage: str, buckets: Sequence[LatencyBucket]) -> dict[str, Any]:
    """Figures of one stage. `course` has the median of each time step, None if there were no answers."""
    found = percentiles(buckets, stage, list(_RANKS.values()))
    steps = [[bucket for bucket in buckets if bucket.step == step] for step in range(TIME_STEPS)]
    return {
        "turns": int(stage_seconds(buckets, stage).size),
        **(dict(zip(_RANKS, found, strict=True)) if found else dict.fromkeys(_RANKS)),
        "course": [next(iter(percentiles(step, stage, [50])), None) for step in steps],
    }
