"""The public address of the gateway, and bounded reading of request bodies."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_BODY_BYTES: Final = 64 * 1024


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


async def read_body(request: Request) -> bytes:
    """The whole body; 413 if it is larger than any carrier or form sends."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "body too large")
    return bytes(body)


def _first(header: str) -> str:
    return header.split(",")[0].strip()
