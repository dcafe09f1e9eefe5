"""The audit log for people: newest first, with filters."""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.history.audit_log import AuditAction, AuditFilter, AuditLog
from gateway.telephony.phone_numbers import e164
from gateway.web.dashboard.html import midnight, page_url
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

PAGE_ROWS: Final = 100
_PARAMS: Final = ("of", "actor", "action", "since", "until", "zone", "below")
"""Query parameters. `of` (a caller) is sealed."""
LABELS: Final[Mapping[str, str]] = {
    AuditAction.LOGIN: "Log in",
    AuditAction.LOGIN_LINK: "Create a login link",
    AuditAction.LOGOUT: "Log out",
    AuditAction.CALLER_EXPORT: "Export a caller",
    AuditAction.CALLER_ERASE: "Erase a caller",
    AuditAction.RECORDING_EXPORT: "Open a recording",
    AuditAction.RECORDING_ROTATE: "Change the recording key",
    AuditAction.CALL_EXPORT: "Export calls",
    AuditAction.CALL_REVERT: "Undo a call",
    AuditAction.CALL_RETRY: "Retry post-call processing",
    AuditAction.CALL_IMPORT: "Import calls",
    AuditAction.CALL_DIAL: "Place an outbound call",
    AuditAction.CALL_LISTEN: "Listen in",
    AuditAction.CALL_SAY: "Make the agent say something",
    AuditAction.CALL_END: "End a call",
    AuditAction.FACT_CORRECT: "Correct a fact",
    AuditAction.FACT_ERASE: "Erase a fact",
    AuditAction.TOPIC_PIN: "Pin a topic",
    AuditAction.TOPIC_UNPIN: "Unpin a topic",
    AuditAction.STATE_CORRECT: "Correct stored state",
    AuditAction.STATE_ERASE: "Erase stored state",
    AuditAction.MEMORY_REBUILD: "Rebuild memory",
    AuditAction.MEMORY_UNDO: "Undo a memory change",
    AuditAction.MEMORY_ADD: "Add to memory",
    AuditAction.PIN_SET: "Set a PIN",
    AuditAction.PIN_REMOVE: "Remove a PIN",
    AuditAction.PHONE_CALL: "Call from the browser",
    AuditAction.LINK_CREATE: "Create a test link",
    AuditAction.LINK_USE: "Use a test link",
    AuditAction.PERSONA_ADD: "Change a persona",
    AuditAction.AGENT_CHANGE: "Change an agent",
    AuditAction.DOCUMENT_CHANGE: "Change a document",
    AuditAction.DOCUMENT_DELETE: "Delete a document",
    AuditAction.TOKEN_CREATE: "Create a token",
    AuditAction.TOKEN_REVOKE: "Revoke a token",
    AuditAction.NUMBER_SETUP: "Point a number here",
    AuditAction.AUDIT_TRIM: "Remove old entries",
}


def _groups() -> dict[str, list[AuditAction]]:
    """The actions by the first part of their name."""
    groups: dict[str, list[AuditAction]] = {}
    for action in AuditAction:
        groups.setdefault(action.partition(".")[0], []).append(action)
    return groups


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
            since=midnight(chosen["since"], zone=chosen["zone"]),
            before=midnight(chosen["until"], days=1, zone=chosen["zone"]),
        )
        below = int(chosen["below"]) if chosen["below"].isdecimal() and len(chosen["below"]) < 10 else 0
        entries = await self._audit.page(filter_, limit=PAGE_ROWS + 1, below=below)
        last = str(entries[PAGE_ROWS - 1].number) if len(entries) > PAGE_ROWS else ""
        return await self._guard.html(
            "audit.html",
            session,
            here="audit",
            entries=entries[:PAGE_ROWS],
            total=await self._audit.count(filter_),
            chosen=chosen,
            caller=caller,
            is_filtered=filter_ != AuditFilter(),
            groups=_groups(),
            labels=LABELS,
            first=page_url("/audit", {**chosen, "below": ""}) if below else "",
            older=page_url("/audit", {**chosen, "below": last}) if last else "",
        )

    async def _find(self, request: Request, session: LoginSession, form: Form) -> Response:
        """Redirect to the list with the caller sealed, so that the number appears in no log."""
        caller = e164(form.get("caller", "")) or form.get("caller", "").strip()[:200]
        sealed = self._guard.params.seal(caller) if caller else ""
        chosen = {name: form.get(name, "") for name in _PARAMS} | {"below": "", "of": sealed}
        return RedirectResponse(page_url("/audit", chosen), 303)
