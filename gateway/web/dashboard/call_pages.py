"""The page of one call, from all the stores that keep a part of it; its recording; undo."""

import asyncio
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import RecordingError, StoreError
from gateway.finalization.archive import Archive
from gateway.finalization.job import FinalizationJob
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import EXTRACTIVE
from gateway.history.audit_log import AuditOutcome
from gateway.history.call_log import events_of_call
from gateway.history.calls_table import CallsTable, FinishedCall
from gateway.history.erasure import Eraser
from gateway.history.report import MemoryReports
from gateway.history.stores import Stores
from gateway.memory.facts import FactStore
from gateway.memory.summary_parser import read_call
from gateway.response_time import ResponseTime
from gateway.session import FAILURES, Consent, EndReason, TrustLevel, VoiceSession
from gateway.web.audit import audit_note
from gateway.web.dashboard import timeline
from gateway.web.dashboard.html import page_number
from gateway.web.dashboard.recordings import RecordingCache, StereoRecording
from gateway.web.dashboard.timeline import SpokenTurn, Stretch, Timeline
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

PEAKS: Final = 400
"""Of a waveform."""
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_CHUNK_BYTES: Final = 1 << 20
_NOTICES: Final = {
    "reverted": "Undone. Nothing learned from this call is kept.",
    "remote": "Undone here. The remote store still has its document; delete it there.",
    "retry": "Processing was queued again.",
}


class CallPages:
    def __init__(
        self,
        guard: LoginGuard,
        stores: Stores,
        archive: Archive,
        recordings: RecordingCache,
        eraser: Eraser,
        log: Path,
        *,
        has_remote: bool,
    ) -> None:
        self._guard = guard
        self._params = guard.params
        self._store = stores.memory
        self._rows = CallsTable(stores.memory)
        self._facts = FactStore(stores.memory)
        self._reports = MemoryReports(stores.memory)
        self._jobs = JobTable(stores.local)
        self._archive = archive
        self._recordings = recordings
        self._eraser = eraser
        self._log = log
        self._has_remote = has_remote

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/calls/{id}", guard.page(self._show)),
            Route("/calls/{id}/sound.wav", guard.file(self._audio)),
            Route("/calls/{id}/revert", guard.action(self._revert), methods=["POST"]),
            Route("/calls/{id}/retry", guard.action(self._retry), methods=["POST"]),
        ]

    # Reading

    async def _show(self, request: Request, session: LoginSession) -> Response:
        call = await self._call(request)
        documents = await self._store.by_source_ids([call.session_id])
        job = await self._jobs.of(call.session_id)
        text = await self._archive.read(call.uuid)
        recording, unreadable = None, ""
        try:
            recording = await asyncio.to_thread(self._recordings.load, call.uuid)
        except RecordingError as error:
            unreadable = str(error)
        events = await asyncio.to_thread(events_of_call, self._log, call.session_id)
        turns = timeline.logged_turns(events)
        if not turns:
            turns = timeline.with_timings(_stored_turns(job, recording, text or ""), call.timings)
        functions = timeline.functions_of(events)
        turns = timeline.with_functions(turns, functions)
        pages = timeline.pages(turns)
        wanted = page_number(request.query_params.get("turn", ""))
        page = next((page for page in pages if wanted - 1 in page), pages[0])
        drawn, picture, waves = await asyncio.to_thread(_draw, turns, page, functions, call.seconds, recording)
        if drawn:
            turns = timeline.with_starts(turns, drawn)
        is_reverted = await self._facts.is_reverted(call.session_id)
        changes = await self._reports.changes(call.caller, [call.agent])
        return await self._guard.html(
            "call.html",
            session,
            here="calls",
            call=call,
            name=(await self._rows.names_of_calls([call]))[call.session_id],
            summary=read_call(documents[0]) if documents else None,
            turns=turns[page.start : page.stop],
            turn_count=len(turns),
            page=page,
            turn_pages=pages,
            notes=timeline.noted(turns, events),
            max_shown=timeline.MAX_SHOWN,
            timeline=drawn,
            responses=[ResponseTime.from_json(one) for one in call.timings if one["first_frame"] is not None],
            picture=picture,
            waves=waves,
            no_context=_why_no_context(call, events),
            changes=[change for change in changes if change.session_id == call.session_id],
            steps=_steps(call, job, archived=text is not None, has_remote=self._has_remote),
            problem=job.problem if job else "",
            reverted=is_reverted,
            no_summary=_why_no_summary(call, job, reverted=is_reverted),
            recorded_seconds=recording.seconds if recording else None,
            unreadable=unreadable,
            record_days=self._recordings.retention_days,
            expired=recording is None
            and Consent(call.consent).allows_recording
            and self._recordings.is_past_retention(call.started_at),
            failed=call.outcome in FAILURES,
            caller_param=self._params.seal(call.caller),
            notice=_NOTICES.get(request.query_params.get("done", ""), ""),
        )

    async def _audio(self, request: Request, session: LoginSession) -> Response:
        """The WAV file, or the requested range of it."""
        call = await self._call(request)
        try:
            recording = await asyncio.to_thread(self._recordings.load, call.uuid)
        except RecordingError as error:
            raise HTTPException(409, f"Recording not readable. {error}.") from None
        if recording is None:
            raise HTTPException(404, "Recording not found. This call was not recorded, or its recording has expired.")
        size = recording.wav_bytes
        start, end = _range(request.headers.get("range", ""), size)
        headers = {"Accept-Ranges": "bytes", "Content-Range": f"bytes {start}-{end - 1}/{size}"}
        body = await asyncio.to_thread(recording.wav, start, end)
        return Response(body, 206 if (start, end) != (0, size) else 200, headers, media_type="audio/wav")

    # Changing

    async def _revert(self, request: Request, session: LoginSession, form: Form) -> Response:
        call = await self._call(request)
        if form.get("sure") != "yes":
            raise HTTPException(400, "Not confirmed. Tick the box to undo what was learned from this call.")
        try:
            result = await self._eraser.revert(call)
        except StoreError:
            raise HTTPException(503, "The remote store is unreachable. Nothing was undone.") from None
        if not result.is_complete:
            audit_note().outcome = AuditOutcome.INCOMPLETE
        return RedirectResponse(f"/calls/{call.uuid}?done={'remote' if result.remote_left else 'reverted'}", 303)

    async def _retry(self, request: Request, session: LoginSession, form: Form) -> Response:
        call = await self._call(request)
        await self._jobs.retry_failed(call.session_id)
        return RedirectResponse(f"/calls/{call.uuid}?done=retry", 303)

    async def _call(self, request: Request) -> FinishedCall:
        uuid = request.path_params["id"]
        if (call := await self._rows.find(uuid)) and call.uuid == uuid:
            return call
        raise HTTPException(
            404, "Call not found. It may still be live or in post-call processing, or its caller was erased."
        )


def _why_no_context(call: FinishedCall, events: Sequence[Mapping[str, Any]]) -> str:
    loaded = [event["outcome"] for event in events if event["event"] == "memory"]
    match loaded[-1] if loaded else "":
        case "failed":
            return "Memory could not be loaded."
        case "late":
            return "Memory was not loaded in time."
        case "off":
            return "Memory is off."
    is_trusted = call.receipt.get("tier") != str(TrustLevel.NONE)
    return "No earlier calls found." if is_trusted else "None: the number was not verified."


def _range(header: str, size: int) -> tuple[int, int]:
    """Start and end of the requested range, at most one chunk long; the whole file without a valid header."""
    match = _RANGE.fullmatch(header)
    if match is None or not any(match.groups()):
        return 0, size
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise HTTPException(
            416, "Range not satisfiable. The recording is shorter.", {"Content-Range": f"bytes */{size}"}
        )
    end = min(int(last) + 1, size) if first and last else size
    return start, min(max(end, start + 1), start + _CHUNK_BYTES)


# One call


@dataclass(frozen=True)
class ProcessingStep:
    """One step of post-call processing. `state` is done, pending, failed or skipped."""

    name: str
    state: str
    details: str


def _stored_turns(job: FinalizationJob | None, recording: StereoRecording | None, archived: str) -> list[SpokenTurn]:
    """With times and unheard text from an open job or a recording; otherwise from the archived transcript."""
    session = job.session if job else None
    if session is None and recording is not None and recording.ended is not None:
        session = VoiceSession.from_json(recording.ended)
    if session is None:
        return timeline.archived_turns(archived)
    return [timeline.spoken_turn(turn, session.started_at) for turn in session.turns]


def _draw(
    turns: Sequence[SpokenTurn],
    page: range,
    functions: Sequence[Stretch],
    seconds: float,
    recording: StereoRecording | None,
) -> tuple[Timeline | None, Markup | None, Markup | None]:
    """The timeline, its picture with details of the turns on this page, and the waveforms; None without timing data."""
    has_times = any(turn.at is not None for turn in turns)
    if not has_times and recording is None:
        return None, None, None
    drawn = timeline.of_turns(turns, seconds, functions)
    if recording is None:
        return drawn, timeline.picture(drawn, _seconds_of(page, turns)), None
    drawn = timeline.with_recording(drawn, recording.spans, recording.seconds)
    count = max(round(PEAKS * recording.seconds / drawn.seconds), 1) if drawn.seconds else 1
    silence = [0.0] * (PEAKS - count)  # the recording may end before the call
    peaks = [[*channel, *silence] for channel in recording.peaks(count)]
    picture = timeline.picture(drawn, _seconds_of(page, turns))
    return drawn, picture, timeline.waves(peaks, "Loudness of caller and agent during the call")


def _seconds_of(page: range, turns: Sequence[SpokenTurn]) -> tuple[float, float]:
    """From the first turn of the page to the first of the next one; nothing of a long call without times."""
    starts = [turn.at for turn in turns if turn.at is not None]
    if len(page) == len(turns):
        return -math.inf, math.inf
    if len(starts) < len(turns):
        return math.inf, math.inf
    return starts[page.start] if page.start else -math.inf, [*starts, math.inf][page.stop]


def _steps(
    call: FinishedCall, job: FinalizationJob | None, *, archived: bool, has_remote: bool
) -> list[ProcessingStep]:
    not_done = "skipped" if job is None else "failed" if job.problem else "pending"

    def step(name: str, is_done: object, details: str = "") -> ProcessingStep:
        return ProcessingStep(name, "done" if is_done else not_done, details)

    writer = call.summary_by if job is None else job.summary.written_by if job.summary else ""
    written_by = "(no language model)" if writer == EXTRACTIVE else f"by {writer}" if writer else ""
    expired = "" if archived or job else "(deleted since)"
    steps = [
        step("Transcript archived", job is None or job.archived, expired),
        step("Summary saved", writer, written_by),
        step("Document stored", writer if job is None else job.document_id),
    ]
    if has_remote:
        is_sent = writer if job is None else job.remote_version
        steps.append(step("Sent to the remote store", is_sent, job.problem if job else ""))
    return steps


def _why_no_summary(call: FinishedCall, job: FinalizationJob | None, *, reverted: bool) -> str:
    """Calls of which later ones may not know have none: see VoiceSession.leaves_document."""
    if reverted:
        return "Deleted when this call was undone."
    if job is not None:
        return "Not written yet."
    if call.summary_by:
        return "Deleted, or archived."
    if call.receipt.get("tier") == str(TrustLevel.NONE):
        return "None: the number was not verified."
    return "None: no message was left." if call.outcome == EndReason.VOICEMAIL_REACHED else "None."
