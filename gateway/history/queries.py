"""
What happened in calls, read back for whoever runs the gateway: a list, one call whole, and how long answers took.

Plain values, ready for JSON: the terminal, the dashboard and a remote gateway show the same.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gateway.finalization.job_table import FinalizationJob, JobTable
from gateway.history import call_rows
from gateway.history.call_log import FILE_NAME, events_of_call, turns_from_rows
from gateway.history.call_rows import STAGES, CallRows, LatencyBucket, percentiles
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.history.stores import Stores
from gateway.session import EndReason

_RANKS: Final = {"p50": 50, "p90": 90, "p99": 99, "max": 100}
STEPS_IN_TIME: Final = 24

_PRIVATE: Final = ("caller", "session", "agent", "carrier")


@dataclass(frozen=True)
class CallFilter:
    """Which calls; what is empty does not matter. `outcome` is the beginning of a reason, or `unfinished`."""

    caller: str = ""
    agent: str = ""
    outcome: str = ""
    since: str = ""
    before: str = ""

    @property
    def outcomes(self) -> list[str]:
        """The reasons meant; empty where none has such a beginning, or any will do."""
        wanted = self.outcome.lower()
        return [str(reason) for reason in EndReason if wanted and str(reason).startswith(wanted)]


class CallHistory:
    """Reads what calls left behind. Raises StoreUnavailable."""

    def __init__(self, stores: Stores, *, data_dir: Path, archive_dir: Path) -> None:
        self._book = CallsTable(stores.memory)
        self._lines = CallRows(stores.memory)
        self._jobs = JobTable(stores.local)
        self._log = data_dir / FILE_NAME
        self._archive_dir = archive_dir

    async def calls(self, wanted: CallFilter, *, limit: int = 50) -> list[dict[str, Any]]:
        """The newest first; those whose ending is not done are among them, booked or not."""
        open_ones = {job.session.id: job for job in await self._jobs.open_ones()}
        rows = {id_: _unfinished(job) for id_, job in open_ones.items() if _fits(job, wanted)}
        if wanted.outcome != "unfinished" and (wanted.outcomes or not wanted.outcome):
            finished_call = await self._book.newest(
                caller=wanted.caller,
                agent=wanted.agent,
                outcomes=wanted.outcomes,
                since=wanted.since,
                before=wanted.before,
                limit=limit,
            )
            rows = {call.session_id: _finished(call) for call in finished_call} | rows
        return sorted(rows.values(), key=lambda row: str(row["started_at"]), reverse=True)[:limit]

    async def call(self, session: str) -> dict[str, Any] | None:
        """One call whole, by its id or the beginning of it; None where there is none, or more than one."""
        uuid = session.removeprefix("voice-session:")
        jobs = [one for one in await self._jobs.open_ones() if one.session.uuid.startswith(uuid)]
        finished_call = await self._book.find(session)
        if len(jobs) > 1 or not uuid or not (jobs or finished_call):
            return None
        row = (_finished(finished_call) if finished_call else {}) | (_unfinished(jobs[0]) if jobs else {})
        events = await asyncio.to_thread(events_of_call, self._log, row["session"])
        turns = jobs[0].session.as_json()["turns"] if jobs else _transcript(events)
        timings = jobs[0].session.timings if jobs else list(finished_call.timings if finished_call else ())
        return {
            **row,
            "transcript": turns or await asyncio.to_thread(self._archived, row["session"]),
            "timings": timings,
            "receipt": dict(jobs[0].session.receipt if jobs else finished_call.receipt if finished_call else {}),
            "steps": _steps(events),
            "timeline": [{name: event[name] for name in event if name not in _PRIVATE} for event in events],
        }

    async def latency(self, wanted: CallFilter) -> dict[str, Any]:
        """Percentiles of each stage, in seconds from the end of the caller's speech, and their course."""
        chosen = call_rows.CallRowFilter(
            agent=wanted.agent, caller=wanted.caller, since=wanted.since, before=wanted.before
        )
        now = datetime.now(UTC).isoformat()
        begin = datetime.fromisoformat(wanted.since or await self._lines.oldest(chosen) or now)
        end = datetime.fromisoformat(wanted.before or now)
        width = max(end - begin, timedelta(seconds=1)) / STEPS_IN_TIME
        begins = [(begin + step * width).isoformat() for step in range(STEPS_IN_TIME)]
        measured = await self._lines.measured(begins, chosen)
        figures = await asyncio.to_thread(_figures, measured)
        return {"since": begin.isoformat(), "before": end.isoformat(), **figures}

    def _archived(self, session: str) -> list[dict[str, Any]]:
        """What the raw transcript has, where events are gone: it knows no times, and no words that went unheard."""
        path = self._archive_dir / f"voice-session-{session.removeprefix('voice-session:')}.txt"
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError:
            return []
        pairs = [line.partition(": ")[::2] for line in lines]
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
        "outcome": call.end_reason,
        "turns": call.turns,
        "told": len(call.receipt.get("items", ())),
        "archived": True,
        "document": call.document_id,
        "summary_by": call.summary_by,
        "remote": True,  # if there is such a store at all: nothing is left to do
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
    """The last that is known of each step of the ending."""
    return {
        event["step"]: {"state": event["state"], "at": event["at"], "reason": event.get("reason", "")}
        for event in events
        if event["event"] == "step"
    }


def _figures(measured: Sequence[LatencyBucket]) -> dict[str, Any]:
    stages = {stage: _stage(stage, measured) for stage in STAGES}
    return {
        "calls": sum(some.calls for some in measured),
        "turns": max(figures["turns"] for figures in stages.values()),
        "stages": stages,
    }


def _stage(stage: str, measured: Sequence[LatencyBucket]) -> dict[str, Any]:
    """Figures of one stage; `course` are medians over equal steps in time, None where nobody spoke."""
    found = percentiles(measured, stage, list(_RANKS.values()))
    steps = [[some for some in measured if some.step == step] for step in range(STEPS_IN_TIME)]
    return {
        "turns": sum(some.turns(stage) for some in measured),
        **(dict(zip(_RANKS, found, strict=True)) if found else dict.fromkeys(_RANKS)),
        "course": [next(iter(percentiles(some, stage, [50])), None) for some in steps],
    }
