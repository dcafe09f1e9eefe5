"""
API tokens: a scope, an expiry, and the hash of a secret that is shown once.

A token reads `vg_<id>_<secret>`. They are in the memory store, so nodes with one database share them. Each process
reads the table at most once per CACHE_SECONDS, however many requests come in: a revoked token is refused within that
time.
"""

import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from gateway.errors import StoreUnavailable
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore
from gateway.sealing import is_same

CACHE_SECONDS: Final = 5.0
DEFAULT_DAYS: Final = 90
MAX_DAYS: Final = 3650
MAX_LABEL: Final = 80
_USED_EVERY: Final = timedelta(hours=1)
"""How exactly the time of the last use is kept."""
_FORM: Final = re.compile(r"vg_([0-9a-f]{8})_([\w-]{43})")

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS api_tokens (
        id TEXT PRIMARY KEY, hash TEXT NOT NULL, scope TEXT NOT NULL, label TEXT NOT NULL, agent TEXT NOT NULL,
        caller TEXT NOT NULL, created TEXT NOT NULL, expires TEXT NOT NULL, last_used TEXT NOT NULL,
        revoked TEXT NOT NULL) WITHOUT ROWID""",
)


class TokenScope(StrEnum):
    """What a token is for. `admin` includes all others."""

    ADMIN = "admin"
    READ = "read"
    STORE = "store"
    MCP = "mcp"
    OUTBOUND = "outbound"
    LLM = "llm"
    """Answers of one agent, for a platform that hosts it. No caller's memory: that needs the token of a call."""
    WIDGET = "widget"


@dataclass(frozen=True)
class ApiToken:
    """
    What is kept of a token. With `agent` and `caller` it reaches only what that agent remembers of that caller.

    One of the scope `llm` has an agent and no caller.
    """

    id: str
    hash: str = field(repr=False)
    scope: TokenScope
    label: str
    agent: str
    caller: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def status(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at is not None and self.expires_at <= now else "active"


class TokenTable:
    """The tokens in a store that was opened with SCHEMA. Raises StoreUnavailable."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._now = now
        self._clock = clock
        self._known: dict[str, ApiToken] | None = None
        self._fresh_until = clock()

    async def create(
        self, scope: TokenScope, *, days: int = DEFAULT_DAYS, label: str = "", agent: str = "", caller: str = ""
    ) -> tuple[ApiToken, str]:
        """The new token and its text, which can't be shown again. 0 days: no expiry. ValueError says what to change."""
        if not 0 <= days <= MAX_DAYS:
            raise ValueError(f"a token is valid for 1 to {MAX_DAYS} days; 0 for no expiry")
        if len(label) > MAX_LABEL:
            raise ValueError(f"the label is longer than {MAX_LABEL} characters")
        if scope is TokenScope.LLM and (caller or not agent):
            raise ValueError("a token with the scope llm is bound to an agent; give the agent, and no caller")
        if scope is not TokenScope.LLM and bool(agent) != bool(caller):
            raise ValueError("a token is bound to an agent and a caller; give both or neither")
        if caller and scope is not TokenScope.MCP:
            raise ValueError("only tokens with the scope mcp can be bound to an agent and a caller")
        id_, secret, now = secrets.token_hex(4), secrets.token_urlsafe(32), self._now()
        expires = now + timedelta(days=days) if days else None
        token = ApiToken(id_, _hash(secret), scope, label, agent, caller, now, expires, None, None)
        values = (id_, token.hash, str(scope), label, agent, caller, time_text(now), _text(expires), "", "")
        await self._store.change(f"INSERT INTO api_tokens VALUES ({', '.join('?' * len(values))})", *values)
        self._fresh_until = self._clock()
        return token, f"vg_{id_}_{secret}"

    async def tokens(self) -> list[ApiToken]:
        """All of them, newest first."""
        return list(map(_token, await self._store.fetch("SELECT * FROM api_tokens ORDER BY created DESC, id")))

    async def revoke(self, token_id: str) -> bool:
        """Whether there was such a token that was not revoked yet."""
        statement = "UPDATE api_tokens SET revoked = ? WHERE id = ? AND revoked = ''"
        changed = await self._store.change(statement, time_text(self._now()), token_id)
        self._fresh_until = self._clock()
        return changed > 0

    async def find(self, text: str) -> ApiToken | None:
        """The token with this text; the caller checks its status. Reads the store at most once per CACHE_SECONDS."""
        form = _FORM.fullmatch(text)
        token = (await self._current()).get(form[1]) if form else None
        if form is None or token is None or not is_same(_hash(form[2]), token.hash):
            return None
        await self._note_use(token)
        return token

    async def is_active(self, token_id: str) -> bool:
        token = (await self._current()).get(token_id)
        return token is not None and token.status(self._now()) == "active"

    async def _current(self) -> dict[str, ApiToken]:
        """While the database is away, the tokens as they were last read."""
        now = self._clock()
        if self._known is None or now >= self._fresh_until:
            try:
                self._known = {token.id: token for token in await self.tokens()}
            except StoreUnavailable:
                if self._known is None:
                    raise
            self._fresh_until = now + CACHE_SECONDS
        return self._known

    async def _note_use(self, token: ApiToken) -> None:
        now = self._now()
        if token.status(now) != "active" or (token.last_used_at and now - token.last_used_at < _USED_EVERY):
            return
        (await self._current())[token.id] = replace(token, last_used_at=now)
        statement = "UPDATE api_tokens SET last_used = ? WHERE id = ?"
        with contextlib.suppress(StoreUnavailable):
            await self._store.change(statement, time_text(now), token.id)


def forget_bound_tokens(connection: Connection, agent: str, caller: str) -> int:
    """Delete the tokens bound to a caller and one agent, or all agents if it is empty. Returns how many."""
    statement = "DELETE FROM api_tokens WHERE caller = ? AND ? IN ('', agent)"
    return connection.execute(statement, (caller, agent)).rowcount


def _hash(secret: str) -> str:
    # SHA-256, not scrypt: a slow hash makes guessing passwords slow, and 256 random bits can't be guessed at any speed.
    return hashlib.sha256(secret.encode()).hexdigest()


def _text(time_: datetime | None) -> str:
    return time_text(time_) if time_ is not None else ""


def _token(row: Any) -> ApiToken:
    id_, hash_, scope, label, agent, caller, created, *times = row
    expires, used, revoked = (datetime.fromisoformat(text) if text else None for text in times)
    created_at = datetime.fromisoformat(created)
    return ApiToken(id_, hash_, TokenScope(scope), label, agent, caller, created_at, expires, used, revoked)
