"""
Audit entries of requests: each request that changes or exports something is logged before its response is sent.

`ROUTES` lists them. Handlers fill in what the path does not say, with `audit_note`. A request without valid credentials
is not an action and leaves no entry, except at the login.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Final

from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.history.audit_log import AuditAction, AuditLog, AuditNote, AuditOutcome

ROUTES: Final[Mapping[str, AuditAction | None]] = {
    "GET /login": AuditAction.LOGIN,
    "POST /login": AuditAction.LOGIN,
    "POST /logout": AuditAction.LOGOUT,
    "GET /callers/{who}/export.json": AuditAction.CALLER_EXPORT,
    "POST /callers/{who}/facts": AuditAction.FACT_CORRECT,
    "POST /callers/{who}/pins": AuditAction.TOPIC_PIN,
    "POST /callers/{who}/state": AuditAction.STATE_CORRECT,
    "POST /callers/{who}/forget": AuditAction.CALLER_ERASE,
    "GET /calls/export.csv": AuditAction.CALL_EXPORT,
    "GET /calls/export.json": AuditAction.CALL_EXPORT,
    "GET /calls/{id}/sound.wav": AuditAction.RECORDING_EXPORT,
    "POST /calls/{id}/revert": AuditAction.CALL_REVERT,
    "POST /calls/{id}/retry": AuditAction.CALL_RETRY,
    "GET /v1/sessions/{id}": AuditAction.CALL_EXPORT,
    "GET /live/{id}/listen.wav": AuditAction.CALL_LISTEN,
    "POST /live/{id}/say": AuditAction.CALL_SAY,
    "POST /live/{id}/end": AuditAction.CALL_END,
    "POST /agents/{name}/save": AuditAction.AGENT_CHANGE,
    "POST /agents/{name}/restore": AuditAction.AGENT_CHANGE,
    "POST /tokens/create": AuditAction.TOKEN_CREATE,
    "POST /tokens/{id}/revoke": AuditAction.TOKEN_REVOKE,
    "POST /v1/outbound/call": AuditAction.CALL_DIAL,
    "POST /v1/phone": AuditAction.PHONE_CALL,
    "POST /phone/call": AuditAction.PHONE_CALL,
    "POST /v1/phone/links": AuditAction.LINK_CREATE,
    "POST /phone/link": AuditAction.LINK_CREATE,
    "POST /phone/guest/call": AuditAction.LINK_USE,
    "PUT /v1/documents/{id}": AuditAction.DOCUMENT_CHANGE,
    "DELETE /v1/documents/{id}": AuditAction.DOCUMENT_DELETE,
    "POST /mcp": None,  # each tool that writes notes its action
}
MAX_REFUSED_LOGINS: Final = 30
"""Entries for failed logins in a minute, over all addresses; each address has far fewer attempts."""
REPEAT_SECONDS: Final = 600.0
"""A player requests a recording in many ranges: one entry for each person and recording in this time."""
_MAX_REPEATS: Final = 1000
_MINUTE: Final = 60.0

_note: ContextVar[AuditNote] = ContextVar("audit note")


def audit_note() -> AuditNote:
    """The note of the request under way, to fill in. What is written to it outside of such a request is dropped."""
    return _note.get(None) or AuditNote()


class RequestAudit:
    """Wraps routes. `unseal` opens the caller in a path; `clock` counts seconds."""

    def __init__(
        self, log: AuditLog, unseal: Callable[[str], str | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._unseal = unseal
        self._clock = clock
        self._refused_logins: deque[float] = deque(maxlen=MAX_REFUSED_LOGINS)
        self._repeats: OrderedDict[tuple[str, str], float] = OrderedDict()

    def wrap(self, routes: Iterable[BaseRoute]) -> list[BaseRoute]:
        """The same routes, with those in ROUTES audited."""
        wrapped, paths = list(routes), {name.partition(" ")[2] for name in ROUTES}
        for route in wrapped:
            if isinstance(route, Route) and route.path in paths:
                route.app = self._audited(route.path, route.app)
        return wrapped

    def _audited(self, path: str, app: ASGIApp) -> ASGIApp:
        async def audited(scope: Scope, receive: Receive, send: Send) -> None:
            if (name := f"{scope['method']} {path}") not in ROUTES:
                return await app(scope, receive, send)
            note = self._begin(scope, ROUTES[name])
            started = False

            async def send_after_entry(message: Message) -> None:
                nonlocal started
                if message["type"] == "http.response.start" and not started:
                    started = True
                    await self._write(note, scope, message["status"], Headers(raw=message["headers"]))
                await send(message)

            reset = _note.set(note)
            try:
                await app(scope, receive, send_after_entry)
            finally:
                _note.reset(reset)
                if not started:
                    await self._write(note, scope, 500, Headers())

        return audited

    def _begin(self, scope: Scope, action: AuditAction | None) -> AuditNote:
        given: Mapping[str, str] = scope["path_params"]
        note = AuditNote(action, address=scope["client"][0] if scope.get("client") else "")
        note.caller = self._unseal(given["who"]) or "" if "who" in given else ""
        if "id" in given and scope["path"].startswith(("/v1/documents/", "/tokens/")):
            note.item = given["id"]
        elif "id" in given:
            note.session = f"voice-session:{given['id']}"
        return note

    async def _write(self, note: AuditNote, scope: Scope, status: int, headers: Headers) -> None:
        note.actor = note.actor or scope.get("state", {}).get("actor", "")
        if note.outcome is None and status >= 400:
            note.outcome = AuditOutcome.FAILED if status >= 500 else AuditOutcome.REFUSED
        match note.action:
            case AuditAction.LOGIN:
                is_action = "set-cookie" in headers or status == 401 and self._counts_login(note)
            case AuditAction.RECORDING_EXPORT:
                is_action = status < 400 and not self._is_repeat(note)
            case AuditAction.LINK_USE:
                is_action = status < 400
            case _:
                is_action = status != 401 and bool(note.actor)  # without an actor the token was wrong
        if is_action:
            await self._log.write(note)

    def _counts_login(self, note: AuditNote) -> bool:
        """False for too many failed logins in a minute: a stranger must not fill the log."""
        note.actor, now = "unknown", self._clock()
        if len(self._refused_logins) == MAX_REFUSED_LOGINS and now - self._refused_logins[0] < _MINUTE:
            return False
        self._refused_logins.append(now)
        return True

    def _is_repeat(self, note: AuditNote) -> bool:
        key, now = (note.actor, note.session), self._clock()
        if now - self._repeats.get(key, -REPEAT_SECONDS) < REPEAT_SECONDS:
            return True
        self._repeats[key] = now
        if len(self._repeats) > _MAX_REPEATS:
            self._repeats.popitem(last=False)
        return False
