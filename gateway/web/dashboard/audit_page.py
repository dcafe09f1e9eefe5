"""The audit log for people: newest first, with filters."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.history.audit_log import AuditAction, AuditFilter, AuditLog
from gateway.telephony.phone_numbers import e164
from gateway.web.dashboard.html import midnight
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

PAGE_ROWS: Final = 100
_PARAMS: Final = ("of", "actor", "action", "since", "until", "below")
"""Query parameters. `of` (a caller) is sealed."""
_ACTIONS: Final = sorted({*AuditAction, *(action.partition(".")[0] for action in AuditAction)})
"""Groups and single actions."""


class AuditPage:
    def __init__(self, guard: LoginGuard, audit: AuditLog) -> None:
        self._guard = guard
        self._audit = audit

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/audit", guard.page(self._show)),
            Route("/audit/find", guard.action(self._find), methods=["POST"]),
        ]

    async def _show(self, request: Request, session: LoginSession) -> Response:
        chosen = {name: request.query_params.get(name, "") for name in _PARAMS}
        caller = self._guard.params.unseal(chosen["of"]) or ""
        filter_ = AuditFilter(
            actor=chosen["actor"],
            action=chosen["action"],
            caller_hash=self._audit.hash_of(caller),
            since=midnight(chosen["since"]),
            before=midnight(chosen["until"], days=1),
        )
        below = int(chosen["below"]) if chosen["below"].isdecimal() and len(chosen["below"]) < 10 else 0
        entries = await self._audit.page(filter_, limit=PAGE_ROWS + 1, below=below)
        older = _url({**chosen, "below": str(entries[PAGE_ROWS - 1].number)}) if len(entries) > PAGE_ROWS else ""
        return await self._guard.html(
            "audit.html",
            session,
            here="audit",
            entries=entries[:PAGE_ROWS],
            total=await self._audit.count(filter_),
            chosen=chosen,
            caller=caller,
            is_filtered=filter_ != AuditFilter(),
            actions=_ACTIONS,
            first=_url({**chosen, "below": ""}) if below else "",
            older=older,
        )

    async def _find(self, request: Request, session: LoginSession, form: Form) -> Response:
        """Redirect to the list with the caller sealed, so that the number appears in no log."""
        caller = e164(form.get("caller", "")) or form.get("caller", "").strip()[:200]
        chosen = {name: form.get(name, "") for name in _PARAMS} | {"below": ""}
        return RedirectResponse(_url({**chosen, "of": self._guard.params.seal(caller) if caller else ""}), 303)


def _url(chosen: Mapping[str, str]) -> str:
    given = {name: value for name, value in chosen.items() if value}
    return f"/audit?{urlencode(given)}" if given else "/audit"
