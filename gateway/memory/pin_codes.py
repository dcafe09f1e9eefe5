"""
PIN codes of callers: a salted hash of each, and the failed attempts of the last hour.

Attempts are counted in the store, over all calls and nodes: after five failures no PIN is checked for an hour.
"""

import asyncio
import hashlib
import hmac
import re
import secrets
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gateway.memory.access import PinResult
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore

MOST_FAILURES: Final = 5
FAILURES_COUNT: Final = timedelta(hours=1)

SCHEMA: Final = tables("pin_codes")

_OF_CALLER: Final = "WHERE agent = ? AND caller = ?"


class PinCodeStore:
    """The PIN codes of callers with agents, in a store that was opened with SCHEMA. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def set(self, agent: str, caller: str, pin: str) -> None:
        """Store a PIN, in place of any other. Raises ValueError, without quoting it, unless it is 4 to 12 digits."""
        if not re.fullmatch("[0-9]{4,12}", pin):
            raise ValueError("a PIN has 4 to 12 digits")
        salt = secrets.token_hex(16)
        hashed = await asyncio.to_thread(_hash, pin, salt)

        def work(connection: Connection) -> None:
            _delete(connection, agent, caller)
            connection.execute("INSERT INTO caller_pin_codes VALUES (?, ?, ?, ?)", (agent, caller, salt, hashed))

        await self._store.run(work)

    async def remove(self, agent: str, caller: str) -> bool:
        """Delete the PIN and its failures. Returns whether there was one."""
        return await self._store.run(lambda connection: _delete(connection, agent, caller))

    async def forget(self, agent: str, caller: str) -> int:
        """Delete a caller's PIN codes and failures, with one agent or, if it is empty, all. Returns how many PINs."""
        condition = "WHERE caller = ? AND ? IN ('', agent)"
        await self._store.change(f"DELETE FROM pin_code_failures {condition}", caller, agent)
        return await self._store.change(f"DELETE FROM caller_pin_codes {condition}", caller, agent)

    async def count(self, agent: str, caller: str, *, right: bool, now: datetime | None = None) -> bool:
        """Count an attempt at a PIN that is checked elsewhere. Returns whether it is valid: the PIN is not locked."""
        moment = now or datetime.now(UTC)
        oldest = time_text(moment - FAILURES_COUNT)

        def work(connection: Connection) -> bool:
            query = f"SELECT count(*) FROM pin_code_failures {_OF_CALLER} AND at > ?"
            [failures] = connection.execute(query, (agent, caller, oldest)).fetchone()
            if failures >= MOST_FAILURES:
                return False
            # Those that no longer count, and all of them after the right PIN.
            limit = time_text(moment) if right else oldest
            connection.execute(f"DELETE FROM pin_code_failures {_OF_CALLER} AND at <= ?", (agent, caller, limit))
            if not right:
                statement = "INSERT INTO pin_code_failures (agent, caller, at) VALUES (?, ?, ?)"
                connection.execute(statement, (agent, caller, time_text(moment)))
            return True

        return await self._store.run(work)

    async def check(self, agent: str, caller: str, tried: str, *, now: datetime | None = None) -> PinResult | None:
        """The result of an attempt; None for a caller without a PIN."""
        moment = now or datetime.now(UTC)
        oldest = time_text(moment - FAILURES_COUNT)

        def begin(connection: Connection) -> Any:
            """Count the attempt as failed before it is checked, so that parallel guesses count too."""
            query = f"SELECT salt, hash FROM caller_pin_codes {_OF_CALLER}"
            stored = connection.execute(query, (agent, caller)).fetchone()
            connection.execute(f"DELETE FROM pin_code_failures {_OF_CALLER} AND at <= ?", (agent, caller, oldest))
            query = f"SELECT count(*) FROM pin_code_failures {_OF_CALLER}"
            [failures] = connection.execute(query, (agent, caller)).fetchone()
            if stored and failures < MOST_FAILURES:
                statement = "INSERT INTO pin_code_failures (agent, caller, at) VALUES (?, ?, ?)"
                connection.execute(statement, (agent, caller, time_text(moment)))
            return stored, failures

        stored, failures = await self._store.run(begin)
        if stored is None:
            return None
        if failures >= MOST_FAILURES:
            return PinResult.LOCKED
        salt, hashed = stored
        if hmac.compare_digest(await asyncio.to_thread(_hash, tried, salt), hashed):
            await self._store.change(f"DELETE FROM pin_code_failures {_OF_CALLER}", agent, caller)
            return PinResult.RIGHT
        return PinResult.WRONG if failures + 1 < MOST_FAILURES else PinResult.LOCKED


def _hash(pin: str, salt: str) -> str:
    # The parameters that OWASP recommends for scrypt. 16 MiB and some 50 ms: not on the event loop.
    return hashlib.scrypt(pin.encode(), salt=bytes.fromhex(salt), n=2**14, r=8, p=5).hex()


def _delete(connection: Connection, agent: str, caller: str) -> bool:
    connection.execute(f"DELETE FROM pin_code_failures {_OF_CALLER}", (agent, caller))
    return connection.execute(f"DELETE FROM caller_pin_codes {_OF_CALLER}", (agent, caller)).rowcount > 0
