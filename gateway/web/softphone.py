"""
The gateway's own phone: calls without a carrier, placed as any caller.

`POST /v1/phone` accepts a call and returns a short-lived, single-use token for its media socket, which speaks the
protocol of Twilio Media Streams. `gateway call` and the browser phone are its clients. `POST /v1/phone/links` creates a
link to the browser phone for one call by a guest: it carries its token after #, which browsers do not send, and the
page's script posts it once. Placing a call returns a watch token, which gives access to the call's transcript and to
what the agent remembers.
"""

import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, TypeVar

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gateway.agents import Agent, AgentDirectory
from gateway.calls.call_table import CallTimeouts
from gateway.calls.manager import CallManager, Refusal
from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable
from gateway.history.calls_table import CallsTable
from gateway.memory.facts import labelled
from gateway.memory.identity import only_person
from gateway.memory.recall import Recall, is_of, most_trusted
from gateway.memory.remem_client import NoRemem
from gateway.memory.stores.store import MemoryStore
from gateway.memory.summary_parser import PastCall
from gateway.sealing import Sealer
from gateway.session import TrustLevel
from gateway.settings import Secret
from gateway.telephony.phone_numbers import Attestation, e164
from gateway.telephony.twilio import SOFTPHONE_ACCOUNT, SoftphoneCodec
from gateway.web.audit import audit_note
from gateway.web.auth import Authenticator, GuessThrottle, bearer_token
from gateway.web.login import Form, LoginGuard
from gateway.web.login_sessions import LoginSession
from gateway.web.request import PublicUrl, json_endpoint, read_json, text_field
from gateway.web.sessions import LiveEventsEndpoint

PATH: Final = "/v1/phone"
MEDIA_PATH: Final = "/phone/media"
GUEST_PATH: Final = "/phone/guest"
LINK_SECONDS: Final = 24 * 3600
WATCH_SECONDS: Final = 6 * 3600
"""Longer than any call, so that its post-call processing can be followed too."""

EXAMPLES: Final = ("+12025550143", "+12025550144", "+12025550145")
"""Suggested callers, from the range reserved for examples."""
MAX_SUGGESTED: Final = 10
"""Recent callers, suggested too."""
MAX_FACTS: Final = 12
MAX_CALLS: Final = 3
_EXPIRED: Final = "Access to this call has expired."
_MAX_NAME: Final = 100
MICROPHONE: Final = {"Permissions-Policy": "camera=(), geolocation=(), microphone=(self)"}
"""Headers of a page with a phone."""


@dataclass(frozen=True)
class CallRequest:
    """`caller` is empty for a withheld number; `called` is a phone number or an agent's name."""

    caller: str = ""
    called: str = ""
    user_identity: str = ""
    """The id of a website's user."""
    user_name: str = ""

    def __post_init__(self) -> None:
        if self.caller and e164(self.caller) is None:
            raise HTTPException(400, "caller must be a phone number like +12025550143, or omitted")
        if len(self.called) > _MAX_NAME:
            raise HTTPException(400, "called must be a phone number or an agent's name")


class CallRefused(HTTPException):
    """503. The text is for the operator."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(503, str(refusal))
        self.is_busy = refusal.is_limit


class SoftphoneEndpoint:
    """Accepts calls with the admin token or a guest link. `store` records used links."""

    def __init__(
        self,
        manager: CallManager,
        public: PublicUrl,
        auth: Authenticator,
        tokens: "TokenCodec",
        store: ExpiringStore,
        agents: AgentDirectory,
    ) -> None:
        self._agents = agents
        self.tokens = tokens
        self._manager = manager
        self._public = public
        self.auth = auth
        self._store = store

    def routes(self) -> list[Route]:
        handlers = {PATH: self._post_call, f"{PATH}/links": self._post_link}
        return [Route(path, json_endpoint(handle, self.auth), methods=["POST"]) for path, handle in handlers.items()]

    async def place_call(self, request: Request, call: CallRequest, origin: str = "") -> dict[str, Any]:
        """
        Admit the call; return what the phone needs to open its media socket. Raises HTTPException.

        `origin`: the website that may follow the call.
        """
        note = audit_note()
        note.caller, call_id = call.caller, f"PH{uuid.uuid4().hex}"
        pending = await self._manager.accept(
            (SoftphoneCodec.name, call_id),
            caller=call.caller,
            called=call.called,
            media_url=self._public.socket_url(request, MEDIA_PATH),
            account_id=SOFTPHONE_ACCOUNT,
            attestation=Attestation.FULL,
            vouched=True,
            user_identity=call.user_identity,
            user_name=call.user_name,
        )
        if isinstance(pending, Refusal):
            raise CallRefused(pending)
        note.session, note.agent = pending.session_id, pending.agent.name
        expires, trust = int(time.time()) + WATCH_SECONDS, int(pending.access.level)
        watch = WatchToken(pending.session_id, pending.agent.name, pending.caller, expires, trust, origin)
        return {
            "call_id": call_id,
            "account_id": SOFTPHONE_ACCOUNT,
            "token": pending.token,
            "token_seconds": CallTimeouts().token,
            "media_path": self._media_path(),
            "agent": pending.agent.name,
            "watch": self.tokens.seal(watch),
        }

    def _media_path(self) -> str:
        """With a pass if the socket may be opened at a node that does not know the call."""
        if not self._manager.shares_calls:
            return MEDIA_PATH
        return f"{MEDIA_PATH}?pass={self.tokens.seal(MediaPass.valid_now())}"

    async def place_one_call(self, request: Request, link: "GuestLink | WidgetToken") -> dict[str, Any]:
        """Place the one call of a guest link or a widget's token. Raises HTTPException."""
        key = f"phone-link:{link.number}"
        try:
            if not await self._store.add(key, b"", LINK_SECONDS):
                raise HTTPException(403, "This link has already been used. Ask for a new one.")
            try:
                return await self.place_call(request, link.call, link.origin)
            except HTTPException:
                await self._store.delete(key)  # the call was not placed
                raise
        except SharedStoreUnavailable:
            raise HTTPException(503, "This link can't be checked right now. Try again in a moment.") from None

    def guest_link(self, request: Request, call: CallRequest) -> str:
        """The address of a page for one call."""
        audit_note().caller = call.caller
        link = GuestLink(call.caller, call.called, int(time.time()) + LINK_SECONDS)
        return f"{self._public.origin(request)}{GUEST_PATH}#{self.tokens.seal(link)}"

    async def _post_call(self, request: Request) -> Response:
        placed = await self.place_call(request, await self._call_request(request))
        return JSONResponse({**placed, "session": audit_note().session}, 201)

    async def _post_link(self, request: Request) -> Response:
        url = self.guest_link(request, await self._call_request(request))
        return JSONResponse({"url": url, "seconds": LINK_SECONDS}, 201)

    async def _call_request(self, request: Request) -> CallRequest:
        given = await read_json(request)
        call = CallRequest(text_field(given, "caller"), text_field(given, "called"))
        if call.called and e164(call.called) is None and self._agents.get(call.called) is None:
            names = ", ".join(agent.name for agent in self._agents)
            raise HTTPException(400, f"called must be a phone number or an agent's name: {names}")
        return call


# Pages


class PhonePages:
    """The browser phone: a page of the dashboard, and a page for guests."""

    def __init__(
        self,
        guard: LoginGuard,
        softphone: SoftphoneEndpoint,
        store: MemoryStore,
        live: LiveEventsEndpoint,
        agents: Iterable[Agent],
    ) -> None:
        self._guard = guard
        self._softphone = softphone
        self._throttle = softphone.auth.throttle
        self._rows = CallsTable(store)
        self._recall = Recall(store, NoRemem(), MAX_CALLS)
        self._live = live
        self._agents = [agent.name for agent in agents]

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/phone", guard.page(self._show)),
            Route("/phone/call", guard.action(self._call), methods=["POST"]),
            Route("/phone/link", guard.action(self._link), methods=["POST"]),
            Route("/phone/name", guard.action(self._name), methods=["POST"]),
            Route(GUEST_PATH, guard.public(self._show_guest)),
            Route(f"{GUEST_PATH}/call", guard.public_action(self._guest_call), methods=["POST"]),
            Route("/phone/events", _CallEvents(self._softphone.tokens, self._live, self._throttle)),
            Route("/phone/memory", guard.public(self._memory)),
        ]

    # For the logged-in operator

    async def _show(self, request: Request, session: LoginSession) -> Response:
        suggested = await suggested_callers(self._rows)
        page = await self._guard.html("phone.html", session, here="phone", agents=self._agents, suggested=suggested)
        page.headers.update(MICROPHONE)
        return page

    async def _call(self, request: Request, session: LoginSession, form: Form) -> Response:
        call = _call_in_form(form)
        placed = await self._softphone.place_call(request, call)
        return JSONResponse({**placed, "session": audit_note().session}, 201)

    async def _link(self, request: Request, session: LoginSession, form: Form) -> Response:
        return PlainTextResponse(self._softphone.guest_link(request, _call_in_form(form)), 201)

    async def _name(self, request: Request, session: LoginSession, form: Form) -> Response:
        """The name of the number to call as; empty if it is not known. A form, so that no log has the number."""
        caller = e164(form.get("caller", "")) or ""
        return PlainTextResponse((await self._rows.names_of_callers([caller])).get(caller, ""))

    # For guests

    async def _show_guest(self, request: Request) -> Response:
        page = await self._guard.html("guest.html", None)
        page.headers.update(MICROPHONE)
        return page

    async def _guest_call(self, request: Request, form: Form) -> Response:
        link = self._softphone.tokens.read(GuestLink, form.get("pass", ""), time.time())
        if link is None:
            problem = "This link has expired or is incomplete. Ask for a new one."
            raise self._throttle.refusal(request, problem, status=403)
        audit_note().actor = "guest"
        return JSONResponse(await self._softphone.place_one_call(request, link), 201)

    # For both, with a watch token

    async def _memory(self, request: Request) -> Response:
        """What the agent knows about the caller now, as far as the call's trust level allows."""
        token = _watch_token(self._softphone.tokens, request.headers)
        if token is None:
            raise self._throttle.refusal(request, _EXPIRED)
        if not token.caller:
            return JSONResponse({"facts": [], "calls": []})
        facts, calls = [], []
        if token.trust >= TrustLevel.EVERYTHING:
            facts = await self._recall.known_facts(token.agent, token.caller)
        if token.trust >= TrustLevel.SUMMARIES:
            calls = await self._recall.own_calls(token.agent, token.caller)
        # Facts of several people on one number are not shown.
        person = only_person(most_trusted((fact.trust, fact.person) for fact in facts))
        known = [labelled(fact.text) + _mark(fact.trust) for fact in facts if is_of(fact.person, person)][:MAX_FACTS]
        return JSONResponse({"facts": known, "calls": [_summary(call) for call in calls]})


async def suggested_callers(rows: CallsTable) -> list[tuple[str, str]]:
    """Numbers to call as, with names: examples, and the last callers."""
    recent = [row.caller for row in await rows.callers(limit=MAX_SUGGESTED)]
    callers = [caller for caller in dict.fromkeys([*EXAMPLES, *recent]) if e164(caller)]
    names = await rows.names_of_callers(callers)
    return [(caller, names.get(caller, "")) for caller in callers]


@dataclass(frozen=True)
class _CallEvents:
    """The events of one call, with its watch token. A class: Starlette treats a function as a request handler."""

    tokens: "TokenCodec"
    live: LiveEventsEndpoint
    throttle: GuessThrottle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _watch_token(self.tokens, Headers(scope=scope))
        if token is None or scope["method"] != "GET":
            problem = self.throttle.refusal(Request(scope), _EXPIRED)
            return await PlainTextResponse(problem.detail, problem.status_code, problem.headers)(scope, receive, send)
        await self.live.stream_of(token.session, scope, receive, send)


def _watch_token(tokens: "TokenCodec", headers: Headers) -> "WatchToken | None":
    return tokens.read(WatchToken, bearer_token(headers), time.time())


def _call_in_form(form: Mapping[str, str]) -> CallRequest:
    return CallRequest("" if form.get("withheld") else form.get("caller", "").strip(), form.get("called", "").strip())


def _summary(call: PastCall) -> dict[str, Any]:
    """A call in a few words. Without a language model topics are quotations; only the caller's are shown."""
    about = [topic.removeprefix("Caller: ") for topic in call.topics if not topic.startswith("Agent: ")]
    shown = [*about[:3], *call.action_items[:2]] or [call.context]
    return {"at": call.started_at.isoformat(), "about": [text + _mark(call.trust) for text in shown]}


def _mark(trust: TrustLevel) -> str:
    return " (unverified)" if trust.mark else ""


# Tokens


@dataclass(frozen=True)
class GuestLink:
    """The right to place one call as `caller`."""

    caller: str
    called: str
    expires: int
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    origin: ClassVar[str] = ""
    """Of the page that may follow the call; empty for our own."""

    @property
    def call(self) -> CallRequest:
        return CallRequest(self.caller, self.called)


@dataclass(frozen=True)
class WidgetToken:
    """The right to place one call from the pages of one website."""

    origin: str
    caller: str
    called: str
    user_identity: str
    user_name: str
    expires: int
    number: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def call(self) -> CallRequest:
        return CallRequest(self.caller, self.called, self.user_identity, self.user_name)


@dataclass(frozen=True)
class WatchToken:
    """The right to follow one call. `caller` is the key of its memory, `trust` the level at which it may be shown."""

    session: str
    agent: str
    caller: str
    expires: int
    trust: int = TrustLevel.NONE
    origin: str = ""
    """Of the website whose pages may follow the call; empty for our own."""


@dataclass(frozen=True)
class MediaPass:
    """The right to open a media socket at any node. The call's own token is checked with its `start`."""

    expires: int

    @classmethod
    def valid_now(cls) -> "MediaPass":
        """As long as the token of a call that rings."""
        return cls(int(time.time() + CallTimeouts().token))


P = TypeVar("P", GuestLink, WidgetToken, WatchToken, MediaPass)


class TokenCodec:
    """Encrypts links and tokens of calls, and reads them back. Times are seconds since 1970."""

    def __init__(self, admin_token: Secret) -> None:
        self._sealer = Sealer(admin_token, "phone passes")

    def seal(self, value: GuestLink | WidgetToken | WatchToken | MediaPass) -> str:
        return self._sealer.seal_text(orjson.dumps(asdict(value)), type(value).__name__)

    def read(self, kind: type[P], token: str, now: float) -> P | None:
        """None for a forged or expired token, or one of another kind."""
        content = self._sealer.open_text(token, kind.__name__)
        if content is None:
            return None
        try:
            found = kind(**orjson.loads(content))
        except TypeError:  # sealed by an earlier version
            return None
        return found if found.expires > now else None
