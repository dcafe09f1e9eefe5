"""One call as its page shows it, read from all the stores that keep a part of it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup

from gateway.finalization.archive import Archive
from gateway.finalization.job import FinalizationJob
from gateway.finalization.job_table import JobTable
from gateway.history.call_log import events_of_call, turns_from_rows
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.history.report import MemoryChange, MemoryReports
from gateway.history.stores import Stores
from gateway.memory.facts import FactStore
from gateway.memory.summary_parser import PastCall, read_call
from gateway.session import Speaker, Turn, VoiceSession
from gateway.web.dashboard import timeline
from gateway.web.dashboard.recordings import RecordingCache, StereoRecording
from gateway.web.dashboard.timeline import SpokenTurn, Stretch, Timeline, Who

_CUT_OFF: Final = " —"
_STAGES: Final = {
    "transcript": "transcript",
    "llm_request": "LLM request",
    "first_token": "first token",
    "first_audio": "first audio",
    "first_frame": "first frame sent",
}


@dataclass(frozen=True)
class ProcessingStep:
    """One step of post-call processing. `state` is done, pending or failed."""

    name: str
    state: str
    details: str


@dataclass(frozen=True)
class CallView:
    """Everything that the page of a call shows. Without timing data the timeline and its pictures are None."""

    call: FinishedCall
    summary: PastCall | None
    turns: Sequence[SpokenTurn]
    timeline: Timeline | None
    picture: Markup | None
    waves: Markup | None
    changes: Sequence[MemoryChange]
    steps: Sequence[ProcessingStep]
    problem: str
    reverted: bool
    recorded: bool


class CallPageQuery:
    """Raises StoreUnavailable."""

    def __init__(
        self, stores: Stores, archive: Archive, recordings: RecordingCache, log: Path, *, has_remote: bool
    ) -> None:
        self._store = store = stores.memory
        self._calls = CallsTable(store)
        self._jobs = JobTable(stores.local)
        self._facts = FactStore(store)
        self._reports = MemoryReports(store)
        self._archive = archive
        self._recordings = recordings
        self._log = log
        self._has_remote = has_remote

    async def find(self, uuid: str) -> FinishedCall | None:
        call = await self._calls.find(uuid)
        return call if call is not None and call.session_id == f"voice-session:{uuid}" else None

    async def find_by_prefix(self, prefix: str) -> FinishedCall | None:
        """The only call whose id starts with `prefix`."""
        return await self._calls.find(prefix)

    async def view(self, call: FinishedCall) -> CallView:
        documents = await self._store.by_source_ids([call.session_id])
        job = await self._jobs.of(call.session_id)
        text = await self._archive.read(call.uuid)
        recording = await asyncio.to_thread(self._recordings.load, call.uuid)
        events = await asyncio.to_thread(events_of_call, self._log, call.session_id)
        turns = logged_turns(events) or _with_timings(_turns(job, recording, text), call.timings)
        changes = await self._reports.changes(call.caller, [call.agent])
        drawn, picture, waves = await asyncio.to_thread(_draw, turns, functions_of(events), call.seconds, recording)
        return CallView(
            call=call,
            summary=read_call(documents[0]) if documents else None,
            turns=turns,
            timeline=drawn,
            picture=picture,
            waves=waves,
            changes=[change for change in changes if change.session_id == call.session_id],
            steps=_steps(call, job, archived=text is not None, has_remote=self._has_remote),
            problem=job.problem if job else "",
            reverted=await self._facts.is_reverted(call.session_id),
            recorded=recording is not None,
        )


# Transcript


def logged_turns(events: Sequence[Mapping[str, Any]]) -> list[SpokenTurn]:
    start = _start(events)
    return [
        replace(_turn(logged.turn, start), wait=logged.latency, stages=_stages(logged.stages))
        for logged in turns_from_rows(events)
    ]


def functions_of(events: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    start = _start(events)
    found = []
    for event in events:
        if event["event"] == "function_finished":
            end, seconds = _since(start, event["at"]), event.get("seconds") or 0.0
            label = event["function"] if event.get("ok", True) else f"{event['function']} failed"
            found.append(Stretch(max(end - seconds, 0.0), end, label))
    return found


def _start(events: Sequence[Mapping[str, Any]]) -> datetime:
    """When the call was answered, which is also where its recording starts."""
    answered = (event["at"] for event in events if event["event"] == "answered")
    at = next(answered, events[0]["at"] if events else None)
    return datetime.fromisoformat(at) if at else datetime.min.replace(tzinfo=UTC)


def _since(start: datetime, at: str) -> float:
    return max((datetime.fromisoformat(at) - start).total_seconds(), 0.0)


def _turns(job: FinalizationJob | None, recording: StereoRecording | None, text: str | None) -> list[SpokenTurn]:
    """With times and unheard text from an open job or a recording; otherwise from the archived transcript."""
    if job is not None:
        return [_turn(turn, job.session.started_at) for turn in job.session.turns]
    if recording is not None and recording.ended is not None:
        session = VoiceSession.from_json(recording.ended)
        return [_turn(turn, session.started_at) for turn in session.turns]
    return [_archived(line) for line in (text or "").splitlines() if line]


def _turn(turn: Turn, started_at: datetime) -> SpokenTurn:
    who: Who = "caller" if turn.speaker is Speaker.CALLER else "agent"
    at = max((turn.at - started_at).total_seconds(), 0.0)
    return SpokenTurn(who, turn.text, at, turn.unheard, cut=not turn.heard)


def _archived(line: str) -> SpokenTurn:
    speaker, _, text = line.partition(": ")
    cut = text.endswith(_CUT_OFF)
    return SpokenTurn("caller" if speaker == "CALLER" else "agent", text.removesuffix(_CUT_OFF), cut=cut)


def _with_timings(turns: Sequence[SpokenTurn], timings: Sequence[Mapping[str, float | None]]) -> list[SpokenTurn]:
    """Add the response time to each answer, if there is one timing per caller turn."""
    asked = [index for index, turn in enumerate(turns) if turn.who == "caller"]
    timed = dict(zip(asked, timings, strict=True)) if len(asked) == len(timings) else {}
    shown = []
    for index, turn in enumerate(turns):
        timing = timed.get(index - 1, {}) if turn.who == "agent" else {}
        wait = timing.get("first_frame") or timing.get("first_audio")
        shown.append(replace(turn, wait=wait, stages=_stages(timing)))
    return shown


def _stages(timing: Mapping[str, float | None]) -> list[tuple[str, float]]:
    return [(name, seconds) for stage, name in _STAGES.items() if (seconds := timing.get(stage)) is not None]


def _draw(
    turns: Sequence[SpokenTurn], functions: Sequence[Stretch], seconds: float, recording: StereoRecording | None
) -> tuple[Timeline | None, Markup | None, Markup | None]:
    has_times = any(turn.at is not None for turn in turns)
    if not has_times and recording is None:
        return None, None, None
    drawn = timeline.of_turns(turns, seconds, functions)
    if recording is None:
        return drawn, timeline.picture(drawn), None
    drawn = timeline.with_recording(drawn, recording.spans(), recording.seconds)
    count = max(round(500 * recording.seconds / drawn.seconds), 1) if drawn.seconds else 1
    silence = [0.0] * (500 - count)  # the recording may end before the call
    peaks = [[*channel, *silence] for channel in recording.peaks(count)]
    return drawn, timeline.picture(drawn), timeline.waves(peaks, "Loudness of caller and agent during the call")


# Post-call processing


def _steps(
    call: FinishedCall, job: FinalizationJob | None, *, archived: bool, has_remote: bool
) -> list[ProcessingStep]:
    if job is None:
        remote = [ProcessingStep("Sent to the remote store", "done", "")] if has_remote else []
        archive = "" if archived else "deleted after VOICE_SESSION_RETENTION_DAYS"
        return [
            ProcessingStep("Transcript archived", "done", archive),
            ProcessingStep("Summary saved", "done", _written_by(call.summary_by)),
            ProcessingStep("Document stored", "done", ""),
            *remote,
        ]
    not_done = "failed" if job.problem else "pending"
    by = _written_by(job.summary.written_by) if job.summary else ""
    remote = [ProcessingStep("Sent to the remote store", "done" if job.remote_version else not_done, job.problem)]
    return [
        ProcessingStep("Transcript archived", "done" if job.archived else not_done, ""),
        ProcessingStep("Summary saved", "done" if job.summary else not_done, by),
        ProcessingStep("Document stored", "done" if job.document_id else not_done, ""),
        *(remote if has_remote else []),
    ]


def _written_by(provider: str) -> str:
    return "no language model" if provider == "extractive" else f"by {provider}"
