"""
Credentials of API requests: the admin token, REMEM_API_KEY, and API tokens with a scope.

The credential is compared first, and only a wrong one counts as a guess: the right one passes from any address. Wrong
ones are answered with 401, and with 429 beyond MAX_GUESSES a minute from one address.
"""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.logs import BurstLogger
from gateway.sealing import is_same
from gateway.session import TrustLevel
from gateway.settings import Secret
from gateway.websocket.port_mux import network

ADMIN: Final = "admin"
"""The actor with GATEWAY_ADMIN_TOKEN."""
STORE_KEY: Final = "store-key"
"""The actor with REMEM_API_KEY."""
MAX_GUESSES: Final = 20
"""Enough for a client with a wrong key to be told so, with 401."""
GUESS_SECONDS: Final = 60.0
_MAX_ADDRESSES: Final = 1000
_WRONG: Final = "missing or wrong token"
_CHALLENGE: Final = {"WWW-Authenticate": "Bearer"}

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Access:
    """An accepted credential. `actor` names it; with `agent` and `caller` it reaches only their memory."""

    actor: str
    scope: TokenScope
    agent: str = ""
    caller: str = ""
    call_level: TrustLevel | None = None
    """For the token of one call: the trust level of the call."""


class Authenticator:
    """Accepts or refuses credentials. `store_key` opens the paths that need the scope `store`."""

    def __init__(self, admin_token: Secret, store_key: Secret | None, tokens: TokenTable) -> None:
        self.throttle = GuessThrottle()
        self._admin_token = admin_token
        self._store_key = store_key or Secret("")
        self._tokens = tokens

    async def admit(self, request: HTTPConnection, *scopes: TokenScope) -> Access:
        """
        The access of a request whose credential has the scope `admin` or one of these.

        Raises HTTPException, and StoreUnavailable.
        """
        offered = (request.headers.get("X-API-Key", ""), bearer_token(request.headers))
        return await self.check(request, [text for text in offered if text], *scopes)

    async def check(self, request: HTTPConnection, offered: Sequence[str], *scopes: TokenScope) -> Access:
        """
        The same for credentials from elsewhere in the request. The actor becomes `request.state.actor`.

        401: none, or a wrong one; 403: it has another scope; 429: too many wrong ones from this address.
        """
        access = self._with_key(offered, scopes) or await self._with_token(offered)
        if access is None:
            raise self.throttle.refusal(request, _WRONG) if offered else HTTPException(401, _WRONG, _CHALLENGE)
        request.state.actor = access.actor
        if access.scope not in (TokenScope.ADMIN, *scopes):
            needed = " or ".join([*scopes, TokenScope.ADMIN])
            raise HTTPException(403, f"this token has the scope {access.scope}; the scope {needed} is needed")
        return access

    def _with_key(self, offered: Sequence[str], scopes: Sequence[TokenScope]) -> Access | None:
        keys = [(Access(ADMIN, TokenScope.ADMIN), self._admin_token)]
        if TokenScope.STORE in scopes:
            keys.append((Access(STORE_KEY, TokenScope.STORE), self._store_key))
        # A list, not a generator: every key is compared, so the time taken reveals nothing. An empty key is none.
        found = [access for access, key in keys for text in offered if text and is_same(text, key.reveal())]
        return found[0] if found else None

    async def _with_token(self, offered: Sequence[str]) -> Access | None:
        for text in offered:
            if (token := await self._tokens.find(text)) is not None:
                if (status := token.status(datetime.now(UTC))) != "active":
                    raise HTTPException(401, f"this token is {status}; create another one", _CHALLENGE)
                return Access(token.id, token.scope, token.agent, token.caller)
        return None


class GuessThrottle:
    """Counts wrong credentials per address. Bounded: the address that failed longest ago is dropped first."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._guesses: OrderedDict[str, list[float]] = OrderedDict()
        self._log = BurstLogger(_log, now=now)

    def refusal(self, request: HTTPConnection, problem: str, *, status: int = 401) -> HTTPException:
        """Count a wrong credential. 401 or another status with `problem`; beyond the limit 429."""
        peer, now = network(request.client.host if request.client else ""), self._now()
        recent = [guessed_at for guessed_at in self._guesses.get(peer, ()) if now - guessed_at < GUESS_SECONDS]
        path = "/".join(request.scope["path"].split("/")[:3])  # without ids
        self._log.warning("credential refused", {"peer": peer, "path": path})
        if len(recent) >= MAX_GUESSES:
            wait = max(1, math.ceil(recent[0] + GUESS_SECONDS - now))
            problem = f"too many wrong tokens from this address; try again in {wait} s"
            return HTTPException(429, problem, {"Retry-After": str(wait)})
        self._guesses[peer] = [*recent, now]
        self._guesses.move_to_end(peer)
        if len(self._guesses) > _MAX_ADDRESSES:
            self._guesses.popitem(last=False)
        return HTTPException(status, problem, _CHALLENGE if status == 401 else None)


def bearer_token(headers: Headers) -> str:
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
