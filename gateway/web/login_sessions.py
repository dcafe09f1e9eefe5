"""
Logins to the dashboard: one-time login links, and sessions that the server can end.

A cookie is a random value. Its session is in the store that nodes share, under its hash and sealed: a logout
ends the session on every node at once.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.cluster.store import ExpiringStore
from gateway.errors import SharedStoreUnavailable
from gateway.history.api_tokens import TokenTable
from gateway.sealing import Sealer, Signer
from gateway.settings import Secret
from gateway.web.auth import ADMIN

SESSION_SECONDS: Final = 7 * 86_400
IDLE_SECONDS: Final = 12 * 3600
"""A session without a request for this long is over."""
LINK_SECONDS: Final = 15 * 60
_SEEN_EVERY: Final = 600.0
"""How exactly the time of the last request is kept."""
_EPOCH: Final = "login-epoch"
_EPOCH_SECONDS: Final = 10 * 365 * 86_400
_MAX_KNOWN: Final = 100


@dataclass(frozen=True)
class LoginSession:
    """
    A logged-in browser. `form_token` protects its forms against cross-site requests.

    `token` is the id of the token it logged in with, or `admin`. `id` may be shown.
    """

    id: str
    token: str
    cookie: str
    form_token: str

    @property
    def actor(self) -> str:
        return f"login:{self.id}"


class LoginSessions:
    """Opens, finds and ends sessions. `now` returns seconds since 1970. Raises SharedStoreUnavailable."""

    def __init__(
        self, store: ExpiringStore, tokens: TokenTable, admin_token: Secret, *, now: Callable[[], float] = time.time
    ) -> None:
        self._store = store
        self._tokens = tokens
        self._now = now
        self._sealer = Sealer(admin_token, "login sessions")
        self._signer = Signer.for_purpose(admin_token, "dashboard forms")
        self._links = LoginLinks(admin_token)
        self._known: OrderedDict[str, LoginSession] = OrderedDict()
        """By name in the store: sessions that were valid when they were last checked."""

    async def open(self, token: str) -> LoginSession:
        """A new session for the bearer of a token."""
        cookie, id_, now = secrets.token_urlsafe(32), secrets.token_hex(4), self._now()
        epoch = (await self._store.get(_EPOCH) or b"").decode()
        value = {"id": id_, "token": token, "epoch": epoch, "expires": now + SESSION_SECONDS}
        name = _name(cookie)
        await self._store.put(f"login-seen:{name}", _seen(now), IDLE_SECONDS)
        await self._store.put(f"login:{name}", self._sealer.seal_json(value, name), SESSION_SECONDS)
        return self._session(id_, token, cookie)

    async def open_by_link(self, code: str) -> LoginSession | None:
        """The session of a login link; None for one that was used, is too old, or was not made here."""
        nonce, expires = self._links.read(code)
        if not nonce or expires <= self._now() or not await self._store.add(f"login-link:{nonce}", b"", LINK_SECONDS):
            return None
        return await self.open(ADMIN)

    async def find(self, cookie: str) -> LoginSession | None:
        """
        The session of a cookie; None if it is over. Raises StoreUnavailable too.

        While the shared store is away, sessions that this process has seen stay valid.
        """
        name = _name(cookie)
        try:
            session = await self._look_up(name, cookie)
        except SharedStoreUnavailable:
            if name not in self._known:
                raise
            return self._known[name]
        self._known.pop(name, None)
        if session is not None:
            self._known[name] = session
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return session

    async def close(self, session: LoginSession) -> None:
        self._known.pop(_name(session.cookie), None)
        await self._store.delete(f"login:{_name(session.cookie)}")

    async def close_all(self) -> None:
        """End every session: each belongs to the epoch in which it was opened."""
        self._known.clear()
        await self._store.put(_EPOCH, secrets.token_hex(8).encode(), _EPOCH_SECONDS)

    async def _look_up(self, name: str, cookie: str) -> LoginSession | None:
        sealed, seen = await self._store.get(f"login:{name}"), await self._store.get(f"login-seen:{name}")
        value = self._sealer.open_json(sealed, name) if sealed else None
        now = self._now()
        if not value or not seen or value["expires"] <= now or float(seen) + IDLE_SECONDS <= now:
            return None
        if value["epoch"] != (await self._store.get(_EPOCH) or b"").decode():
            return None
        if value["token"] != ADMIN and not await self._tokens.is_active(value["token"]):
            return None
        if now - float(seen) >= _SEEN_EVERY:
            # Apart from the session itself, which this must not restore after a logout.
            await self._store.put(f"login-seen:{name}", _seen(now), IDLE_SECONDS)
        return self._session(value["id"], value["token"], cookie)

    def _session(self, id_: str, token: str, cookie: str) -> LoginSession:
        return LoginSession(id_, token, cookie, self._signer.sign(f"form:{cookie}"))


class LoginLinks:
    """Makes and reads the codes of login links. It takes the admin token, and no running gateway."""

    def __init__(self, admin_token: Secret) -> None:
        self._sealer = Sealer(admin_token, "login links")

    def make(self, now: float | None = None) -> str:
        """A code that is valid once, for LINK_SECONDS."""
        expires = int(time.time() if now is None else now) + LINK_SECONDS
        return self._sealer.seal_text(f"{secrets.token_hex(8)} {expires}".encode())

    def read(self, code: str) -> tuple[str, int]:
        """Its random part, and when it expires; empty and 0 for a code that was not made with this admin token."""
        nonce, _, expires = (self._sealer.open_text(code) or b"").decode().partition(" ")
        return nonce, int(expires or 0)


def _name(cookie: str) -> str:
    return hashlib.sha256(cookie.encode()).hexdigest()


def _seen(now: float) -> bytes:
    return str(int(now)).encode()
