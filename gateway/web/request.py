"""What endpoints read from a request: the public address, the body. Errors of the JSON API."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Router
from starlette.types import Receive, Scope, Send

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.history.api_tokens import TokenScope
from gateway.web.auth import Access, Authenticator

MAX_BODY_BYTES: Final = 64 * 1024
"""More than any carrier or form sends."""

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class PublicUrl:
    """PUBLIC_URL, or for each request the address in the proxy's forwarded headers."""

    configured: str

    def origin(self, request: Request) -> str:
        """Scheme, host and an optional path prefix, without a trailing slash."""
        if self.configured:
            return self.configured.rstrip("/")
        if host := _first(request.headers.get("x-forwarded-host", "")):
            # Some proxies omit the scheme. Carriers use https.
            return f"{_first(request.headers.get('x-forwarded-proto', '')) or 'https'}://{host}"
        return f"{self.scheme(request)}://{request.headers.get('host', '') or request.url.netloc}"

    def scheme(self, request: Request) -> str:
        """The scheme that the client used, possibly to a proxy. PUBLIC_URL may differ from it."""
        return _first(request.headers.get("x-forwarded-proto", "")) or str(request.scope["scheme"])

    def hosts(self, request: Request) -> frozenset[str]:
        """Every host name, with port, that the client may have used."""
        names = (request.headers.get("host", ""), _first(request.headers.get("x-forwarded-host", "")))
        return frozenset({*names, urlsplit(self.configured).netloc} - {""})

    def requested_url(self, request: Request) -> str:
        """The requested address with path and query byte for byte: carriers sign it."""
        path = request.scope.get("raw_path", b"").split(b"?")[0].decode("latin-1") or request.url.path
        query = request.scope.get("query_string", b"").decode("latin-1")
        return f"{self.origin(request)}{path}{f'?{query}' if query else ''}"

    def socket_url(self, request: Request, path: str) -> str:
        """The address of a media socket: always wss and without credentials, as carriers require."""
        host, slash, prefix = self.origin(request).partition("://")[2].partition("/")
        return f"wss://{host.rpartition('@')[2]}{slash}{prefix}{path}"


def _first(header: str) -> str:
    return header.split(",")[0].strip()


def redirect_final_slashes(router: Router) -> None:
    """
    Redirect `/calls/` to `/calls`, where only that exists.

    The address is a path only: Starlette's own redirect has the scheme and host that a proxy uses to reach us.
    """
    not_found = router.default

    async def redirect(scope: Scope, receive: Receive, send: Send) -> None:
        path = f"/{scope['path'].strip('/')}"  # one slash: two would name a host
        if scope["type"] == "http" and scope["path"].endswith("/"):
            found = [route for route in router.routes if route.matches({**scope, "path": path})[0] is not Match.NONE]
            if found:
                query = scope["query_string"].decode("latin-1")
                response = RedirectResponse(f"{quote(path)}{f'?{query}' if query else ''}")
                await response(scope, receive, send)
                return
        await not_found(scope, receive, send)

    router.redirect_slashes, router.default = False, redirect


# JSON


def json_endpoint(handle: Handler, auth: Authenticator, *scopes: TokenScope) -> Handler:
    """
    A handler that needs a credential with the scope `admin` or one of these. `request.state.actor` is its actor.

    HTTPExceptions and store failures become JSON objects with `detail`.
    """

    async def endpoint(request: Request) -> Response:
        try:
            await auth.admit(request, *scopes)
            response = await handle(request)
        except HTTPException as error:
            return _json_error(error)
        except DocumentNotFound as error:
            return JSONResponse({"detail": str(error)}, 404)
        except StoreUnavailable:
            return _store_unavailable()
        except ClientDisconnect:
            return Response(status_code=400)
        response.headers["Cache-Control"] = "no-store"
        return response

    return endpoint


async def admitted(scope: Scope, auth: Authenticator, *scopes: TokenScope) -> Access | Response:
    """The access of a request to an ASGI application, or the response that refuses it."""
    try:
        return await auth.admit(HTTPConnection(scope), *scopes)
    except HTTPException as error:
        return _json_error(error)
    except StoreUnavailable:
        return _store_unavailable()


def _json_error(error: HTTPException) -> Response:
    return JSONResponse({"detail": error.detail}, error.status_code, error.headers)


def _store_unavailable() -> Response:
    return JSONResponse({"detail": "the store is unavailable"}, 503)


async def read_body(request: Request, max_bytes: int = MAX_BODY_BYTES, *, too_large: str = "body too large") -> bytes:
    """The whole body. Raises HTTPException: 413 with the text `too_large`, 400 if the client has gone."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise HTTPException(413, too_large)
    except ClientDisconnect:
        raise HTTPException(400, "incomplete body") from None
    return bytes(body)


async def read_form(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, str]:
    """The fields of a form. Raises HTTPException."""
    body = await read_body(request, max_bytes, too_large="The form is too large.")
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=1000))
    except ValueError:
        raise HTTPException(400, "The form is not valid.") from None


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object in the body; empty without a body. Raises HTTPException."""
    try:
        given: Any = orjson.loads(await read_body(request) or b"{}")
    except orjson.JSONDecodeError:
        raise HTTPException(400, "the body must be JSON") from None
    if not isinstance(given, dict):
        raise HTTPException(400, "the body must be an object")
    return given


def text_field(given: Mapping[str, Any], name: str) -> str:
    """An optional string, stripped. Raises HTTPException for any other type."""
    value = given.get(name) or ""
    if not isinstance(value, str):
        raise HTTPException(400, f"{name} must be text")
    return value.strip()
