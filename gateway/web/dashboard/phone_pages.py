"""
The browser phone: a page of the dashboard, and a page of its own for whoever was given a link for one call.

The link's pass stands behind # in its address, which a browser sends to nobody; the page's script posts it once. With
the call comes a pass to follow it: what is said, and what the agent remembers.
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
from gateway.web.guest_links import GuestLink, TokenCodec, WatchToken
from gateway.web.live import LiveEventsEndpoint
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession, SealedParam
from gateway.web.softphone import GUEST_PATH, CallRequest, SoftphoneEndpoint

EXAMPLES: Final = ("+12025550143", "+12025550144", "+12025550145")
"""Callers to choose from: numbers that nobody has."""
MOST_FACTS: Final = 12
MOST_CALLS: Final = 3
_MICROPHONE: Final = {"Permissions-Policy": "camera=(), geolocation=(), microphone=(self)"}


class PhonePages:
    def __init__(
        self,
        entrance: LoginGuard,
        booth: SoftphoneEndpoint,
        store: MemoryStore,
        live: LiveEventsEndpoint,
        envelope: SealedParam,
        agents: Iterable[Agent],
    ) -> None:
        self._entrance = entrance
        self._booth = booth
        self._recall = Recall(store, NoRemem(), MOST_CALLS)
        self._live = live
        self._envelope = envelope
        self._agents = [agent.name for agent in agents]

    def routes(self) -> list[Route]:
        door = self._entrance
        return [
            Route("/phone", door.page(self._show)),
            Route("/phone/call", door.action(self._call), methods=["POST"]),
            Route("/phone/link", door.action(self._link), methods=["POST"]),
            Route(GUEST_PATH, door.public(self._show_guest)),
            Route(f"{GUEST_PATH}/call", door.public_action(self._call_once), methods=["POST"]),
            Route("/phone/events", _Followed(self._booth.passes, self._live)),
            Route("/phone/memory", door.public(self._remembered)),
        ]

    # Whoever has the admin token

    async def _show(self, request: Request, visit: LoginSession) -> Response:
        page = await self._entrance.html("phone.html", visit, here="phone", agents=self._agents, examples=EXAMPLES)
        page.headers.update(_MICROPHONE)
        return page

    async def _call(self, request: Request, visit: LoginSession, form: Form) -> Response:
        try:
            wish = _wish(form)
            placed = await self._booth.place_call(request, wish)
        except RequestRejected as problem:
            return PlainTextResponse(str(problem), problem.status)
        return JSONResponse({**placed, "caller_page": f"/callers/{self._envelope.seal(wish.caller)}"}, 201)

    async def _link(self, request: Request, visit: LoginSession, form: Form) -> Response:
        try:
            return PlainTextResponse(self._booth.link(request, _wish(form)), 201)
        except RequestRejected as problem:
            return PlainTextResponse(str(problem), problem.status)

    # Whoever has a link

    async def _show_guest(self, request: Request) -> Response:
        page = await self._entrance.html("guest.html", None)
        page.headers.update(_MICROPHONE)
        return page

    async def _call_once(self, request: Request, form: Form) -> Response:
        link = self._booth.passes.read(GuestLink, form.get("pass", ""), time.time())
        if link is None:
            return PlainTextResponse("This link is too old, or not whole. Ask for another one.", 403)
        try:
            return JSONResponse(await self._booth.ring_once(request, link), 201)
        except RequestRejected as problem:
            return PlainTextResponse(str(problem), problem.status)

    # Whoever has placed a call

    async def _remembered(self, request: Request) -> Response:
        """What is known of the caller now, as the agent is told it."""
        watch = _watch(self._booth.passes, request.headers)
        if watch is None:
            return PlainTextResponse("This call can't be followed any more.", 401)
        if not watch.caller:
            return JSONResponse({"facts": [], "calls": []})
        facts = await self._recall.known_facts(watch.agent, watch.caller)
        person = only_person([fact.person for fact in facts])  # of several on one number, nobody is told of
        calls = await self._recall.own_calls(watch.agent, watch.caller)
        return JSONResponse(
            {
                "facts": [fact.text for fact in facts if is_of(fact.person, person)][:MOST_FACTS],
                "calls": [_told(call) for call in calls],
            }
        )


@dataclass(frozen=True)
class _Followed:
    """The events of one call, for the bearer of its pass. A class, since Starlette takes a function for an endpoint."""

    passes: TokenCodec
    live: LiveEventsEndpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = _watch(self.passes, Headers(scope=scope))
        if watch is None or scope["method"] != "GET":
            refusal = PlainTextResponse("This call can't be followed.", 401)
            return await refusal(scope, receive, send)
        await self.live.stream_of(watch.session, scope, receive, send)


def _watch(passes: TokenCodec, headers: Headers) -> WatchToken | None:
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    return passes.read(WatchToken, bearer.strip(), time.time()) if scheme.lower() == "bearer" else None


def _wish(form: Mapping[str, str]) -> CallRequest:
    return CallRequest("" if form.get("withheld") else form.get("caller", "").strip(), form.get("called", "").strip())


def _told(call: PastCall) -> dict[str, Any]:
    """In a few words. Without a language model topics are quotations, of which the caller's are worth showing."""
    about = [topic.removeprefix("Caller: ") for topic in call.topics if not topic.startswith("Agent: ")]
    return {"at": call.started_at.isoformat(), "about": [*about[:3], *call.action_items[:2]] or [call.context]}
