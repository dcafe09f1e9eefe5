"""
Credentials: API keys, login sessions of the dashboard, links for guests, sealed URL parameters.

Values and cryptography only; `login.py` knows requests and pages. All keys derive from the admin token, so every node
with the same token accepts the same sessions and links, and a new token revokes all of them.
"""

import ipaddress
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, TypeVar

import orjson
from starlette.datastructures import Headers

from gateway.sealing import Sealer, Signer, is_same
from gateway.settings import Secret

SESSION_SECONDS: Final = 7 * 86_400
LINK_SECONDS: Final = 24 * 3600
WATCH_SECONDS: Final = 6 * 3600
"""Longer than any call, so that its post-call processing can be followed too."""
MAX_ATTEMPTS: Final = 5
"""Wrong tokens from one address within ATTEMPT_SECONDS; after that even the right one is rejected."""
ATTEMPT_SECONDS: Final = 60.0

_MAX_ADDRESSES: Final = 1000


# API keys


def is_authorized(headers: Headers, keys: Sequence[Secret]) -> bool:
    """Whether X-API-Key or the bearer token is one of `keys`. An empty key matches nothing."""
    offered = (headers.get("X-API-Key", ""), bearer_token(headers))
    # A list, not a generator: every key is compared, so the time taken reveals nothing.
    matches = [is_same(text, key.reveal()) for key in keys for text in offered if key.reveal()]
    return any(matches)


def bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


# Login sessions


@dataclass(frozen=True)
class LoginSession:
    """A logged-in browser. `form_token` protects its forms against cross-site requests."""

    cookie: str
    form_token: str


class SessionCodec:
    """Issues and verifies session cookies: an expiry, a random id and a signature. Times are seconds since 1970."""

    def __init__(self, admin_token: Secret) -> None:
        self._admin_token = admin_token
        self._signer = Signer.for_purpose(admin_token, "dashboard visits")

    def is_admin_token(self, offered: str) -> bool:
        return is_same(offered, self._admin_token.reveal())

    def issue(self, now: float) -> LoginSession:
        unsigned = f"{int(now) + SESSION_SECONDS:x}.{secrets.token_urlsafe(16)}"
        return self._session(f"{unsigned}.{self._signer.sign(f'visit:{unsigned}')}")

    def read(self, cookie: str, now: float) -> LoginSession | None:
        """None for a forged or expired cookie."""
        unsigned, _, signature = cookie.rpartition(".")
        if not self._signer.is_signed(f"visit:{unsigned}", signature):
            return None
        return self._session(cookie) if int(unsigned.partition(".")[0], 16) > now else None

    @staticmethod
    def is_form_of(session: LoginSession, form_token: str) -> bool:
        return is_same(form_token, session.form_token)

    def _session(self, cookie: str) -> LoginSession:
        return LoginSession(cookie, self._signer.sign(f"form:{cookie}"))


class LoginThrottle:
    """Counts wrong tokens per address. Bounded: the address that failed longest ago is dropped first."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def allows(self, address: str, now: float) -> bool:
        return len(self._recent(_network(address), now)) < MAX_ATTEMPTS

    def record_failure(self, address: str, now: float) -> None:
        network = _network(address)
        self._failures[network] = [*self._recent(network, now), now]
        self._failures.move_to_end(network)
        if len(self._failures) > _MAX_ADDRESSES:
            self._failures.popitem(last=False)

    def _recent(self, network: str, now: float) -> list[float]:
        return [failed_at for failed_at in self._failures.get(network, ()) if now - failed_at < ATTEMPT_SECONDS]


def _network(address: str) -> str:
    """One subscriber usually has a whole /64 of IPv6 addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(ipaddress.ip_network((ip, 64), strict=False)) if ip.version == 6 else str(ip)


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


@dataclass(frozen=True)
class GuestLink:
    """The right to place one call as `caller`."""

    caller: str
    called: str
    expires: int
    number: str = field(default_factory=lambda: secrets.token_hex(16))


@dataclass(frozen=True)
class WatchToken:
    """The right to follow one call. `caller` is the key of its memory."""

    session: str
    agent: str
    caller: str
    expires: int


P = TypeVar("P", GuestLink, WatchToken)


class TokenCodec:
    """Encrypts guest links and watch tokens, and reads them back. Times are seconds since 1970."""

    def __init__(self, admin_token: Secret) -> None:
        self._sealer = Sealer(admin_token, "phone passes")

    def seal(self, value: GuestLink | WatchToken) -> str:
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
