"""What endpoints read from a request: the public address, credentials, the body. Errors of the JSON API."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Match, Router
from starlette.types import Receive, Scope, Send

from gateway.errors import DocumentNotFound, StoreUnavailable
from gateway.sealing import is_same
from gateway.settings import Secret

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
        return _first(request.headers.get("x-forwarded-proto", "")) or request.url.scheme

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
        parts = urlsplit(self.origin(request))
        return f"wss://{parts.netloc.rpartition('@')[2]}{parts.path}{path}"


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


# Credentials


Keys = Mapping[str, Secret]
"""Credentials by the name of the actor that has them: `admin`, `store-key`."""


def authenticate(headers: Headers, keys: Keys) -> str:
    """The actor whose key is X-API-Key or the bearer token; empty for none. An empty key matches nothing."""
    offered = (headers.get("X-API-Key", ""), bearer_token(headers))
    given = [(actor, key.reveal(), text) for actor, key in keys.items() if key.reveal() for text in offered]
    # A list, not a generator: every key is compared, so the time taken reveals nothing.
    actors = [actor for actor, key, text in given if is_same(text, key)]
    return actors[0] if actors else ""


def bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def unauthorized(credential: str = "admin token") -> Response:
    return JSONResponse({"detail": f"missing or wrong {credential}"}, 401, {"WWW-Authenticate": "Bearer"})


# JSON


def json_endpoint(handle: Handler, keys: Keys, credential: str = "admin token") -> Handler:
    """
    A handler that needs one of `keys`. `request.state.actor` is the one that was offered.

    Its HTTPExceptions and store failures become JSON objects with `detail`.
    """

    async def endpoint(request: Request) -> Response:
        request.state.actor = authenticate(request.headers, keys)
        if not request.state.actor:
            return unauthorized(credential)
        try:
            response = await handle(request)
        except HTTPException as error:
            return JSONResponse({"detail": error.detail}, error.status_code)
        except DocumentNotFound as error:
            return JSONResponse({"detail": str(error)}, 404)
        except StoreUnavailable:
            return JSONResponse({"detail": "the store is unavailable"}, 503)
        except ClientDisconnect:
            return Response(status_code=400)
        response.headers["Cache-Control"] = "no-store"
        return response

    return endpoint


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
