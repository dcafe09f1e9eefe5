"""
The browser phone: a page of the dashboard, and a page for guests with a link for one call.

The link carries its token after #, which browsers do not send; the page's script posts it once. Placing a call returns
a watch token, which gives access to the call's transcript and to what the agent remembers.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.agents import Agent
from gateway.memory.identity import only_person
from gateway.memory.recall import Recall, is_of
from gateway.memory.remem_client import NoRemem
from gateway.memory.store import MemoryStore
from gateway.memory.summary_parser import PastCall
from gateway.web.admin_json import RequestRejected
from gateway.web.auth import GuestLink, LoginSession, SealedParam, TokenCodec, WatchToken, bearer_token
from gateway.web.live import LiveEventsEndpoint
from gateway.web.login import Form, LoginGuard
from gateway.web.softphone import GUEST_PATH, CallRequest, SoftphoneEndpoint

EXAMPLES: Final = ("+12025550143", "+12025550144", "+12025550145")
"""Suggested callers, from the range reserved for examples."""
MAX_FACTS: Final = 12
MAX_CALLS: Final = 3
_MICROPHONE: Final = {"Permissions-Policy": "camera=(), geolocation=(), microphone=(self)"}


class PhonePages:
    def __init__(
        self,
        guard: LoginGuard,
        softphone: SoftphoneEndpoint,
        store: MemoryStore,
        live: LiveEventsEndpoint,
        params: SealedParam,
        agents: Iterable[Agent],
    ) -> None:
        self._guard = guard
        self._softphone = softphone
        self._recall = Recall(store, NoRemem(), MAX_CALLS)
        self._live = live
        self._params = params
        self._agents = [agent.name for agent in agents]

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/phone", guard.page(self._show)),
            Route("/phone/call", guard.action(self._call), methods=["POST"]),
            Route("/phone/link", guard.action(self._link), methods=["POST"]),
            Route(GUEST_PATH, guard.public(self._show_guest)),
            Route(f"{GUEST_PATH}/call", guard.public_action(self._guest_call), methods=["POST"]),
            Route("/phone/events", _CallEvents(self._softphone.tokens, self._live)),
            Route("/phone/memory", guard.public(self._memory)),
        ]

    # For the logged-in operator

    async def _show(self, request: Request, session: LoginSession) -> Response:
        page = await self._guard.html("phone.html", session, here="phone", agents=self._agents, examples=EXAMPLES)
        page.headers.update(_MICROPHONE)
        return page

    async def _call(self, request: Request, session: LoginSession, form: Form) -> Response:
        try:
            call = _call_request(form)
            placed = await self._softphone.place_call(request, call)
        except RequestRejected as error:
            return PlainTextResponse(str(error), error.status)
        return JSONResponse({**placed, "caller_page": f"/callers/{self._params.seal(call.caller)}"}, 201)

    async def _link(self, request: Request, session: LoginSession, form: Form) -> Response:
        try:
            return PlainTextResponse(self._softphone.guest_link(request, _call_request(form)), 201)
        except RequestRejected as error:
            return PlainTextResponse(str(error), error.status)

    # For guests

    async def _show_guest(self, request: Request) -> Response:
        page = await self._guard.html("guest.html", None)
        page.headers.update(_MICROPHONE)
        return page

    async def _guest_call(self, request: Request, form: Form) -> Response:
        link = self._softphone.tokens.read(GuestLink, form.get("pass", ""), time.time())
        if link is None:
            return PlainTextResponse("This link has expired or is incomplete. Ask for a new one.", 403)
        try:
            return JSONResponse(await self._softphone.place_guest_call(request, link), 201)
        except RequestRejected as error:
            return PlainTextResponse(str(error), error.status)

    # For both, with a watch token

    async def _memory(self, request: Request) -> Response:
        """What the agent knows about the caller now."""
        token = _watch_token(self._softphone.tokens, request.headers)
        if token is None:
            return PlainTextResponse("Access to this call has expired.", 401)
        if not token.caller:
            return JSONResponse({"facts": [], "calls": []})
        facts = await self._recall.known_facts(token.agent, token.caller)
        person = only_person([fact.person for fact in facts])  # facts of several people on one number are not shown
        calls = await self._recall.own_calls(token.agent, token.caller)
        return JSONResponse(
            {
                "facts": [fact.text for fact in facts if is_of(fact.person, person)][:MAX_FACTS],
                "calls": [_summary(call) for call in calls],
            }
        )


@dataclass(frozen=True)
class _CallEvents:
    """The events of one call, with its watch token. A class: Starlette treats a function as a request handler."""

    tokens: TokenCodec
    live: LiveEventsEndpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _watch_token(self.tokens, Headers(scope=scope))
        if token is None or scope["method"] != "GET":
            refusal = PlainTextResponse("Access to this call has expired.", 401)
            return await refusal(scope, receive, send)
        await self.live.stream_of(token.session, scope, receive, send)


def _watch_token(tokens: TokenCodec, headers: Headers) -> WatchToken | None:
    return tokens.read(WatchToken, bearer_token(headers), time.time())


def _call_request(form: Mapping[str, str]) -> CallRequest:
    return CallRequest("" if form.get("withheld") else form.get("caller", "").strip(), form.get("called", "").strip())


def _summary(call: PastCall) -> dict[str, Any]:
    """A call in a few words. Without a language model topics are quotations; only the caller's are shown."""
    about = [topic.removeprefix("Caller: ") for topic in call.topics if not topic.startswith("Agent: ")]
    return {"at": call.started_at.isoformat(), "about": [*about[:3], *call.action_items[:2]] or [call.context]}
