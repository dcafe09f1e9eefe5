"""
Login to the dashboard, and the guard in front of its pages, files and actions.

A login link has a code that works once. It is exchanged for a cookie that scripts can't read and other sites can't use.
Actions also need the token of one of our own forms, and an Origin header with our host.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import SharedStoreUnavailable, StoreUnavailable
from gateway.invocation import public_command
from gateway.sealing import Sealer, is_same
from gateway.settings import Secret
from gateway.web.audit import audit_note
from gateway.web.auth import Authenticator
from gateway.web.dashboard.html import Pages, static_file
from gateway.web.login_sessions import SESSION_SECONDS, LoginSession, LoginSessions
from gateway.web.request import MAX_BODY_BYTES, Handler, PublicUrl, read_form

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
_BACK: Final = {
    "/callers": ("/callers", "All callers"),
    "/calls": ("/calls", "All calls"),
    "/agents": ("/agents", "All agents"),
    "/tokens": ("/tokens", "All tokens"),
}
"""Where the page of an error leads to, by the start of its path."""
_COOKIE: Final = "gateway_visit"
_MEDIA_TYPES: Final = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_PUBLIC_FILES: Final = (
    *("style.css", "icon.svg", "theme.js", "times.js", "login.js"),
    *("transcript.js", "phone-line.js", "phone.js", "phone-audio.js"),
)
"""What the login page and the phone page for guests need."""
_FILES: Final = (*_PUBLIC_FILES, "page.js", "player.js", "live.js", "setup.js")

_log = logging.getLogger(__name__)


Form = Mapping[str, str]
Page = Callable[[Request, LoginSession], Awaitable[Response]]
Action = Callable[[Request, LoginSession, Form], Awaitable[Response]]


class LoginGuard:
    """Wraps the handlers of the dashboard. `params` seals values for URLs."""

    def __init__(
        self,
        auth: Authenticator,
        sessions: LoginSessions,
        params: "SealedParam",
        pages: Pages,
        public: PublicUrl,
    ) -> None:
        self.params = params
        self.throttle = auth.throttle
        self._auth = auth
        self._sessions = sessions
        self._pages = pages
        self._public = public
        self._files = {name: static_file(name) for name in _FILES}

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.public(self._log_in), methods=["GET", "POST"]),
            Route("/logout", self.action(self._log_out), methods=["POST"]),
            Route("/static/{name}", self.public(self._static)),
        ]

    # Wrappers for handlers

    def page(self, show: Page) -> Handler:
        """Without a login: a redirect to the login page."""

        async def endpoint(request: Request) -> Response:
            session = await self.session(request)
            return await show(request, session) if session else RedirectResponse("/login", 303)

        return self.public(endpoint)

    def file(self, send: Page) -> Handler:
        """Without a login: 401."""

        async def endpoint(request: Request) -> Response:
            return await send(request, await self._require_login(request))

        return self.public(endpoint)

    def stream(self, app: ASGIApp) -> ASGIApp:
        """The same for an ASGI application that answers GET."""
        return _GuardedApp(app, self)

    def action(self, act: Action, max_bytes: int = MAX_BODY_BYTES) -> Handler:
        """A POST that changes something, from one of our own forms only."""

        async def endpoint(request: Request) -> Response:
            session = await self._require_login(request)
            self._check_origin(request)
            form = await read_form(request, max_bytes)
            if not is_same(form.get("form_token", ""), session.form_token):
                raise HTTPException(403, "This form has expired. Go back, reload the page and try again.")
            return await act(request, session, form)

        return self.public(endpoint)

    def public(self, handle: Handler) -> Handler:
        """
        Add the security headers; turn errors into pages.

        On its own for a response that is not secret, or a handler that checks a token of its own.
        """

        async def guarded(request: Request) -> Response:
            try:
                response = await handle(request)
            except HTTPException as error:
                response = await self._error(request, error.status_code, error.detail)
                response.headers.update(error.headers or {})
            except (StoreUnavailable, SharedStoreUnavailable):
                response = await self._error(request, 503, "The store is unavailable. Try again in a moment.")
            except ClientDisconnect:
                response = Response(status_code=400)
            except Exception:  # the edge of a request: the browser must not see the traceback
                _log.exception("page failed", extra={"page": request.scope["path"].split("/")[1]})
                response = await self._failed(request)
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return guarded

    async def error_page(self, request: Request, error: Exception) -> Response:
        """For a path without a route, a method that its route does not take, or a failure outside of the guard."""

        async def explain(request: Request) -> Response:
            match error:
                case HTTPException(status_code=404):
                    raise HTTPException(404, "Page not found. The address may be mistyped, or the page has moved.")
                case HTTPException(status_code=405):
                    details = f"Method not allowed. This address does not accept {request.method} requests."
                    raise HTTPException(405, details, error.headers)
            return await self._failed(request)

        return await self.public(explain)(request)

    def public_action(self, act: Callable[[Request, Form], Awaitable[Response]]) -> Handler:
        """A POST without a login, which must not come from another site."""

        async def endpoint(request: Request) -> Response:
            self._check_origin(request)
            return await act(request, await read_form(request))

        return self.public(endpoint)

    async def html(self, template: str, session: LoginSession | None, *, status: int = 200, **values: Any) -> Response:
        form_token = session.form_token if session else ""
        text = await self._pages.render(template, form_token=form_token, **values)
        return HTMLResponse(text, status_code=status)

    async def _failed(self, request: Request) -> Response:
        message = "This page failed. See the log for details."
        try:
            return await self._error(request, 500, message)
        except Exception:  # it may be what every page needs that fails
            return PlainTextResponse(message, 500)

    async def _error(self, request: Request, status: int, message: str) -> Response:
        if "text/html" not in request.headers.get("accept", ""):
            return PlainTextResponse(message, status)
        title, _, details = message.partition(". ")
        try:
            session = await self.session(request)
        except (StoreUnavailable, SharedStoreUnavailable):
            session = None
        path = request.scope["path"]
        back = next((page for start, page in _BACK.items() if path.startswith(start)), ("/", "Live calls"))
        page = {"title": title.rstrip("."), "details": details, "back": back, "here": ""}
        return await self.html("error.html", session, status=status, **page)

    # Requests

    async def session(self, request: Request) -> LoginSession | None:
        """The login of this request. Its actor becomes `request.state.actor`."""
        cookie = request.cookies.get(self._cookie_name(request), "")
        session = await self._sessions.find(cookie) if cookie else None
        if session is not None:
            request.state.actor = session.actor
        return session

    async def _require_login(self, request: Request) -> LoginSession:
        if session := await self.session(request):
            return session
        raise HTTPException(401, f"Log in first. `{public_command('login-link')}` prints a login link.")

    def _is_https(self, request: Request) -> bool:
        return self._public.scheme(request) == "https"

    def _cookie_name(self, request: Request) -> str:
        """With https, the prefix that binds a cookie to this host."""
        return f"__Host-{_COOKIE}" if self._is_https(request) else _COOKIE

    def _cookie_flags(self, request: Request) -> dict[str, Any]:
        return {"path": "/", "secure": self._is_https(request), "httponly": True, "samesite": "strict"}

    def _check_origin(self, request: Request) -> None:
        """Browsers send these headers with every form; without them the form token is the only protection."""
        origin = request.headers.get("origin")
        is_foreign = origin is not None and origin.partition("://")[2] not in self._public.hosts(request)
        if is_foreign or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "Request blocked. It came from another site.")

    # Log in and out

    async def _log_in(self, request: Request) -> Response:
        if request.method == "POST":
            self._check_origin(request)
            return await self._log_in_with_token(request, (await read_form(request)).get("token", "").strip())
        if request.method == "HEAD" or not request.query_params:  # HEAD: the preview of a link must not use its code
            return await self._login_page()
        session = await self._sessions.open_by_link(request.query_params.get("code", ""))
        if session is not None:
            return await self._welcome(request, session)
        if await self.session(request) is not None:
            return RedirectResponse("/", 303)
        used = f"This login link has been used or has expired. Run `{public_command('login-link')}` for a new one"
        refusal = self.throttle.refusal(request, used)
        return await self._refused(HTTPException(refusal.status_code, used, refusal.headers))

    async def _log_in_with_token(self, request: Request, token: str) -> Response:
        try:
            access = await self._auth.check(request, [token] if token else [])
        except HTTPException as error:
            return await self._refused(error)
        return await self._welcome(request, await self._sessions.open(access.actor))

    async def _refused(self, error: HTTPException) -> Response:
        problem = f"{error.detail[:1].upper()}{error.detail[1:]}."
        response = await self._login_page(problem, error.status_code)
        response.headers.update(error.headers or {})
        return response

    async def _login_page(self, problem: str = "", status: int = 200) -> Response:
        command = public_command("login-link")
        return await self.html("login.html", None, problem=problem, command=command, status=status)

    async def _welcome(self, request: Request, session: LoginSession) -> Response:
        """To the dashboard, with the cookie and without the code in the address."""
        # After a link on another site (in a mail, say) browsers withhold a strict cookie along the redirects. Then a
        # page of ours navigates on, which counts as same-site.
        is_own = request.headers.get("sec-fetch-site", "none") in ("none", "same-origin")
        response = RedirectResponse("/", 303) if is_own else await self.html("welcome.html", None)
        note, name = audit_note(), self._cookie_name(request)
        note.actor, note.item = session.token, session.actor
        response.set_cookie(name, session.cookie, max_age=SESSION_SECONDS, **self._cookie_flags(request))
        return response

    async def _log_out(self, request: Request, session: LoginSession, form: Form) -> Response:
        await (self._sessions.close_all() if form.get("everywhere") else self._sessions.close(session))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(self._cookie_name(request), **self._cookie_flags(request))
        return response

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _PUBLIC_FILES:
            await self._require_login(request)
        if name not in self._files:
            raise HTTPException(404, "File not found.")
        media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
        # The address contains a digest of the content, so a browser may keep it.
        caching = {"Cache-Control": "private, max-age=31536000, immutable"} if "v" in request.query_params else {}
        return Response(self._files[name], media_type=media_type, headers=caching)


class _GuardedApp:
    """A class, because Starlette treats a function as a request handler."""

    def __init__(self, app: ASGIApp, guard: LoginGuard) -> None:
        self._app = app
        self._check = guard.file(_only_get)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._check(Request(scope, receive))
        await (self._app if answer.status_code == 204 else answer)(scope, receive, send)


async def _only_get(request: Request, session: LoginSession) -> Response:
    if request.method != "GET":
        raise HTTPException(405, "Only GET is allowed here.")
    return Response(status_code=204)


# Sealed values


class SealedParam:
    """
    Encrypts phone numbers and search words for use in URLs, which end up in browser histories and proxy logs.

    Deterministic: the same text always gives the same parameter.
    """

    def __init__(self, admin_token: Secret) -> None:
        self._sealer = Sealer(admin_token, "dashboard addresses")

    def seal(self, text: str) -> str:
        return self._sealer.seal_text(text.encode())

    def unseal(self, param: str) -> str | None:
        """None for a value that was not sealed with this admin token."""
        content = self._sealer.open_text(param)
        return None if content is None else content.decode()
