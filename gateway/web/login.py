"""
The way into the dashboard: login by link, and the guard before every page, file and action.

The link's token never stays in the address bar. What follows is a cookie that scripts can't read and other sites can't
use. Actions also need a token from one of our own forms, and an Origin that is ours.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import StoreUnavailable
from gateway.settings import Secret
from gateway.web.dashboard.html import Pages, static_file
from gateway.web.login_sessions import TRY_SECONDS, VISIT_SECONDS, LoginSession, LoginThrottle, SessionCodec
from gateway.web.public_url import PublicUrl, read_body

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    # Not no-referrer: with that, browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_COOKIE: Final = "gateway_visit"
_KINDS: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PUBLIC: Final = ("style.css", "icon.svg", "login.js", "transcript.js", "phone.js", "phone-audio.js")
"""All that the login page needs, and the phone of whoever was given a link for one call."""
_FILES: Final = (*_PUBLIC, "page.js", "player.js", "live.js")

_log = logging.getLogger(__name__)

Form = Mapping[str, str]
TextLayout = Callable[[Request, LoginSession], Awaitable[Response]]
Action = Callable[[Request, LoginSession, Form], Awaitable[Response]]
Endpoint = Callable[[Request], Awaitable[Response]]


class LoginGuard:
    """Guards what is handed to `page`, `file` and `action`. `now` is the time since 1970."""

    def __init__(self, token: Secret, pages: Pages, public: PublicUrl, *, now: Callable[[], float] = time.time) -> None:
        self._visitors = SessionCodec(token)
        self._pages = pages
        self._public = public
        self._now = now
        self._patience = LoginThrottle()
        self._files = {name: static_file(name) for name in _FILES}

    def routes(self) -> list[Route]:
        return [
            Route("/login", self._guarded(self._log_in), methods=["GET", "POST"]),
            Route("/logout", self.action(self._log_out), methods=["POST"]),
            Route("/static/{name}", self._guarded(self._static)),
        ]

    # What it guards

    def page(self, show: TextLayout) -> Endpoint:
        """Whoever is not logged in is shown how to."""

        async def endpoint(request: Request) -> Response:
            visit = self._visit(request)
            return await show(request, visit) if visit else RedirectResponse("/login", 303)

        return self._guarded(endpoint)

    def file(self, send: TextLayout) -> Endpoint:
        """A file or a feed: whoever is not logged in gets nothing."""

        async def endpoint(request: Request) -> Response:
            return await send(request, self._known(request))

        return self._guarded(endpoint)

    def stream(self, app: ASGIApp) -> ASGIApp:
        """The same for what answers by itself, piece by piece."""

        async def refuse(request: Request) -> Response:
            self._known(request)
            raise HTTPException(405, "This can only be read.")

        return _Guarded(app, lambda request: self._visit(request) is not None, self._guarded(refuse))

    def action(self, act: Action) -> Endpoint:
        """Something that changes things: by a form of ours alone."""

        async def endpoint(request: Request) -> Response:
            visit = self._known(request)
            self._check_origin(request)
            form = await _form(request)
            if not SessionCodec.is_from_form(visit, form.get("form_token", "")):
                raise HTTPException(403, "This form is out of date. Go back, reload the page and try again.")
            return await act(request, visit, form)

        return self._guarded(endpoint)

    def public(self, show: Endpoint) -> Endpoint:
        """For whoever comes. What it shows is no secret, or it looks for itself who asks."""
        return self._guarded(show)

    def public_action(self, act: Callable[[Request, Form], Awaitable[Response]]) -> Endpoint:
        """The same for something that changes things: no other site may have it done."""

        async def endpoint(request: Request) -> Response:
            self._check_origin(request)
            return await act(request, await _form(request))

        return self._guarded(endpoint)

    async def html(self, template: str, visit: LoginSession | None, *, status: int = 200, **values: Any) -> Response:
        form_token = visit.form_token if visit else ""
        text = await self._pages.render(template, form_token=form_token, **values)
        return HTMLResponse(text, status_code=status)

    # Itself

    def _guarded(self, answer: Endpoint) -> Endpoint:
        """Every answer has the headers, and a failure is a page too."""

        async def guarded(request: Request) -> Response:
            try:
                response = await answer(request)
            except HTTPException as problem:
                response = await self._problem(request, problem.status_code, problem.detail)
            except StoreUnavailable:
                response = await self._problem(request, 503, "The store can't be read now. Try again in a moment.")
            except ClientDisconnect:
                response = Response(status_code=400)
            except Exception:  # the edge of a request: one broken page is no reason to show its inside
                _log.exception("page failed", extra={"page": request.scope["path"].split("/")[1]})
                response = PlainTextResponse("This page failed; the log says why.", 500)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    async def _problem(self, request: Request, status: int, words: str) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(words, status)
        return await self.html("problem.html", self._visit(request), status=status, words=words, here="")

    def _visit(self, request: Request) -> LoginSession | None:
        value = request.cookies.get(self._cookie_name(request), "")
        return self._visitors.recognise(value, self._now()) if value else None

    def _known(self, request: Request) -> LoginSession:
        if visit := self._visit(request):
            return visit
        raise HTTPException(401, "Log in first: gateway serve shows the link when it starts.")

    def _is_https(self, request: Request) -> bool:
        return self._public.scheme(request) == "https"

    def _cookie_name(self, request: Request) -> str:
        """With https, a name that browsers give to nobody but this very host."""
        return f"__Host-{_COOKIE}" if self._is_https(request) else _COOKIE

    def _check_origin(self, request: Request) -> None:
        """Browsers say where a form was; who says nothing is no browser, or an old one that the form's token stops."""
        origin = request.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc not in self._public.hosts(request):
            raise HTTPException(403, "This came from another site, and was not done.")
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "This came from another site, and was not done.")

    async def _log_in(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        if request.method == "POST":
            self._check_origin(request)
            token = (await _form(request)).get("token", "").strip()
        elif not token:
            return await self.html("login.html", None, problem="", status=200)
        address, now = request.client.host if request.client else "", self._now()
        if not self._patience.left(address, now):
            response = await self.html("login.html", None, problem="Too many wrong tokens. Wait a minute.", status=429)
            response.headers["Retry-After"] = str(int(TRY_SECONDS))
            return response
        if not self._visitors.admits(token):
            self._patience.was_wrong(address, now)
            return await self.html("login.html", None, problem="That is not the token.", status=401)
        return self._let_in(request, await self._way_in(request))

    async def _way_in(self, request: Request) -> Response:
        """
        On to the first page, without the token.

        A browser withholds a strict cookie along the redirects of a link on another site, in a mail say. Then a page of
        ours goes on by itself: its navigation is our own.
        """
        if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            return RedirectResponse("/", 303)
        return await self.html("welcome.html", None)

    def _let_in(self, request: Request, response: Response) -> Response:
        visit, name = self._visitors.begin(self._now()), self._cookie_name(request)
        response.set_cookie(
            name,
            visit.value,
            max_age=VISIT_SECONDS,
            path="/",
            secure=self._is_https(request),
            httponly=True,
            samesite="strict",
        )
        return response

    async def _log_out(self, request: Request, visit: LoginSession, form: Form) -> Response:
        response = RedirectResponse("/login", 303)
        name = self._cookie_name(request)
        response.delete_cookie(name, path="/", secure=self._is_https(request), httponly=True, samesite="strict")
        return response

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _PUBLIC:
            self._known(request)
        if name not in self._files:
            raise HTTPException(404, "There is no such file.")
        kind = _KINDS[name.rpartition(".")[2]]
        kept = {"Cache-Control": "private, max-age=31536000, immutable"} if "v" in request.query_params else {}
        return Response(self._files[name], media_type=kind, headers=kept)


class _Guarded:
    """An ASGI application behind the guard. A class, since Starlette takes a function for an endpoint."""

    def __init__(self, app: ASGIApp, admits: Callable[[Request], bool], refuse: Endpoint) -> None:
        self._app = app
        self._admits = admits
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        admitted = scope["method"] == "GET" and self._admits(request)
        await (self._app if admitted else await self._refuse(request))(scope, receive, send)


async def _form(request: Request) -> dict[str, str]:
    body = await read_body(request)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise HTTPException(400, "That is no form of ours.") from None
