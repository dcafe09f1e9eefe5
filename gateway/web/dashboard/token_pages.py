"""The Tokens page: list, create and revoke API tokens, and end every login."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.agents import Agent
from gateway.history.api_tokens import DEFAULT_DAYS, TokenScope, TokenTable
from gateway.history.calls_table import CallsTable
from gateway.memory.stores.store import MemoryStore
from gateway.telephony.phone_numbers import e164
from gateway.web.audit import audit_note
from gateway.web.dashboard.html import page_number
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession

SCOPES: Final = {
    TokenScope.READ: "calls, live events, documents",
    TokenScope.STORE: "read and write documents",
    TokenScope.MCP: "personas and memory by MCP",
    TokenScope.OUTBOUND: "place outbound calls",
    TokenScope.LLM: "answers for ElevenLabs",
    TokenScope.WIDGET: "calls from a website",
    TokenScope.ADMIN: "everything, this page too",
}
PAGE_ROWS: Final = 50
PERIODS: Final = {7: "7 days", 30: "30 days", DEFAULT_DAYS: f"{DEFAULT_DAYS} days", 365: "1 year", 0: "No expiry"}


class TokenPages:
    def __init__(self, guard: LoginGuard, tokens: TokenTable, store: MemoryStore, agents: Iterable[Agent]) -> None:
        self._guard = guard
        self._rows = CallsTable(store)
        self._tokens = tokens
        self._agents = [agent.name for agent in agents]

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/tokens", guard.page(self._show)),
            Route("/tokens/create", guard.action(self._create), methods=["POST"]),
            Route("/tokens/create", guard.page(self._show_again)),
            Route("/tokens/{id}/revoke", guard.action(self._revoke), methods=["POST"]),
        ]

    async def _show(self, request: Request, session: LoginSession) -> Response:
        page = page_number(request.query_params.get("page", ""))
        return await self._page(session, page=page, notice="Revoked." if request.query_params.get("done") else "")

    async def _show_again(self, request: Request, session: LoginSession) -> Response:
        """The answer to a form is a page, which may be opened again at its address."""
        return RedirectResponse("/tokens", 303)

    async def _create(self, request: Request, session: LoginSession, form: Form) -> Response:
        caller, days = form.get("caller", "").strip(), form.get("days", "")
        try:
            if caller and e164(caller) is None:
                raise ValueError("the caller must be a phone number like +12025550143")
            token, text = await self._tokens.create(
                TokenScope(form.get("scope", "")),
                days=int(days),
                label=form.get("label", "").strip(),
                agent=form.get("agent", ""),
                caller=e164(caller) or "",
            )
        except ValueError as problem:
            raise HTTPException(400, f"Token not created. {str(problem).capitalize()}.") from None
        note = audit_note()
        note.item, note.agent, note.caller = token.id, token.agent, token.caller
        # Not a redirect: the text is shown once and stored nowhere.
        return await self._page(session, created=text)

    async def _revoke(self, request: Request, session: LoginSession, form: Form) -> Response:
        if form.get("sure") != "yes" or not await self._tokens.revoke(request.path_params["id"]):
            raise HTTPException(400, "Token not revoked. Tick the box to confirm; it may also be revoked already.")
        return RedirectResponse("/tokens?done=revoked", 303)

    async def _page(self, session: LoginSession, *, page: int = 0, created: str = "", notice: str = "") -> Response:
        now, tokens = datetime.now(UTC), await self._tokens.tokens()
        shown = tokens[page * PAGE_ROWS : (page + 1) * PAGE_ROWS]
        return await self._guard.html(
            "tokens.html",
            session,
            here="tokens",
            rows=[(token, token.status(now)) for token in shown],
            page=page,
            more=len(tokens) > (page + 1) * PAGE_ROWS,
            total=len(tokens),
            names=await self._rows.names_of_callers(token.caller for token in shown),
            own=session.token,
            scopes=SCOPES,
            periods=PERIODS,
            default_days=DEFAULT_DAYS,
            agents=self._agents,
            created=created,
            notice=notice,
        )
