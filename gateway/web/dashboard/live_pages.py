"""The page of calls that go on now: what is said, who talks; listen in, say something, end it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from gateway.audio import BYTES_PER_SECOND
from gateway.calls.call import Call
from gateway.calls.operator import OperatorControl
from gateway.history.calls_table import CallRow, CallRowFilter, CallsTable
from gateway.history.live_events import EventPublisher
from gateway.memory.store import MemoryStore
from gateway.session import Turn, VoiceSession
from gateway.web.dashboard.recordings import endless_wav_header
from gateway.web.dashboard.stats import TROUBLE
from gateway.web.live import LiveEventsEndpoint
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession, SealedParam

MOST_CALLS: Final = 200
"""Shown when the page is opened: the newest. Of the others, those where something happens come by themselves."""
MOST_TURNS: Final = 12
MOST_WORDS: Final = 500
"""Characters that an operator has an agent say."""
_OVER: Final = "This call is over."
_RECENT: Final = 6
_PIECE_SECONDS: Final = 0.1
PATIENCE: Final = 5.0
"""A listener who takes nothing for so long is let go."""


@dataclass(frozen=True)
class _LiveCall:
    session: VoiceSession
    turns: list[Turn]


class LivePages:
    def __init__(
        self,
        entrance: LoginGuard,
        store: MemoryStore,
        switchboard: OperatorControl,
        call_events: EventPublisher,
        live: LiveEventsEndpoint,
        envelope: SealedParam,
        *,
        listen_in: bool,
    ) -> None:
        self._entrance = entrance
        self._lines = CallsTable(store)
        self._switchboard = switchboard
        self._call_events = call_events
        self._live = live
        self._envelope = envelope
        self._listen_in = listen_in

    def routes(self) -> list[Route]:
        door = self._entrance
        return [
            Route("/", door.page(self._show)),
            Route("/live/events", door.stream(self._live.stream)),
            Route("/live/{id}/caller", door.page(self._show_caller)),
            Route("/live/{id}/listen.wav", door.file(self._listen)),
            Route("/live/{id}/say", door.action(self._say), methods=["POST"]),
            Route("/live/{id}/end", door.action(self._end), methods=["POST"]),
        ]

    async def _show(self, request: Request, visit: LoginSession) -> Response:
        """What is so now; what happens after `place` comes by events, and what the page has already is left out."""
        place = await self._call_events.head()
        recent = await self._lines.page(CallRowFilter(), limit=_RECENT)
        sessions = await self._switchboard.all_calls()
        live = [_LiveCall(session, session.turns[-MOST_TURNS:]) for session in sessions[-MOST_CALLS:]]
        return await self._entrance.html(
            "live.html",
            visit,
            here="live",
            live=live[::-1],
            total=len(sessions),
            place=str(place),
            now=datetime.now(UTC).isoformat(),
            listen_in=self._listen_in,
            recent=[(line, self._sealed(line)) for line in recent],
            trouble=TROUBLE,
        )

    def _sealed(self, line: CallRow) -> str:
        return self._envelope.seal(line.caller)

    async def _show_caller(self, request: Request, visit: LoginSession) -> Response:
        """On to the caller's page. A script can't seal a number, so it is asked for by the call."""
        for session in await self._switchboard.all_calls():
            if session.id == _session_id(request) and session.caller:
                return RedirectResponse(f"/callers/{self._envelope.seal(session.caller)}", 303)
        raise HTTPException(404, "This call is over, or its caller is nameless.")

    async def _say(self, request: Request, visit: LoginSession, form: Form) -> Response:
        words = " ".join(form.get("words", "").split())
        if not 0 < len(words) <= MOST_WORDS:
            raise HTTPException(400, f"Say something, in at most {MOST_WORDS} characters.")
        if not await self._switchboard.have_said(_session_id(request), words):
            raise HTTPException(404, _OVER)
        return _done(form)

    async def _end(self, request: Request, visit: LoginSession, form: Form) -> Response:
        if not await self._switchboard.have_ended(_session_id(request)):
            raise HTTPException(404, _OVER)
        return _done(form)

    async def _listen(self, request: Request, visit: LoginSession) -> Response:
        if not self._listen_in:
            raise HTTPException(403, "Listening in is off; LISTEN_IN=true turns it on.")
        return _Sounding(_heard(self._call(request)), media_type="audio/wav")

    def _call(self, request: Request) -> Call:
        if call := self._switchboard.here(_session_id(request)):
            return call
        raise HTTPException(404, "This call is over, or another node has it: listen at that node's dashboard.")


def _session_id(request: Request) -> str:
    return f"voice-session:{request.path_params['id']}"


class _Sounding(StreamingResponse):
    """A listener who does not listen is let go."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(PATIENCE):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(send_in_time)


async def _heard(call: Call) -> AsyncIterator[bytes]:
    """Both voices for as long as the call goes on."""
    loop = asyncio.get_running_loop()
    yield endless_wav_header()
    with call.monitor.tapped() as audio_tap:
        due = loop.time()
        while not call.is_over:
            due += _PIECE_SECONDS
            await asyncio.sleep(max(due - loop.time(), 0))
            yield await asyncio.to_thread(_side_by_side, *audio_tap.take(int(BYTES_PER_SECOND * _PIECE_SECONDS)))


def _side_by_side(caller: bytes, agent: bytes) -> bytes:
    from gateway.web.dashboard.waveform import stereo  # it takes a while to load, which is why this is a thread's

    return stereo(caller, agent)


def _done(form: Form) -> Response:
    """A script stays where it is; without one the page is shown again."""
    return Response(status_code=204) if form.get("quietly") else RedirectResponse("/", 303)
