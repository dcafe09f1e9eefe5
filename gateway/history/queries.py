"""
Queries over past calls: a list, one call with everything, and response times.

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
from gateway.finalization.document import archived_lines
from gateway.finalization.job import FinalizationJob
from gateway.finalization.job_table import JobTable
from gateway.history.archived_calls import ArchivedCalls
from gateway.history.call_log import FILE_NAME, events_of_call, turns_from_rows
from gateway.history.calls_table import (
    CallRowFilter,
    CallsTable,
    FinishedCall,
    finished_call,
    percentiles,
    stage_seconds,
)
from gateway.history.stores import Stores
from gateway.response_time import STAGES
from gateway.session import EndReason

_RANKS: Final = {"p50": 50, "p90": 90, "p95": 95, "p99": 99, "max": 100}
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
        in_table = wanted.in_table
        if wanted.outcome not in ("", "unfinished") and not wanted.outcomes:
            return []
        if archived:
            old_calls = [old.call for old in await self._old_calls.newest(in_table, limit=limit)]
            names = await self._table.names_of_calls(old_calls)
            return [_finished(call, names[call.session_id]) for call in old_calls]
        jobs = [job for job in await self._jobs.unfinished() if in_table.admits(_call_of(job))]
        found = await self._table.newest(in_table, limit=limit) if wanted.outcome != "unfinished" else []
        names = await self._table.names_of_calls([*found, *map(_call_of, jobs)])
        rows = {call.session_id: _finished(call, names[call.session_id]) for call in found}
        rows |= {job.session.id: _unfinished(job, names[job.session.id]) for job in jobs}
        return sorted(rows.values(), key=lambda row: str(row["started_at"]), reverse=True)[:limit]

    async def call(self, session: str) -> dict[str, Any] | None:
        """Everything of one call, by its id or the beginning of it; None if no call or several match."""
        uuid = session.removeprefix("voice-session:")
        jobs = [job for job in await self._jobs.unfinished() if job.session.uuid.startswith(uuid)]
        if len(jobs) > 1 or not uuid:
            return None
        call, summary = await self._table.find(session), ""
        if call is None and (old := await self._old_calls.find(session)):
            call, summary = old.call, old.document
        if jobs:
            call = _call_of(jobs[0])
        if call is None:
            return None
        if not summary and call.document_id:
            with contextlib.suppress(DocumentNotFound):
                summary = (await self._documents.get(call.document_id)).content
        events = await asyncio.to_thread(events_of_call, self._log, call.session_id)
        turns = jobs[0].session.as_json()["turns"] if jobs else _transcript(events)
        name = (await self._table.names_of_calls([call]))[call.session_id]
        return {
            **(_unfinished(jobs[0], name) if jobs else _finished(call, name)),
            "summary": summary,
            "transcript": turns or await self._archived(call.uuid),
            "timings": list(call.timings),
            "receipt": call.receipt,
            "steps": _steps(events),
            "timeline": [{name: event[name] for name in event if name not in _ABOUT} for event in events],
        }

    async def latency(self, wanted: CallFilter) -> dict[str, Any]:
        """
        Percentiles of each stage, in seconds from the caller's last voiced frame, and their median over time. Those of
        `first_frame` are the response time.

        `elsewhere`: the same of the seconds to the first frame of answers that are not counted from there.
        `first_audio`: the same of the seconds from a call's answer to the agent's first audio.
        """
        chosen = replace(wanted, outcome="").in_table
        now = datetime.now(UTC).isoformat()
        begin = datetime.fromisoformat(wanted.since or await self._table.oldest(chosen) or now)
        end = datetime.fromisoformat(wanted.before or now)
        width = max(end - begin, timedelta(seconds=1)) / TIME_STEPS
        starts = [(begin + step * width).isoformat() for step in range(TIME_STEPS)]
        steps = await self._table.time_steps(starts, chosen)
        first_audio = await self._table.first_audio(starts, chosen)

        def measure(stage: str, *, measured: bool = True) -> dict[str, Any]:
            return _figures("turns", [stage_seconds(step.answers, stage, measured=measured) for step in steps])

        stages = await asyncio.to_thread(lambda: {stage: measure(stage) for stage in STAGES})
        return {
            "since": begin.isoformat(),
            "before": end.isoformat(),
            "calls": sum(step.outcomes.total() for step in steps),
            "turns": stages["first_frame"]["turns"],
            "stages": stages,
            "elsewhere": await asyncio.to_thread(measure, "first_frame", measured=False),
            "first_audio": await asyncio.to_thread(_figures, "calls", first_audio),
        }

    async def _archived(self, uuid: str) -> list[dict[str, Any]]:
        """The raw transcript, if the events have been deleted. It has neither times nor unheard words."""
        lines = archived_lines(await self._archive.read(uuid) or "")
        unknown = {"at": "", "unheard": ""}
        return [
            {"speaker": line.speaker, "text": line.text, "by_operator": line.by_operator, **unknown} for line in lines
        ]


def _finished(call: FinishedCall, name: str) -> dict[str, Any]:
    return {
        "session": call.session_id,
        "started_at": call.started_at,
        "agent": call.agent,
        "caller": call.caller,
        "name": name,
        "carrier": call.carrier,
        "seconds": call.seconds,
        "outcome": call.outcome,
        "turns": call.turns,
        "told": call.memory_items,
        "consent": call.consent,
        "engine": call.engine,
        "first_audio": call.first_audio,
        "archived": True,
        "document": call.document_id,
        "summary_by": call.summary_by,
        "remote": True,  # or there is no remote store
        "problem": "",
        "ending": "done",
    }


def _unfinished(job: FinalizationJob, name: str) -> dict[str, Any]:
    return {
        **_finished(_call_of(job), name),
        "archived": job.archived,
        "remote": job.remote_version > 0,
        "problem": job.problem,
        "ending": "rests" if job.problem else "under way",
    }


def _call_of(job: FinalizationJob) -> FinishedCall:
    summary_by = job.summary.written_by if job.summary else ""
    return finished_call(job.session, document_id=job.document_id, summary_by=summary_by)


def _transcript(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "speaker": logged.turn.speaker,
            "text": logged.turn.text,
            "at": logged.turn.at.isoformat(),
            "unheard": logged.turn.unheard,
            "by_operator": logged.turn.by_operator,
            "latency": logged.response.first_frame if logged.response else None,
            "counted_from": logged.response.counted_from if logged.response else None,
        }
        for logged in turns_from_rows(events)
    ]


def _steps(events: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The last state of each post-call step. `ran` is false if it never had anything to do."""
    steps: dict[str, dict[str, Any]] = {}
    for event in events:
        if event["event"] == "step":
            ran = event.get("ran", True) or steps.get(event["step"], {}).get("ran", False)
            state = {"state": event["state"], "at": event["at"], "reason": event.get("reason", "")}
            steps[event["step"]] = {**state, "ran": ran}
    return steps


def _figures(counted: str, steps: Sequence[Any]) -> dict[str, Any]:
    """Of the seconds in each time step. `course` has the median of each, None if there was nothing."""
    import numpy as np

    every = np.concatenate(steps)
    found = percentiles(every, list(_RANKS.values()))
    medians = [percentiles(step, [50]) for step in steps]
    return {
        counted: int(every.size),
        **(dict(zip(_RANKS, found, strict=True)) if found else dict.fromkeys(_RANKS)),
        "course": [median[0] if median else None for median in medians],
    }
