"""One call as its page shows it, put together from wherever something of it is kept."""

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
    "transcript": "words known",
    "llm_request": "model asked",
    "first_token": "first word",
    "first_audio": "first sound",
    "first_frame": "on the line",
}


@dataclass(frozen=True)
class TimelineStep:
    """One step of a call's ending. `state` is done, waiting or stuck."""

    name: str
    state: str
    words: str


@dataclass(frozen=True)
class CallView:
    """Everything that the page of a call shows. Without a picture where nothing tells any more who spoke when."""

    call: FinishedCall
    notes: PastCall | None
    turns: Sequence[SpokenTurn]
    story: Timeline | None
    picture: Markup | None
    waves: Markup | None
    changes: Sequence[MemoryChange]
    steps: Sequence[TimelineStep]
    problem: str
    reverted: bool
    recorded: bool

    @property
    def uuid(self) -> str:
        return self.call.session_id.removeprefix("voice-session:")


class CallPageQuery:
    """Reads calls, for pages. Raises StoreUnavailable."""

    def __init__(
        self, stores: Stores, archive: Archive, sounds: RecordingCache, log: Path, *, has_remote: bool
    ) -> None:
        self._store = store = stores.memory
        self._book = CallsTable(store)
        self._jobs = JobTable(stores.local)
        self._facts = FactStore(store)
        self._dossiers = MemoryReports(store)
        self._archive = archive
        self._sounds = sounds
        self._log = log
        self._has_remote = has_remote

    async def find(self, uuid: str) -> FinishedCall | None:
        call = await self._book.find(uuid)
        return call if call is not None and call.session_id == f"voice-session:{uuid}" else None

    async def find_beginning(self, beginning: str) -> FinishedCall | None:
        """The one call whose id begins so."""
        return await self._book.find(beginning)

    async def view(self, call: FinishedCall) -> CallView:
        uuid = call.session_id.removeprefix("voice-session:")
        documents = await self._store.by_source_ids([call.session_id])
        job = await self._jobs.of(call.session_id)
        text = await self._archive.read(uuid)
        sound = await asyncio.to_thread(self._sounds.load, uuid)
        told = await asyncio.to_thread(events_of_call, self._log, call.session_id)
        turns = logged_turns(told) or _with_timings(_turns(job, sound, text), call.timings)
        changes = await self._dossiers.changes(call.caller, [call.agent])
        story, picture, waves = await asyncio.to_thread(_drawn, turns, functions_of(told), call.seconds, sound)
        return CallView(
            call=call,
            notes=read_call(documents[0]) if documents else None,
            turns=turns,
            story=story,
            picture=picture,
            waves=waves,
            changes=[change for change in changes if change.session_id == call.session_id],
            steps=_steps(call, job, archived=text is not None, has_remote=self._has_remote),
            problem=job.problem if job else "",
            reverted=await self._facts.is_reverted(call.session_id),
            recorded=sound is not None,
        )


# What was said


def logged_turns(events: Sequence[Mapping[str, Any]]) -> list[SpokenTurn]:
    begin = _begin(events)
    return [
        replace(_turn(logged.turn, begin), wait=logged.latency, stages=_stages(logged.stages))
        for logged in turns_from_rows(events)
    ]


def functions_of(events: Sequence[Mapping[str, Any]]) -> list[Stretch]:
    begin = _begin(events)
    found = []
    for event in events:
        if event["event"] == "function_finished":
            end, seconds = _since(begin, event["at"]), event.get("seconds") or 0.0
            label = event["function"] if event.get("ok", True) else f"{event['function']} failed"
            found.append(Stretch(max(end - seconds, 0.0), end, label))
    return found


def _begin(events: Sequence[Mapping[str, Any]]) -> datetime:
    """When the call was answered, which is where a recording begins too."""
    answered = (event["at"] for event in events if event["event"] == "answered")
    at = next(answered, events[0]["at"] if events else None)
    return datetime.fromisoformat(at) if at else datetime.min.replace(tzinfo=UTC)


def _since(begin: datetime, at: str) -> float:
    return max((datetime.fromisoformat(at) - begin).total_seconds(), 0.0)


def _turns(job: FinalizationJob | None, sound: StereoRecording | None, text: str | None) -> list[SpokenTurn]:
    """With times and what was not heard, where a recording or an open ending tells; else what the archive has."""
    if job is not None:
        return [_turn(turn, job.session.started_at) for turn in job.session.turns]
    if sound is not None and sound.ended is not None:
        session = VoiceSession.from_json(sound.ended)
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
    """Each answer with how long it took. Told only where there is one for each of the caller's turns."""
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


def _drawn(
    turns: Sequence[SpokenTurn], functions: Sequence[Stretch], seconds: float, sound: StereoRecording | None
) -> tuple[Timeline | None, Markup | None, Markup | None]:
    has_times = any(turn.at is not None for turn in turns)
    if not has_times and sound is None:
        return None, None, None
    story = timeline.of_turns(turns, seconds, functions)
    if sound is None:
        return story, timeline.picture(story), None
    story = timeline.with_sound(story, sound.spans(), sound.seconds)
    count = max(round(500 * sound.seconds / story.seconds), 1) if story.seconds else 1
    quiet = [0.0] * (500 - count)  # the sound may end before the call does
    peaks = [[*channel, *quiet] for channel in sound.peaks(count)]
    return story, timeline.picture(story), timeline.waves(peaks, "Loudness of both voices over the call")


# How it ended


def _steps(call: FinishedCall, job: FinalizationJob | None, *, archived: bool, has_remote: bool) -> list[TimelineStep]:
    if job is None:
        remote = [TimelineStep("Sent to the remote store", "done", "")] if has_remote else []
        kept = "" if archived else "deleted since, as VOICE_SESSION_RETENTION_DAYS says"
        return [
            TimelineStep("Transcript archived", "done", kept),
            TimelineStep("Summary written", "done", f"by {call.summary_by}"),
            TimelineStep("Stored", "done", ""),
            *remote,
        ]
    waits = "stuck" if job.problem else "waiting"
    by = f"by {job.summary.written_by}" if job.summary else ""
    remote = [TimelineStep("Sent to the remote store", "done" if job.remote_version else waits, job.problem)]
    return [
        TimelineStep("Transcript archived", "done" if job.archived else waits, ""),
        TimelineStep("Summary written", "done" if job.summary else waits, by),
        TimelineStep("Stored", "done" if job.document_id else waits, ""),
        *(remote if has_remote else []),
    ]
