"""
PIN codes of callers: a salted hash of each, and the failed attempts of the last hour.

Attempts are counted over all calls and nodes: after five failures no PIN is checked for an hour. They are counted in
the store and, if each node has a store of its own, where the nodes share counters.
"""

import asyncio
import contextlib
import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import orjson

from gateway.errors import SharedStoreUnavailable
from gateway.memory.access import PinResult, check_common_pin
from gateway.memory.stores.database import Connection, Migration, tables
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore
from gateway.settings import Secret

MOST_FAILURES: Final = 5
FAILURES_COUNT: Final = timedelta(hours=1)

SCHEMA: Final = (
    *tables("pin_codes"),
    # Without the length of the PIN, which is then completed with #.
    Migration("caller_pin_codes", "INSERT INTO pin_codes SELECT agent, caller, salt, hash, 0 FROM caller_pin_codes"),
)

_OF_CALLER: Final = "WHERE agent = ? AND caller = ?"


class Counters(Protocol):
    """Counters that nodes share. Every method raises SharedStoreUnavailable."""

    async def admit(self, name: str, limit: int, seconds: float) -> float:
        """Count one more unless there were `limit` in the last `seconds`. How long it takes until one more counts."""

    async def delete(self, name: str) -> bool: ...


class PinCodeStore:
    """The PIN codes of callers with agents, in a store that was opened with SCHEMA. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore, shared: Counters) -> None:
        self._store = store
        self._shared = shared

    async def set(self, agent: str, caller: str, pin: str) -> None:
        """Store a PIN, in place of any other. Raises ValueError, without quoting it, unless it is 4 to 12 digits."""
        if not re.fullmatch("[0-9]{4,12}", pin):
            raise ValueError("a PIN has 4 to 12 digits")
        salt = secrets.token_hex(16)
        hashed = await asyncio.to_thread(_hash, pin, salt)

        def work(connection: Connection) -> None:
            _delete(connection, agent, caller)
            row = (agent, caller, salt, hashed, len(pin))
            connection.execute("INSERT INTO pin_codes VALUES (?, ?, ?, ?, ?)", row)

        await self._store.run(work)
        await _clear(self._shared, agent, caller)

    async def remove(self, agent: str, caller: str) -> bool:
        """Delete the PIN and its failures. Returns whether there was one."""
        existed = await self._store.run(lambda connection: _delete(connection, agent, caller))
        await _clear(self._shared, agent, caller)
        return existed

    async def forget(self, agent: str, caller: str) -> int:
        """Delete a caller's PIN codes and failures, with one agent or, if it is empty, all. Returns how many PINs."""
        condition = "WHERE caller = ? AND ? IN ('', agent)"
        await self._store.change(f"DELETE FROM pin_code_failures {condition}", caller, agent)
        return await self._store.change(f"DELETE FROM pin_codes {condition}", caller, agent)

    async def length(self, agent: str, caller: str) -> int:
        """How many digits the caller's PIN has; 0 without one."""
        found = await self._store.fetch(f"SELECT length FROM pin_codes {_OF_CALLER}", agent, caller)
        return int(found[0][0]) if found else 0

    async def check(
        self, agent: str, caller: str, tried: str, *, common: Secret | None = None, now: datetime | None = None
    ) -> PinResult | None:
        """The result of an attempt at the caller's PIN or, without one, the `common` one. None without either."""
        moment = now or datetime.now(UTC)
        oldest = time_text(moment - FAILURES_COUNT)

        def begin(connection: Connection) -> Any:
            """Count the attempt as failed before it is checked, so that parallel guesses count too."""
            query = f"SELECT salt, hash FROM pin_codes {_OF_CALLER}"
            stored = connection.execute(query, (agent, caller)).fetchone()
            connection.execute(f"DELETE FROM pin_code_failures {_OF_CALLER} AND at <= ?", (agent, caller, oldest))
            query = f"SELECT count(*) FROM pin_code_failures {_OF_CALLER}"
            [failures] = connection.execute(query, (agent, caller)).fetchone()
            if (stored or common) and failures < MOST_FAILURES:
                statement = "INSERT INTO pin_code_failures (agent, caller, at) VALUES (?, ?, ?)"
                connection.execute(statement, (agent, caller, time_text(moment)))
            return stored, failures

        stored, failures = await self._store.run(begin)
        if stored is None and common is None:
            return None
        if failures >= MOST_FAILURES or await _is_locked(self._shared, agent, caller):
            return PinResult.LOCKED
        if stored is None:
            result = check_common_pin(common, tried)
        else:
            salt, hashed = stored
            is_right = hmac.compare_digest(await asyncio.to_thread(_hash, tried, salt), hashed)
            result = PinResult.RIGHT if is_right else PinResult.WRONG
        if result is PinResult.RIGHT:
            await self._store.change(f"DELETE FROM pin_code_failures {_OF_CALLER}", agent, caller)
            await _clear(self._shared, agent, caller)
            return result
        return PinResult.WRONG if failures + 1 < MOST_FAILURES else PinResult.LOCKED


async def check_counted(
    counters: Counters, agent: str, caller: str, tried: str, common: Secret | None
) -> PinResult | None:
    """The result of an attempt at the PIN of all callers, where nothing else is stored of them; None without one."""
    if common is not None and await _is_locked(counters, agent, caller):
        return PinResult.LOCKED
    result = check_common_pin(common, tried)
    if result is PinResult.RIGHT:
        await _clear(counters, agent, caller)
    return result


# Failures at all nodes. While the shared counters are away, each node has its own limit.


async def _is_locked(counters: Counters, agent: str, caller: str) -> bool:
    """Counts an attempt before it is checked."""
    try:
        return await counters.admit(_counter(agent, caller), MOST_FAILURES, FAILURES_COUNT.total_seconds()) > 0
    except SharedStoreUnavailable:
        return False


async def _clear(counters: Counters, agent: str, caller: str) -> None:
    with contextlib.suppress(SharedStoreUnavailable):
        await counters.delete(_counter(agent, caller))


def _counter(agent: str, caller: str) -> str:
    """Without the caller's number: an erasure does not reach counters, which expire after an hour."""
    return f"pin-failures:{hashlib.sha256(orjson.dumps([agent, caller])).hexdigest()}"


def _hash(pin: str, salt: str) -> str:
    # The parameters that OWASP recommends for scrypt. 16 MiB and some 50 ms: not on the event loop.
    return hashlib.scrypt(pin.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=5).hex()


def _delete(connection: Connection, agent: str, caller: str) -> bool:
    connection.execute(f"DELETE FROM pin_code_failures {_OF_CALLER}", (agent, caller))
    return connection.execute(f"DELETE FROM pin_codes {_OF_CALLER}", (agent, caller)).rowcount > 0
