"""Pages about callers: who called, what is known of one, and how to correct, forget or export it."""

import uuid
from datetime import UTC, datetime
from typing import Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import StoreError
from gateway.history.calls_table import CallsTable
from gateway.history.erasure import Eraser
from gateway.history.report import MemoryReports
from gateway.memory.facts import FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.state import CallerStateStore, Value
from gateway.memory.store import MemoryStore
from gateway.web.dashboard.caller_query import CallerPageQuery
from gateway.web.dashboard.recordings import RecordingCache
from gateway.web.dashboard.stats import TROUBLE
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession, SealedParam

PAGE_ROWS: Final = 50
MOST_FACT_CHARACTERS: Final = 300
_DONE: Final = {
    "fact": "The fact was changed. From the next call on the agent is told so.",
    "forgot-fact": "The fact was forgotten.",
    "pin": "The topic is pinned: the agent is told of it in every call.",
    "unpinned": "The topic was let go.",
    "state": "The value was changed.",
    "forgot-state": "The key was forgotten.",
    "forgotten": "Everything about this caller was deleted.",
    "remote": "Deleted here. The remote store keeps some documents: delete them there.",
    "busy": "Deleted. A database was busy, so freed pages may still hold words: forget once more later.",
    "under-way": "Deleted. A call of theirs is not over or not all stored yet: forget once more afterwards.",
}


class CallerPages:
    def __init__(
        self,
        entrance: LoginGuard,
        store: MemoryStore,
        room: CallerPageQuery,
        sounds: RecordingCache,
        envelope: SealedParam,
        eraser: Eraser,
    ) -> None:
        self._entrance = entrance
        self._lines = CallsTable(store)
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._state = CallerStateStore(store)
        self._dossiers = MemoryReports(store)
        self._room = room
        self._sounds = sounds
        self._envelope = envelope
        self._eraser = eraser

    def routes(self) -> list[Route]:
        door = self._entrance
        return [
            Route("/callers", door.page(self._list)),
            Route("/callers/find", door.action(self._find), methods=["POST"]),
            Route("/callers/{who}", door.page(self._show)),
            Route("/callers/{who}/export.json", door.file(self._export)),
            Route("/callers/{who}/facts", door.action(self._change_fact), methods=["POST"]),
            Route("/callers/{who}/pins", door.action(self._change_pin), methods=["POST"]),
            Route("/callers/{who}/state", door.action(self._change_state), methods=["POST"]),
            Route("/callers/{who}/forget", door.action(self._forget), methods=["POST"]),
        ]

    # Looking

    async def _list(self, request: Request, visit: LoginSession) -> Response:
        chosen = request.query_params
        digits = self._envelope.unseal(chosen.get("find", "")) or ""
        page = int(chosen["page"]) if chosen.get("page", "").isdecimal() and len(chosen["page"]) < 7 else 0
        found = await self._lines.callers(digits, limit=PAGE_ROWS + 1, offset=page * PAGE_ROWS)
        rows = found[:PAGE_ROWS]
        return await self._entrance.html(
            "callers.html",
            visit,
            here="callers",
            rows=[(row, self._envelope.seal(row.caller)) for row in rows],
            names=await self._room.names([row.session_id for row in rows]),
            total=await self._lines.count_callers(digits),
            digits=digits,
            find=chosen.get("find", ""),
            page=page,
            more=len(found) > PAGE_ROWS,
            done=_DONE.get(chosen.get("done", ""), ""),
        )

    async def _find(self, request: Request, visit: LoginSession, form: Form) -> Response:
        digits = "".join(filter(str.isdecimal, form.get("find", "")))[:20]
        return RedirectResponse(f"/callers?find={self._envelope.seal(digits)}" if digits else "/callers", 303)

    async def _show(self, request: Request, visit: LoginSession) -> Response:
        view = await self._room.view(self._caller(request))
        if not view:
            raise HTTPException(404, "Nothing is known of this caller.")
        return await self._entrance.html(
            "caller.html",
            visit,
            here="callers",
            view=view,
            address=request.path_params["who"],
            trouble=TROUBLE,
            done=_DONE.get(request.query_params.get("done", ""), ""),
        )

    async def _export(self, request: Request, visit: LoginSession) -> Response:
        report = await self._dossiers.of(self._caller(request))
        body = orjson.dumps(report, default=str, option=orjson.OPT_INDENT_2)
        name = f"caller-{report.caller[-4:]}.json" if report.caller[-4:].isdecimal() else "caller.json"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(body, media_type="application/json", headers=headers)

    # Doing

    async def _change_fact(self, request: Request, visit: LoginSession, form: Form) -> Response:
        caller, agent, fact = self._caller(request), form.get("agent", ""), form.get("fact", "")
        forgets = form.get("do") == "forget"
        text = "" if forgets else " ".join(form.get("text", "").split())
        if not forgets and not 0 < len(text) <= MOST_FACT_CHARACTERS:
            raise HTTPException(400, f"A fact has 1 to {MOST_FACT_CHARACTERS} characters.")
        if not await self._facts.correct(agent, caller, fact, text, by=_by_operator(), now=datetime.now(UTC)):
            raise HTTPException(404, "This fact is not there any more.")
        return self._back(request, "forgot-fact" if forgets else "fact")

    async def _change_pin(self, request: Request, visit: LoginSession, form: Form) -> Response:
        """Pin a topic, change one, or let it go. Agents know only callers who have called them."""
        caller, agent, title = self._caller(request), form.get("agent", ""), " ".join(form.get("title", "").split())
        if agent not in await self._dossiers.agents_of(caller):
            raise HTTPException(404, "This agent does not know this caller.")
        if form.get("do") == "unpin":
            if not await self._pins.unpin(agent, caller, title):
                raise HTTPException(404, "This topic is not pinned any more.")
            return self._back(request, "unpinned")
        items = [item.strip() for item in form.get("items", "").splitlines() if item.strip()]
        about, status, closed = form.get("about", "").strip(), form.get("status", "").strip(), form.get("do") == "close"
        try:
            await self._pins.pin(agent, caller, title, about=about, status=status, open_items=items, closed=closed)
        except ValueError as error:
            raise HTTPException(400, f"That can't be pinned: {error}.") from None
        return self._back(request, "pin")

    async def _change_state(self, request: Request, visit: LoginSession, form: Form) -> Response:
        caller, agent, key = self._caller(request), form.get("agent", ""), form.get("key", "")
        if key not in await self._state.load(agent, caller):
            raise HTTPException(404, "This key is not there any more.")
        if form.get("do") == "forget":
            await self._state.drop(agent, caller, key)
            return self._back(request, "forgot-state")
        values = {key: _value(form.get("value", ""))}
        try:
            await self._state.save(agent, caller, values, session_id=_by_operator(), now=datetime.now(UTC))
        except ValueError as error:
            raise HTTPException(400, f"That can't be kept: {error}.") from None
        return self._back(request, "state")

    async def _forget(self, request: Request, visit: LoginSession, form: Form) -> Response:
        caller = self._caller(request)
        if form.get("sure") != "yes":
            raise HTTPException(400, "Tick the box to forget this caller.")
        try:
            traces = await self._eraser.find(caller)
            undone = await self._eraser.erase(traces)
        except StoreError:
            raise HTTPException(503, "A store can't be reached, so not everything was deleted. Try again.") from None
        for session_id in traces.sessions:
            self._sounds.drop(session_id.removeprefix("voice-session:"))
        left = {"under-way": traces.unfinished, "remote": undone.remote_left, "busy": undone.unscrubbed}
        return RedirectResponse(
            f"/callers?done={next((what for what, is_so in left.items() if is_so), 'forgotten')}", 303
        )

    def _caller(self, request: Request) -> str:
        if caller := self._envelope.unseal(request.path_params["who"]):
            return caller
        raise HTTPException(404, "There is no such caller.")

    @staticmethod
    def _back(request: Request, done: str) -> Response:
        return RedirectResponse(f"/callers/{request.path_params['who']}?done={done}", 303)


def _by_operator() -> str:
    """In the place of a session: a person said so, here."""
    return f"operator:{uuid.uuid4()}"


def _value(text: str) -> Value:
    """As JSON where it is, else as text."""
    try:
        value: Value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value
