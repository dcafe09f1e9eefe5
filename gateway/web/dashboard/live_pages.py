"""The page of live calls: transcripts, level meters, listen-in, say as agent, hang up."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Send

from gateway.audio import BYTES_PER_SECOND
from gateway.calls.call import Call
from gateway.calls.operator import OperatorControl
from gateway.history.call_log import LoggedTurn, turns_from_rows
from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.history.live_events import EventPublisher
from gateway.memory.stores.store import MemoryStore
from gateway.session import FAILURES, Turn, VoiceSession
from gateway.web.dashboard.recordings import endless_wav_header, stereo
from gateway.web.dashboard.setup_page import SetupPage
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession
from gateway.web.sessions import LiveEventsEndpoint

FULL_CARDS: Final = 10
"""Of the newest calls. Those after them have a row that leads to their card."""
MAX_CALLS: Final = 60
"""The newest calls, shown when the page opens. Others appear with their next event."""
MAX_TURNS: Final = 12
CROWD: Final = 4
"""With more cards than this, each begins with the last few turns."""
CROWD_TURNS: Final = 5
MAX_TURN_BYTES: Final = 1500
"""The text of all turns that a card begins with."""
MAX_TEXT: Final = 500
"""Characters that an operator can make the agent say at once."""
_ENDED: Final = "Call not found. It has ended."
_RECENT: Final = 6
_CHUNK_SECONDS: Final = 0.1
SLOW_LISTENER_SECONDS: Final = 5.0
"""A browser that accepts no audio for this long is disconnected."""
FLUSH_SECONDS: Final = 0.1
"""What the page waits for the log to be written."""


@dataclass(frozen=True)
class _LiveCall:
    session: VoiceSession
    name: str
    turns: list[Turn]
    logged: dict[str, LoggedTurn]
    """By the name of the turn, as far as this node has logged them."""


class LivePages:
    def __init__(
        self,
        guard: LoginGuard,
        store: MemoryStore,
        operator: OperatorControl,
        call_events: EventPublisher,
        live: LiveEventsEndpoint,
        setup: SetupPage,
        *,
        listen_in: bool,
    ) -> None:
        self._guard = guard
        self._rows = CallsTable(store)
        self._operator = operator
        self._call_events = call_events
        self._live = live
        self._setup = setup
        self._params = guard.params
        self._listen_in = listen_in

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/", guard.page(self._show)),
            Route("/live/events", guard.stream(self._live.stream)),
            Route("/live/{id}/caller", guard.page(self._show_caller)),
            Route("/live/{id}/name", guard.file(self._name)),
            Route("/live/{id}/listen.wav", guard.file(self._listen)),
            Route("/live/{id}/say", guard.action(self._say), methods=["POST"]),
            Route("/live/{id}/end", guard.action(self._end), methods=["POST"]),
        ]

    async def _show(self, request: Request, session: LoginSession) -> Response:
        """The state now. Events after `cursor` follow through the live stream."""
        cursor = await self._call_events.head()
        recent = await self._rows.page(CallRowFilter(), limit=_RECENT)
        sessions = (await self._operator.all_calls())[::-1]
        chosen = request.query_params.get("call", "")
        shown = sorted(sessions, key=lambda one: one.uuid != chosen)[:MAX_CALLS]
        full, most = shown[:FULL_CARDS], MAX_TURNS if len(shown) <= CROWD else CROWD_TURNS
        now, turns = datetime.now(UTC), [_last_turns(one.turns, most) for one in full]  # at the same moment
        if full:
            await self._flush_log()
        names = await self._rows.names_of_callers(one.caller for one in shown)
        live = [
            _LiveCall(
                one,
                names.get(one.caller, ""),
                last_turns,
                {logged.turn.name: logged for logged in turns_from_rows(await self._call_events.log.rows(one.id))},
            )
            for one, last_turns in zip(full, turns, strict=True)
        ]
        return await self._guard.html(
            "live.html",
            session,
            here="live",
            live=live,
            rows=[_LiveCall(one, names.get(one.caller, ""), [], {}) for one in shown[FULL_CARDS:]],
            full_cards=FULL_CARDS,
            total=len(sessions),
            cursor=str(cursor),
            now=now.isoformat(),
            listen_in=self._listen_in,
            recent=[(row, self._params.seal(row.caller)) for row in recent],
            names=await self._rows.names_of_calls(recent),
            failures=FAILURES,
            setup=None if recent else await self._setup.content(),
        )

    async def _flush_log(self) -> None:
        """Let the log catch up with the turns in memory. It can't if the disk is full."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await self._call_events.log.flushed()

    async def _show_caller(self, request: Request, session: LoginSession) -> Response:
        """Redirect to the caller's page. Scripts can't seal a number, so they link to the call."""
        if caller := await self._caller(request):
            return RedirectResponse(f"/callers/{self._params.seal(caller)}", 303)
        raise HTTPException(404, "Caller not found. The call has ended, or its number is withheld.")

    async def _name(self, request: Request, session: LoginSession) -> Response:
        """The caller's name, empty if it is not known: events do not have it."""
        caller = await self._caller(request)
        return PlainTextResponse((await self._rows.names_of_callers([caller])).get(caller, ""))

    async def _caller(self, request: Request) -> str:
        calls = await self._operator.all_calls()
        return next((call.caller for call in calls if call.id == _session_id(request)), "")

    async def _say(self, request: Request, session: LoginSession, form: Form) -> Response:
        text = " ".join(form.get("words", "").split())
        if not 0 < len(text) <= MAX_TEXT:
            raise HTTPException(400, f"Not sent. Enter 1 to {MAX_TEXT} characters.")
        if not await self._operator.say(_session_id(request), text):
            raise HTTPException(404, _ENDED)
        return _done(form)

    async def _end(self, request: Request, session: LoginSession, form: Form) -> Response:
        if not await self._operator.end_call(_session_id(request)):
            raise HTTPException(404, _ENDED)
        return _done(form)

    async def _listen(self, request: Request, session: LoginSession) -> Response:
        if not self._listen_in:
            raise HTTPException(403, "Listen-in is off. Set LISTEN_IN=true to turn it on.")
        return _AudioStream(_mixed(self._call(request)), media_type="audio/wav")

    def _call(self, request: Request) -> Call:
        if call := self._operator.here(_session_id(request)):
            return call
        raise HTTPException(404, "Call not found. It has ended, or it runs on another node; listen there.")


def _last_turns(turns: Sequence[Turn], most: int) -> list[Turn]:
    """As many as fit into a card, one at least."""
    kept: list[Turn] = []
    size = 0
    for turn in turns[: -most - 1 : -1]:
        size += len(turn.text.encode()) + len(turn.unheard.encode())
        if kept and size > MAX_TURN_BYTES:
            break
        kept.append(turn)
    return kept[::-1]


def _session_id(request: Request) -> str:
    return f"voice-session:{request.path_params['id']}"


class _AudioStream(StreamingResponse):
    """Ends when the browser stops reading."""

    async def stream_response(self, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SLOW_LISTENER_SECONDS):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(send_in_time)


async def _mixed(call: Call) -> AsyncIterator[bytes]:
    """Caller and agent in stereo until the call ends."""
    loop = asyncio.get_running_loop()
    yield endless_wav_header()
    with call.monitor.tapped() as audio_tap:
        due = loop.time()
        while not call.is_over:
            due += _CHUNK_SECONDS
            await asyncio.sleep(max(due - loop.time(), 0))
            yield await asyncio.to_thread(stereo, *audio_tap.take(int(BYTES_PER_SECOND * _CHUNK_SECONDS)))


def _done(form: Form) -> Response:
    """204 for a script; without one, show the page again."""
    return Response(status_code=204) if form.get("quietly") else RedirectResponse("/", 303)
