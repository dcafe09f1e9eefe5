"""
Key-value state of one caller with one agent: a log in which the newest entry of each key counts, among those of the
most trusted calls.

A session writes all values that it set once, at its end, even unchanged ones. So a repeated write does no harm, and
removing one session's entries leaves the state as it would be without that session.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeGuard

import orjson

from gateway.memory.stores.database import Connection, Migration, tables
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore
from gateway.session import TrustLevel

Scalar = str | int | float | bool
Value = Scalar | dict[str, Scalar]

MOST_KEYS: Final = 100
"""Keys per agent and caller."""
MOST_KEY_CHARACTERS: Final = 100
MOST_VALUE_CHARACTERS: Final = 4000
"""Of a value as JSON."""

SCHEMA: Final = (
    *tables("state"),
    # Until November 2026 the level of the call was not stored. Every call counts as trusted.
    Migration(
        "caller_state_log",
        """INSERT INTO caller_state (agent, caller, key, value, session_id, at, trust)
            SELECT agent, caller, key, value, session_id, at, 3 FROM caller_state_log ORDER BY number""",
    ),
)


class CallerState(dict[str, Value]):
    """The current value of every key, ordered by key."""

    unverified: frozenset[str] = frozenset()
    """The keys that only calls below the highest trust level have set."""


class StateRefused(ValueError):
    """A key or value that cannot be kept. The text is one sentence that quotes neither."""


class CallerStateStore:
    """The state that agents keep about callers, in a store that was opened with SCHEMA. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def load(self, agent: str, caller: str) -> CallerState:
        rows = await self._store.look(lambda connection: _current(connection, agent, caller))
        state = CallerState((key, orjson.loads(value)) for key, value, _ in rows)
        state.unverified = frozenset(key for key, _, trust in rows if trust < TrustLevel.EVERYTHING)
        return state

    async def save(
        self,
        agent: str,
        caller: str,
        values: Mapping[str, Value],
        *,
        session_id: str,
        now: datetime,
        trust: TrustLevel = TrustLevel.EVERYTHING,
    ) -> None:
        """
        Store the values that a session set, all or nothing. Saving the same session again changes nothing.

        A session that is saved late does not overwrite one with a later `now`, nor any session one of higher trust.
        Raises ValueError for values that `check_value` rejects, and for too many keys.
        """
        texts = {key: _json(check_value(key, value)) for key, value in values.items()}
        at = time_text(now)

        def work(connection: Connection) -> None:
            first = "INSERT INTO caller_state_saves (session_id, agent) VALUES (?, ?) ON CONFLICT DO NOTHING"
            if not connection.execute(first, (session_id, agent)).rowcount:
                return
            # The keys of less trusted calls do not count: they must not keep others from being stored.
            current = {key for key, _, level in _current(connection, agent, caller) if level >= trust}
            if len(current | texts.keys()) > MOST_KEYS:
                raise ValueError(f"an agent keeps at most {MOST_KEYS} state keys about a caller")
            connection.executemany(
                """INSERT INTO caller_state (agent, caller, key, value, session_id, at, trust)
                    VALUES (?, ?, ?, ?, ?, ?, ?)""",
                [(agent, caller, key, text, session_id, at, int(trust)) for key, text in texts.items()],
            )

        await self._store.run(work)

    async def drop(self, agent: str, caller: str, key: str) -> int:
        """Delete a key and its history. Returns how many entries there were."""
        statement = "DELETE FROM caller_state WHERE agent = ? AND caller = ? AND key = ?"
        return await self._store.change(statement, agent, caller, key)

    async def forget(self, agent: str, caller: str) -> int:
        """Delete a caller's state and its history. Returns how many entries there were."""
        statement = "DELETE FROM caller_state WHERE agent = ? AND caller = ?"
        return await self._store.change(statement, agent, caller)

    async def revert(self, session_id: str) -> int:
        """Delete a session's entries; earlier values count again. Returns how many entries there were."""
        return await self._store.change("DELETE FROM caller_state WHERE session_id = ?", session_id)


def check_value(key: object, value: object) -> Value:
    """The value, if it and its key can be stored. Raises StateRefused."""
    parts: dict[Any, Any] = dict(value) if isinstance(value, dict) else {}
    for name in (key, *parts):
        if not isinstance(name, str) or not 1 <= len(name) <= MOST_KEY_CHARACTERS:
            raise StateRefused(f"a state key must be text of 1 to {MOST_KEY_CHARACTERS} characters")
        _json(name)
    if not all(map(_is_scalar, parts.values())):
        raise StateRefused("a dictionary in a state value may hold only text, finite numbers, true and false")
    if isinstance(value, dict):
        checked: Value = parts
    elif _is_scalar(value):
        checked = value
    else:
        raise StateRefused("a state value must be text, a finite number, true, false, or a flat dictionary of these")
    if len(_json(checked)) > MOST_VALUE_CHARACTERS:
        raise StateRefused(f"a state value may have at most {MOST_VALUE_CHARACTERS} characters as JSON")
    return checked


def _is_scalar(value: object) -> TypeGuard[Scalar]:
    return isinstance(value, Scalar) and not (isinstance(value, float) and not math.isfinite(value))


def listed(values: Mapping[str, Value], keys: frozenset[str] | None) -> dict[str, Value]:
    """The values whose keys are listed; without a list, all of them."""
    return {key: value for key, value in values.items() if keys is None or key in keys}


def _json(value: Value) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        # The cause may quote the value.
        raise StateRefused("a state value must be Unicode text and numbers of at most 64 bits") from None


def _current(connection: Connection, agent: str, caller: str) -> list[tuple[str, str, int]]:
    """Each key with the value that counts, as JSON, and its trust level."""
    rows = connection.execute(
        """SELECT key, value, trust FROM (
            SELECT key, value, trust,
                row_number() OVER (PARTITION BY key ORDER BY trust DESC, at DESC, number DESC) AS place
            FROM caller_state WHERE agent = ? AND caller = ?) entries
        WHERE place = 1 ORDER BY key""",
        (agent, caller),
    )
    return rows.fetchall()
