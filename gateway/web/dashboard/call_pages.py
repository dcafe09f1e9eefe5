"""Pages about calls: the list, one call, its sound, and taking back what it taught."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import StoreError
from gateway.finalization.job_table import JobTable
from gateway.history.calls_table import CallRow, CallRowFilter, CallsTable, FinishedCall
from gateway.history.erasure import Eraser
from gateway.history.stores import Stores
from gateway.memory.summary_parser import PastCall, read_call
from gateway.session import EndReason
from gateway.web.dashboard.call_query import CallPageQuery
from gateway.web.dashboard.recordings import RecordingCache
from gateway.web.dashboard.stats import TROUBLE
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession, SealedParam

PAGE_ROWS: Final = 50
_CHOICES: Final = ("find", "of", "agent", "outcome", "since", "until", "after")
"""What an address of the list may hold; what is looked for, and of whom, is sealed."""
_MOST_FOUND: Final = 100
_FOUND_SCORE: Final = 0.01  # the store fills up with what no word matched, and scores that ten times lower
_NUMBER: Final = re.compile(r"\+?[\d ()./-]{3,}")
_ID: Final = re.compile(r"(?:voice-session:)?([0-9a-f]{8}[0-9a-f-]{0,28})")
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")
_CHUNK_BYTES: Final = 1 << 20
_DONE: Final = {
    "reverted": "What this call taught was taken back.",
    "remote": "Taken back here. The remote store keeps its document: delete it there.",
    "retry": "It is tried again now.",
}


@dataclass(frozen=True)
class _Row:
    """A call in the list, with what it was about."""

    line: CallRow
    notes: PastCall | None
    caller_address: str

    @property
    def trouble(self) -> bool:
        return self.line.outcome in TROUBLE


class CallPages:
    def __init__(
        self,
        entrance: LoginGuard,
        stores: Stores,
        room: CallPageQuery,
        sounds: RecordingCache,
        envelope: SealedParam,
        eraser: Eraser,
    ) -> None:
        self._entrance = entrance
        self._store = stores.memory
        self._lines = CallsTable(stores.memory)
        self._jobs = JobTable(stores.local)
        self._room = room
        self._sounds = sounds
        self._envelope = envelope
        self._eraser = eraser

    def routes(self) -> list[Route]:
        door = self._entrance
        return [
            Route("/calls", door.page(self._list)),
            Route("/calls/find", door.action(self._find), methods=["POST"]),
            Route("/calls/{id}", door.page(self._show)),
            Route("/calls/{id}/sound.wav", door.file(self._sound)),
            Route("/calls/{id}/revert", door.action(self._revert), methods=["POST"]),
            Route("/calls/{id}/retry", door.action(self._retry), methods=["POST"]),
        ]

    # Looking

    async def _list(self, request: Request, visit: LoginSession) -> Response:
        chosen = {name: request.query_params.get(name, "") for name in _CHOICES}
        looked_for = self._envelope.unseal(chosen["find"]) or ""
        of = self._envelope.unseal(chosen["of"]) or ""
        wanted = _wanted(chosen, caller=of)
        if looked_for and not _NUMBER.fullmatch(looked_for):
            found = await self._found(looked_for, wanted)
            lines, total, after = found, len(found), ""
        else:
            wanted = replace(wanted, digits=re.sub(r"\D", "", looked_for))
            lines = await self._lines.page(wanted, after=chosen["after"], limit=PAGE_ROWS + 1)
            total = await self._lines.count(wanted)
            after = _address({**chosen, "after": lines[PAGE_ROWS - 1].cursor}) if len(lines) > PAGE_ROWS else ""
        return await self._entrance.html(
            "calls.html",
            visit,
            here="calls",
            rows=await self._rows(lines[:PAGE_ROWS]),
            total=total,
            chosen=chosen,
            looked_for=looked_for,
            of=of,
            is_filtered=wanted != CallRowFilter() or bool(looked_for),
            agents=await self._lines.agents(),
            outcomes=[str(reason) for reason in EndReason],
            first=_address({**chosen, "after": ""}) if chosen["after"] else "",
            after=after,
        )

    async def _find(self, request: Request, visit: LoginSession, form: Form) -> Response:
        """What is looked for becomes part of an address only where nobody can read it."""
        looked_for = " ".join(form.get("find", "").split())[:200]
        if (found := _ID.fullmatch(looked_for)) and len(found[1]) == 36:
            return RedirectResponse(f"/calls/{found[1]}", 303)
        chosen = {name: form.get(name, "") for name in _CHOICES} | {"find": self._sealed(looked_for)}
        return RedirectResponse(_address(chosen), 303)

    async def _found(self, words: str, wanted: CallRowFilter) -> list[CallRow]:
        """By the beginning of an id, or by the words of summaries, the best first."""
        if (given := _ID.fullmatch(words)) and (call := await self._room.find_beginning(given[1])):
            return await self._lines.by_ids([call.session_id])
        hits = await self._store.query(words, limit=_MOST_FOUND, tags=("voice-session",))
        ids = [hit.document.source_id for hit in hits if hit.score > _FOUND_SCORE]
        return [line for line in await self._lines.by_ids(ids) if wanted.admits(line)]

    async def _rows(self, lines: Sequence[CallRow]) -> list[_Row]:
        documents = await self._store.by_source_ids(line.session_id for line in lines)
        notes = {document.source_id: read_call(document) for document in documents}
        return [_Row(line, notes.get(line.session_id), self._envelope.seal(line.caller)) for line in lines]

    async def _show(self, request: Request, visit: LoginSession) -> Response:
        view = await self._room.view(await self._call(request))
        return await self._entrance.html(
            "call.html",
            visit,
            here="calls",
            view=view,
            trouble=view.call.outcome in TROUBLE,
            caller_address=self._envelope.seal(view.call.caller),
            done=_DONE.get(request.query_params.get("done", ""), ""),
        )

    async def _sound(self, request: Request, visit: LoginSession) -> Response:
        """The WAV file, or the part of it that the player asks for."""
        call = await self._call(request)
        sound = await asyncio.to_thread(self._sounds.load, _uuid(call))
        if sound is None:
            raise HTTPException(404, "There is no recording of this call.")
        size = sound.wav_bytes
        start, end = _asked_for(request.headers.get("range", ""), size)
        headers = {"Accept-Ranges": "bytes", "Content-Range": f"bytes {start}-{end - 1}/{size}"}
        body = await asyncio.to_thread(sound.wav, start, end)
        return Response(body, 206 if (start, end) != (0, size) else 200, headers, media_type="audio/wav")

    # Doing

    async def _revert(self, request: Request, visit: LoginSession, form: Form) -> Response:
        call = await self._call(request)
        if form.get("sure") != "yes":
            raise HTTPException(400, "Tick the box to take back what this call taught.")
        try:
            undone = await self._eraser.revert(call)
        except StoreError:
            raise HTTPException(503, "The remote store can't be reached, so nothing was taken back.") from None
        return RedirectResponse(f"/calls/{_uuid(call)}?done={'remote' if undone.remote_left else 'reverted'}", 303)

    async def _retry(self, request: Request, visit: LoginSession, form: Form) -> Response:
        call = await self._call(request)
        await self._jobs.retry_failed(call.session_id)
        return RedirectResponse(f"/calls/{_uuid(call)}?done=retry", 303)

    async def _call(self, request: Request) -> FinishedCall:
        if call := await self._room.find(request.path_params["id"]):
            return call
        raise HTTPException(
            404, "This call is not known. It may be going on or about to be stored, or its caller was forgotten."
        )

    def _sealed(self, text: str) -> str:
        return self._envelope.seal(text) if text else ""


def _uuid(call: FinishedCall) -> str:
    return call.session_id.removeprefix("voice-session:")


def _wanted(chosen: Mapping[str, str], caller: str) -> CallRowFilter:
    return CallRowFilter(
        agent=chosen["agent"],
        outcomes=(chosen["outcome"],) if chosen["outcome"] else (),
        caller=caller,
        since=_midnight(chosen["since"]),
        before=_midnight(chosen["until"], days=1),
    )


def _midnight(day: str, days: int = 0) -> str:
    """When a day begins here, as calls are stored; empty for what is no day."""
    try:
        begins = datetime.strptime(day, "%Y-%m-%d") + timedelta(days=days)
    except (ValueError, OverflowError):
        return ""
    return begins.astimezone().astimezone(UTC).isoformat()


def _address(chosen: Mapping[str, str]) -> str:
    given = {name: value for name, value in chosen.items() if value}
    return f"/calls?{urlencode(given)}" if given else "/calls"


def _asked_for(header: str, size: int) -> tuple[int, int]:
    """Start and end of a range, at most a chunk; the whole without one that can be served."""
    match = _RANGE.fullmatch(header)
    if match is None or not any(match.groups()):
        return 0, size
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    if start >= size:
        raise HTTPException(416, "The recording is not that long.", {"Content-Range": f"bytes */{size}"})
    end = min(int(last) + 1, size) if first and last else size
    return start, min(max(end, start + 1), start + _CHUNK_BYTES)
