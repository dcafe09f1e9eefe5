"""
The browser phone for other websites: `/widget.js` shows a button that calls an agent.

The website's server authenticates its user and requests a token for one call (`POST /v1/widget/tokens`). The script
gets it from there and places the call. Its requests need no preflight, since they are plain forms, and only pages of
the token's origin can read the responses.
"""

import hashlib
import logging
import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable
from gateway.history.api_tokens import TokenScope
from gateway.logs import BurstLogger
from gateway.memory.identity import RepeatCallerSettings, identifier
from gateway.telephony.phone_numbers import e164
from gateway.web.dashboard.html import static_file
from gateway.web.request import json_endpoint, read_form, read_json, text_field
from gateway.web.sessions import LiveEventsEndpoint
from gateway.web.softphone import CallRefused, SoftphoneEndpoint, WatchToken, WidgetToken

PATH: Final = "/v1/widget/tokens"
DEFAULT_SECONDS: Final = 120
MAX_SECONDS: Final = 600
TOKENS_PER_MINUTE: Final = 600
"""For one API token, over all nodes."""
TOKENS_PER_USER: Final = 10
"""For one user or number, in a minute, over all nodes."""

_FIELDS: Final = frozenset({"agent", "name", "number", "origin", "seconds", "user_identity"})
_ORIGIN: Final = re.compile(r"(https?)://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?/?")
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_NAME: Final = re.compile(r"[^\W_][\w .,'’()-]{0,79}")
_FILES: Final = {
    "/widget.js": ("transcript.js", "phone-line.js", "widget.js"),
    "/widget/audio.js": ("phone-audio.js",),
}
_FILE_HEADERS: Final = {
    "Access-Control-Allow-Origin": "*",  # a worklet is always requested with CORS
    "Cross-Origin-Resource-Policy": "cross-origin",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "public, max-age=300",
}

_log = logging.getLogger(__name__)

T = TypeVar("T", WidgetToken, WatchToken)


@dataclass(frozen=True)
class WidgetEndpoint:
    """The script, the tokens for it, and the calls that it places. `agents` are their names."""

    softphone: SoftphoneEndpoint
    live: LiveEventsEndpoint
    store: ExpiringStore
    agents: Iterable[str]
    log: BurstLogger = field(default_factory=lambda: BurstLogger(_log))

    def routes(self) -> list[Route]:
        create = json_endpoint(self._create_token, self.softphone.auth, TokenScope.WIDGET)
        return [
            *(Route(path, _script(names)) for path, names in _FILES.items()),
            Route(PATH, create, methods=["POST"]),
            Route("/widget/call", self._call, methods=["POST"]),
            Route("/widget/events", _Transcript(self), methods=["POST"]),
        ]

    # For the website's server

    async def _create_token(self, request: Request) -> Response:
        given = await read_json(request)
        if unknown := sorted(set(given) - _FIELDS):
            raise HTTPException(400, f"unknown field {unknown[0]}; known fields are {', '.join(sorted(_FIELDS))}")
        token, seconds = self._token(given)
        await self._count(f"widget-tokens:{request.state.actor}", TOKENS_PER_MINUTE)
        if user := token.user_identity or token.caller:
            digest = hashlib.sha256(f"{request.state.actor} {user}".encode()).hexdigest()
            await self._count(f"widget-user:{digest}", TOKENS_PER_USER)
        return JSONResponse({"token": self.softphone.tokens.seal(token), "seconds": seconds}, 201)

    def _token(self, given: dict[str, Any]) -> tuple[WidgetToken, int]:
        """The token for a request, and its validity in seconds. Raises HTTPException."""
        agent, user, number, name = (text_field(given, key) for key in ("agent", "user_identity", "number", "name"))
        seconds = given.get("seconds", DEFAULT_SECONDS)
        if agent and agent not in self.agents:
            raise HTTPException(400, f"no agent is named {agent}; the agents are {', '.join(sorted(self.agents))}")
        if (origin := site_origin(text_field(given, "origin"))) is None:
            raise HTTPException(400, "origin must be your website's origin, like https://www.example.com")
        if number and e164(number) is None:
            raise HTTPException(400, "number must be a phone number like +12025550143, or omitted")
        if number and user:
            raise HTTPException(400, "a caller is remembered by user_identity or by number; give one of them")
        if user and not identifier(RepeatCallerSettings(), "", user_identity=user):
            raise HTTPException(400, "user_identity must identify one user, in 160 characters; omit it for a visitor")
        if name and _NAME.fullmatch(name) is None:
            raise HTTPException(400, "name must be a person's name of up to 80 letters")
        if type(seconds) is not int or not 0 < seconds <= MAX_SECONDS:
            raise HTTPException(400, f"seconds must be a number from 1 to {MAX_SECONDS}")
        return WidgetToken(origin, e164(number) or "", agent, user, name, int(time.time()) + seconds), seconds

    async def _count(self, name: str, limit: int) -> None:
        """Raise HTTPException if there were too many in the last minute."""
        try:
            wait = await self.store.admit(name, limit, 60.0)
        except SharedStoreUnavailable:
            raise HTTPException(503, "the token can't be counted now; try again in a moment") from None
        if wait:
            seconds = str(math.ceil(wait))
            raise HTTPException(429, f"too many tokens in a minute; try again in {seconds} s", {"Retry-After": seconds})

    # For the script

    async def _call(self, request: Request) -> Response:
        try:
            # An expired one too: its website gets a response that it can read.
            token = self.read(WidgetToken, request, (await read_form(request)).get("token", ""))
        except HTTPException as error:
            return _refused(error.status_code, error.detail, "", error.headers)
        if token.expires <= time.time():
            return _refused(403, "this token has expired", token.origin)
        try:
            placed = await self.softphone.place_one_call(request, token)
        except CallRefused as error:
            # The reason is for the operator, who has it in the log.
            return _refused(429, "busy", token.origin) if error.is_busy else _refused(503, "unavailable", token.origin)
        except HTTPException as error:
            return _refused(
                error.status_code, "this token was used" if error.status_code == 403 else "unavailable", token.origin
            )
        return JSONResponse(placed, 201, _readable_by(token.origin))

    def read(self, kind: type[T], request: Request, sealed: str, now: float = 0.0) -> T:
        """Raise HTTPException unless the token is ours and the request comes from its website."""
        token = self.softphone.tokens.read(kind, sealed, now)
        if token is None:
            raise self.softphone.auth.throttle.refusal(request, "wrong token", status=403)
        if not token.origin or request.headers.get("origin") != token.origin:
            self.log.warning("widget used on another site", {"origin": request.headers.get("origin", "")[:100]})
            raise HTTPException(403, "this token is for another website")
        return token


@dataclass(frozen=True)
class _Transcript:
    """The words of one call, with its watch token. A class: Starlette treats a function as a request handler."""

    widget: WidgetEndpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            form = await read_form(request)
            token = self.widget.read(WatchToken, request, form.get("watch", ""), time.time())
        except HTTPException as error:
            return await _refused(error.status_code, error.detail, "", error.headers)(scope, receive, send)

        async def send_readable(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_readable_by(token.origin))
            await send(message)

        query = urlencode({"since": form.get("since", "")}).encode()
        await self.widget.live.stream_of(
            token.session, {**scope, "query_string": query}, receive, send_readable, words_only=True
        )


def site_origin(text: str) -> str | None:
    """The origin as browsers send it; None if it is none."""
    found = _ORIGIN.fullmatch(text.strip().lower())
    if found is None:
        return None
    scheme, host, port = found.groups()
    return f"{scheme}://{host}" + (f":{int(port)}" if port and port != _DEFAULT_PORTS[scheme] else "")


def _script(names: Iterable[str]) -> Any:
    parts = [static_file(name).decode() for name in names]
    # Together in a function, so that the page has no new global names. A worklet has a scope of its own.
    text = parts[0] if len(parts) == 1 else "(() => {\n" + "\n".join(parts) + "})();\n"

    async def serve(request: Request) -> Response:
        return Response(text, media_type="text/javascript", headers=_FILE_HEADERS)

    return serve


def _readable_by(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Vary": "Origin",
        "Cache-Control": "no-store",
        "Cross-Origin-Resource-Policy": "cross-origin",
    }


def _refused(status: int, problem: str, origin: str, headers: Any = None) -> Response:
    """Readable by the website of a token that is ours."""
    return JSONResponse({"detail": problem}, status, {**(_readable_by(origin) if origin else {}), **(headers or {})})
