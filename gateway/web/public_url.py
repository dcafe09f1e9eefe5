"""The address carriers know us by, and the bounded reading of what they post."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

MAX_BODY_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class PublicUrl:
    """PUBLIC_URL, or what a proxy's forwarded headers say for a request."""

    configured: str

    def origin(self, request: Request) -> str:
        """Scheme, host and perhaps a path prefix, without a slash at the end."""
        if self.configured:
            return self.configured.rstrip("/")
        if host := _first(request.headers.get("x-forwarded-host", "")):
            # Some proxies do not tell the scheme. Carriers reach us by https.
            return f"{_first(request.headers.get('x-forwarded-proto', '')) or 'https'}://{host}"
        return f"{self.scheme(request)}://{request.headers.get('host', '') or request.url.netloc}"

    def scheme(self, request: Request) -> str:
        """What the peer itself speaks, to a proxy perhaps; PUBLIC_URL may be for others."""
        return _first(request.headers.get("x-forwarded-proto", "")) or request.url.scheme

    def hosts(self, request: Request) -> frozenset[str]:
        """The names under which the peer may know us, with their ports."""
        names = (request.headers.get("host", ""), _first(request.headers.get("x-forwarded-host", "")))
        return frozenset({*names, urlsplit(self.configured).netloc} - {""})

    def requested_url(self, request: Request) -> str:
        """The address the peer asked for, path and query exactly as they were sent."""
        path = request.scope.get("raw_path", b"").split(b"?")[0].decode("latin-1") or request.url.path
        query = request.scope.get("query_string", b"").decode("latin-1")
        return f"{self.origin(request)}{path}{f'?{query}' if query else ''}"

    def socket_url(self, request: Request, path: str) -> str:
        """A media socket's address. Always wss, and without a password: carriers take nothing else."""
        parts = urlsplit(self.origin(request))
        return f"wss://{parts.netloc.rpartition('@')[2]}{parts.path}{path}"


async def read_body(request: Request) -> bytes:
    """The whole body; 413 for one that no carrier would send."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "body too large")
    return bytes(body)


def _first(header: str) -> str:
    return header.split(",")[0].strip()


def webhook_urls(public_url: str) -> dict[str, str]:
    """Where carriers are told to send their webhooks."""
    origin = public_url.rstrip("/")
    return {
        "twilio": f"{origin}/twilio/incoming",
        "twilio status": f"{origin}/twilio/status",
        "telnyx": f"{origin}/telnyx/webhook",
    }
