"""Pages about callers: the list, one caller's profile, and correcting, erasing or exporting it."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.errors import StoreError
from gateway.history.audit_log import AuditAction, AuditOutcome
from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.history.erasure import Eraser
from gateway.history.report import KnownFact, MemoryReports, ReportedTopic
from gateway.memory.facts import FactStore, labelled, unlabelled
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.state import CallerStateStore, Value
from gateway.memory.stores.store import MemoryStore
from gateway.session import FAILURES
from gateway.telephony.phone_numbers import searched_digits
from gateway.text.person_names import searched_words
from gateway.text.plain_text import is_plain_line
from gateway.web.audit import audit_note
from gateway.web.dashboard.html import cleaned, page_number
from gateway.web.dashboard.recordings import RecordingCache
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

PAGE_ROWS: Final = 50
MAX_FACTS: Final = 2000
"""Per agent; as many topics."""
MAX_CALLS: Final = 20
MAX_CHANGES: Final = 1000
MOST_WITH_HISTORY: Final = 100
"""With more facts than this, the history has a page of its own only."""
MAX_EDITED: Final = 1000
"""Characters of a state value that can be edited on a page."""
FIRST: Final = {"facts": 25, "pins": 8, "state": 10, "changes": 20}
"""How many items of each list are on the caller's page. The others are on pages of their own."""
LISTED: Final = {"facts": 40, "pins": 25, "state": 20, "changes": 100}
"""How many items such a page has."""
MAX_FACT_CHARACTERS: Final = 300
_NOTICES: Final = {
    "fact": "Fact changed. The agent uses it from the next call on.",
    "forgot-fact": "Fact deleted.",
    "pin": "Topic saved. The agent gets pinned topics in every call.",
    "unpinned": "Topic unpinned.",
    "state": "Value changed.",
    "same": "No changes to save.",
    "forgot-state": "Value deleted.",
    "forgotten": "Everything about this caller was deleted.",
    "remote": "Deleted here. Some documents remain in the remote store; delete them there.",
    "busy": "Deleted. A database was busy, so its free pages may still contain text. Repeat this later.",
    "under-way": "Deleted. A call by this caller is still live or being processed. Repeat this when it is done.",
    "unreadable": "Deleted. A recording that can't be decrypted may contain this caller: add its key to RECORD_KEY.",
}


@dataclass(frozen=True)
class _KnownValue:
    """One key of an agent's state."""

    agent: str
    key: str
    text: str
    is_unverified: bool

    @property
    def is_editable(self) -> bool:
        return len(self.text) <= MAX_EDITED


@dataclass(frozen=True)
class _Part:
    """What a page shows of a list."""

    items: Sequence[Any]
    total: int
    more: bool


class CallerPages:
    def __init__(self, guard: LoginGuard, store: MemoryStore, recordings: RecordingCache, eraser: Eraser) -> None:
        self._guard = guard
        self._rows = CallsTable(store)
        self._facts = FactStore(store)
        self._pins = PinnedTopicStore(store)
        self._state = CallerStateStore(store)
        self._reports = MemoryReports(store)
        self._recordings = recordings
        self._params = guard.params
        self._eraser = eraser

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/callers", guard.page(self._list)),
            Route("/callers/find", guard.action(self._find), methods=["POST"]),
            Route("/callers/{who}", guard.page(self._show)),
            Route("/callers/{who}/export.json", guard.file(self._export)),
            Route("/callers/{who}/facts", guard.action(self._change_fact), methods=["POST"]),
            Route("/callers/{who}/pins", guard.action(self._change_pin), methods=["POST"]),
            Route("/callers/{who}/state", guard.action(self._change_state), methods=["POST"]),
            Route("/callers/{who}/forget", guard.action(self._forget), methods=["POST"]),
        ]

    # Reading

    async def _list(self, request: Request, session: LoginSession) -> Response:
        """All callers, or those with this number or name."""
        chosen = request.query_params
        text = self._params.unseal(chosen.get("find", "")) or ""
        digits = searched_digits(text)
        wanted = CallRowFilter(digits=digits, name=() if digits else searched_words(text))
        is_search = wanted != CallRowFilter()
        page = page_number(chosen.get("page", ""))
        found = await self._rows.callers(wanted, limit=PAGE_ROWS + 1, offset=page * PAGE_ROWS)
        rows = found[:PAGE_ROWS]
        return await self._guard.html(
            "callers.html",
            session,
            here="callers",
            rows=[(row, self._params.seal(row.caller)) for row in rows],
            names=await self._rows.names_of_callers(row.caller for row in rows),
            total=await self._rows.count_callers(wanted),
            text=text if is_search else "",
            find=chosen.get("find", ""),
            page=page,
            more=len(found) > PAGE_ROWS,
            notice=_NOTICES.get(chosen.get("done", ""), ""),
        )

    async def _find(self, request: Request, session: LoginSession, form: Form) -> Response:
        text = " ".join(form.get("find", "").split())[:200]
        return RedirectResponse(f"/callers?find={self._params.seal(text)}" if text else "/callers", 303)

    async def _show(self, request: Request, session: LoginSession) -> Response:
        """The caller's profile, with lists cut to a readable length; or one of its lists, page by page."""
        caller = self._caller(request)
        agents = await self._reports.agents_of(caller)
        if not agents:
            raise HTTPException(404, "Caller not found. Nothing is known about this caller.")
        facts = {name: await self._facts.known(name, caller, MAX_FACTS) for name in agents}
        pins = {name: await self._pins.pinned(name, caller, MAX_FACTS, closed=True) for name in agents}
        state = {name: await self._state.load(name, caller) for name in agents}
        calls = await self._rows.page(CallRowFilter(caller=caller), limit=MAX_CALLS)
        others = await self._rows.callers_from(caller)
        names = await self._rows.names_of_callers([caller, *others])
        chosen = request.query_params.get("list", "")
        chosen = chosen if chosen in FIRST else ""
        # Every change of hundreds of facts is worked out anew.
        is_long = sum(map(len, facts.values())) > MOST_WITH_HISTORY
        has_changes = chosen == "changes" or not chosen and not is_long
        changes = await self._reports.changes(caller, agents) if has_changes else []
        lists: dict[str, Sequence[Any]] = {
            "facts": [KnownFact(name, fact) for name, found in facts.items() for fact in found],
            "pins": [ReportedTopic(name, pin) for name, found in pins.items() for pin in found],
            "state": [
                _KnownValue(name, key, _value_text(value), key in kept.unverified)
                for name, kept in state.items()
                for key, value in kept.items()
            ],
            "changes": changes[: -MAX_CHANGES - 1 : -1],
        }
        page = page_number(request.query_params.get("page", ""))
        return await self._guard.html(
            "caller.html",
            session,
            here="callers",
            caller=caller,
            name=names.get(caller, ""),
            names=names,
            agents=agents,
            lists={
                name: _part(items, LISTED[name], page) if name == chosen else _part(items, FIRST[name], 0)
                for name, items in lists.items()
            },
            chosen=chosen,
            has_changes=has_changes,
            page=page,
            calls=calls,
            call_count=await self._rows.count(CallRowFilter(caller=caller)),
            caller_param=request.path_params["who"],
            others=others,
            failures=FAILURES,
            notice=_NOTICES.get(request.query_params.get("done", ""), ""),
        )

    async def _export(self, request: Request, session: LoginSession) -> Response:
        report = await self._reports.of(self._caller(request))
        body = orjson.dumps(report.as_json(), default=str, option=orjson.OPT_INDENT_2)
        name = f"caller-{report.caller[-4:]}.json" if report.caller[-4:].isdecimal() else "caller.json"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(body, media_type="application/json", headers=headers)

    # Changing

    async def _change_fact(self, request: Request, session: LoginSession, form: Form) -> Response:
        caller, agent, fact = self._caller(request), form.get("agent", ""), form.get("fact", "")
        deletes, note = form.get("do") == "forget", audit_note()
        note.agent, note.action = agent, AuditAction.FACT_ERASE if deletes else AuditAction.FACT_CORRECT
        text = "" if deletes else unlabelled(_line(form.get("text", "")))
        if not deletes:
            # Saving what is unverified confirms it.
            known = [one for one in await self._facts.known(agent, caller, MAX_FACTS) if not one.trust.mark]
            if text in (unlabelled(_line(cleaned(labelled(one.text)))) for one in known if one.id == fact):
                return self._same(request)
            if not 0 < len(text) <= MAX_FACT_CHARACTERS:
                raise HTTPException(400, f"Not saved. A fact has 1 to {MAX_FACT_CHARACTERS} characters.")
            if not is_plain_line(text):
                raise HTTPException(400, "Not saved. The fact has a control character; delete it.")
        if not await self._facts.correct(agent, caller, fact, text, by=_by_operator(), now=datetime.now(UTC)):
            raise HTTPException(404, "Fact not found. It may have been deleted or replaced.")
        return self._back(request, "forgot-fact" if deletes else "fact")

    async def _change_pin(self, request: Request, session: LoginSession, form: Form) -> Response:
        """Pin, change or unpin a topic, for an agent that this caller has talked to."""
        caller, agent, title = self._caller(request), form.get("agent", ""), " ".join(form.get("title", "").split())
        unpins, note = form.get("do") == "unpin", audit_note()
        note.agent, note.action = agent, AuditAction.TOPIC_UNPIN if unpins else AuditAction.TOPIC_PIN
        if agent not in await self._reports.agents_of(caller):
            raise HTTPException(404, "Agent not found. This caller has not talked to it.")
        if unpins:
            if not await self._pins.unpin(agent, caller, title):
                raise HTTPException(404, "Topic not found. It is no longer pinned.")
            return self._back(request, "unpinned")
        items = [item.strip() for item in form.get("items", "").splitlines() if item.strip()]
        # A field that the form does not have stays as it is; one that was emptied is cleared.
        about, status = (form[name].strip() if name in form else None for name in ("about", "status"))
        open_items, closed = items if "items" in form else None, form.get("do") == "close"
        if form.get("do") == "save":
            pins = await self._pins.pinned(agent, caller, MAX_FACTS, closed=True)
            if pin := next((one for one in pins if one.title == title), None):
                closed = not pin.is_open
                shown = cleaned(pin.about), cleaned(pin.status), [cleaned(item) for item in pin.open_items]
                if (about, status, open_items) == shown and not pin.trust.mark:
                    return self._same(request)
        try:
            await self._pins.pin(agent, caller, title, about=about, status=status, open_items=open_items, closed=closed)
        except ValueError as error:
            raise HTTPException(400, f"Not pinned. The topic is not valid: {error}.") from None
        return self._back(request, "pin")

    async def _change_state(self, request: Request, session: LoginSession, form: Form) -> Response:
        caller, agent, key = self._caller(request), form.get("agent", ""), form.get("key", "")
        deletes, note = form.get("do") == "forget", audit_note()
        note.agent, note.action = agent, AuditAction.STATE_ERASE if deletes else AuditAction.STATE_CORRECT
        state = await self._state.load(agent, caller)
        if key not in state:
            raise HTTPException(404, "Value not found. It may have been deleted.")
        if deletes:
            await self._state.drop(agent, caller, key)
            return self._back(request, "forgot-state")
        text = form.get("value", "").replace("\r\n", "\n")
        if text == cleaned(_value_text(state[key])) and key not in state.unverified:
            return self._same(request)
        values = {key: _value(text)}
        try:
            await self._state.save(agent, caller, values, session_id=_by_operator(), now=datetime.now(UTC))
        except ValueError as error:
            raise HTTPException(400, f"Not saved. The value is not valid: {error}.") from None
        return self._back(request, "state")

    async def _forget(self, request: Request, session: LoginSession, form: Form) -> Response:
        caller = self._caller(request)
        if form.get("sure") != "yes":
            raise HTTPException(400, "Not confirmed. Tick the box to forget this caller.")
        try:
            found = await self._eraser.find_all(caller)
            result = await self._eraser.erase_all(found)
        except StoreError:
            raise HTTPException(503, "A store is unreachable. Not everything was deleted; try again.") from None
        for session_id in (session_id for data in found for session_id in data.sessions):
            self._recordings.drop(session_id.removeprefix("voice-session:"))
        unfinished = any(data.unfinished for data in found)
        if not result.is_complete:
            audit_note().outcome = AuditOutcome.INCOMPLETE
        left = {
            "under-way": unfinished,
            "remote": result.remote_left,
            "busy": result.unscrubbed,
            "unreadable": result.unreadable,
        }
        return RedirectResponse(
            f"/callers?done={next((reason for reason, remains in left.items() if remains), 'forgotten')}", 303
        )

    def _caller(self, request: Request) -> str:
        if caller := self._params.unseal(request.path_params["who"]):
            return caller
        raise HTTPException(404, "Caller not found.")

    def _same(self, request: Request) -> Response:
        audit_note().action = None
        return self._back(request, "same")

    @staticmethod
    def _back(request: Request, done: str) -> Response:
        return RedirectResponse(f"/callers/{request.path_params['who']}?done={done}", 303)


def _part(items: Sequence[Any], size: int, page: int) -> _Part:
    start = page * size
    return _Part(items[start : start + size], len(items), len(items) > start + size)


def _line(text: str) -> str:
    return " ".join(text.split())


def _value_text(value: Value) -> str:
    """As JSON if it is not text, or text that `_value` would read as JSON."""
    return value if isinstance(value, str) and _value(value) == value else orjson.dumps(value).decode()


def _by_operator() -> str:
    """A source id in place of a session: an operator made the change."""
    return f"operator:{uuid.uuid4()}"


def _value(text: str) -> Value:
    """Parsed as JSON if possible, otherwise text."""
    try:
        value: Value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value
