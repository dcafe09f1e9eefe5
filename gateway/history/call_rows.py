"""
What lists and figures need of every call: a narrow table beside the book of calls, with an index for each way to ask.

The book keeps it in step. A page of it is read through an index, whatever the number of calls.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from gateway.memory.database import Connection
from gateway.memory.store import MemoryStore

STAGES: Final = ("transcript", "llm_request", "first_token", "first_audio", "first_frame")

SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS call_lines (
        session_id TEXT PRIMARY KEY,
        started_at TEXT NOT NULL,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        carrier TEXT NOT NULL,
        outcome TEXT NOT NULL,
        seconds REAL NOT NULL,
        turns INTEGER NOT NULL,
        told INTEGER NOT NULL,
        stages TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS call_lines_by_time ON call_lines (started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_agent ON call_lines (agent, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_carrier ON call_lines (carrier, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_outcome ON call_lines (outcome, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_caller ON call_lines (caller, started_at, session_id)",
)

_SHOWN: Final = "session_id, started_at, agent, caller, carrier, outcome, seconds, turns, told"
_FACTS_KNOWN: Final = """SELECT DISTINCT caller, documents.id, metadata FROM memory_entries
    JOIN documents ON documents.id = memory_entries.document_id
    WHERE memory_entries.source = 'caller-fact' AND caller IN ({marks})"""
_UNLISTED: Final = """SELECT session_id, agent, caller, started_at, facts FROM calls
    WHERE session_id NOT IN (SELECT session_id FROM call_lines) LIMIT 200"""
_LONGEST_MS: Final = 99_999
_DIGITS: Final = (10_000, 1000, 100, 10, 1)


def write_line(
    connection: Connection, session_id: str, agent: str, caller: str, started_at: str, facts: Mapping[str, Any]
) -> None:
    """The line of a call, in the transaction that books it; the same call again changes it."""
    connection.execute("DELETE FROM call_lines WHERE session_id = ?", (session_id,))
    told = len(facts["receipt"].get("items", ()))
    stages = "|".join(_milliseconds(facts["timings"], stage) for stage in STAGES)
    connection.execute(
        f"INSERT INTO call_lines ({_SHOWN}, stages) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session_id,
            started_at,
            agent,
            caller,
            facts["carrier"],
            facts["end_reason"],
            facts["seconds"],
            facts["turns"],
            told,
            stages,
        ),
    )


def _milliseconds(timings: Iterable[Mapping[str, float | None]], stage: str) -> str:
    """Of each turn that reached it, five digits: however many there are, they are read in no time."""
    seconds = (timing.get(stage) for timing in timings)
    return "".join(f"{min(max(round(value * 1000), 0), _LONGEST_MS):05}" for value in seconds if value is not None)


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call in a list. `told`: so many things of earlier calls the agent was told."""

    session_id: str
    started_at: str
    agent: str
    caller: str
    carrier: str
    outcome: str
    seconds: float
    turns: int
    told: int

    @property
    def uuid(self) -> str:
        return self.session_id.removeprefix("voice-session:")

    @property
    def place(self) -> str:
        """Where it stands in a list; the next page goes on from there."""
        return f"{self.started_at}~{self.uuid}"


@dataclass(frozen=True, slots=True)
class CallerRow:
    """A caller in a list; `session_id` is of the last call."""

    caller: str
    calls: int
    last_call: str
    session_id: str
    facts: int


@dataclass(frozen=True, slots=True)
class LatencyBucket:
    """
    The calls of one step in time that ended in one way.

    `told`: in so many of them the agent was told something. `stages` has, for each of STAGES, the milliseconds of every
    turn, five digits each.
    """

    step: int
    outcome: str
    calls: int
    seconds: float
    told: int
    stages: tuple[str, ...]

    def turns(self, stage: str) -> int:
        """How many reached this stage."""
        return len(self.stages[STAGES.index(stage)]) // len(_DIGITS)


@dataclass(frozen=True)
class CallRowFilter:
    """Which calls; what is empty does not matter. `digits` stand anywhere in the number; days as 2026-02-06T00:00…"""

    agent: str = ""
    carrier: str = ""
    outcome: str = ""
    caller: str = ""
    digits: str = ""
    since: str = ""
    before: str = ""

    def where(self) -> tuple[str, list[str]]:
        """Conditions and their values. The names are ours, the values never part of the text."""
        conditions = {
            "agent = ?": self.agent,
            "carrier = ?": self.carrier,
            "outcome = ?": self.outcome,
            "caller = ?": self.caller,
            "caller LIKE ?": f"%{self.digits}%" if self.digits else "",
            "started_at >= ?": self.since,
            "started_at < ?": self.before,
        }
        given = {condition: value for condition, value in conditions.items() if value}
        return " AND ".join(given) or "true", list(given.values())

    def admits(self, line: CallRow) -> bool:
        """The same, of a line that was found in another way."""
        is_whose = self.caller in ("", line.caller) and self.digits in line.caller
        is_how = self.agent in ("", line.agent) and self.carrier in ("", line.carrier)
        is_when = self.since <= line.started_at and (not self.before or line.started_at < self.before)
        return is_whose and is_how and is_when and self.outcome in ("", line.outcome)


EVERY_CALL: Final = CallRowFilter()


class CallRows:
    """Reads the table. Raises StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def page(self, wanted: CallRowFilter, *, after: str = "", limit: int = 50) -> list[CallRow]:
        """The newest of these calls, or those after a line's `place`."""
        where, values = wanted.where()
        if after:
            started_at, _, uuid = after.partition("~")
            where, values = f"(started_at, session_id) < (?, ?) AND {where}", [started_at, _id(uuid), *values]
        query = f"SELECT {_SHOWN} FROM call_lines WHERE {where} ORDER BY started_at DESC, session_id DESC LIMIT ?"
        return [CallRow(*row) for row in await self._fetch(query, *values, limit)]

    async def count(self, wanted: CallRowFilter) -> int:
        where, values = wanted.where()
        [(number,)] = await self._fetch(f"SELECT count(*) FROM call_lines WHERE {where}", *values)
        return int(number)

    async def these(self, session_ids: Iterable[str]) -> list[CallRow]:
        """The calls with these ids, in their order; one that is not booked is left out."""
        ids = list(session_ids)
        marks = ", ".join("?" * len(ids))
        rows = await self._fetch(f"SELECT {_SHOWN} FROM call_lines WHERE session_id IN ({marks})", *ids)
        lines = {line.session_id: line for line in (CallRow(*row) for row in rows)}
        return [lines[id_] for id_ in ids if id_ in lines]

    async def callers(self, digits: str = "", *, limit: int = 50, offset: int = 0) -> list[CallerRow]:
        """Who called, last first."""
        query = """SELECT caller, count(*), max(started_at || '~' || session_id) AS newest FROM call_lines
            WHERE caller LIKE ? GROUP BY caller ORDER BY newest DESC LIMIT ? OFFSET ?"""
        rows = await self._fetch(query, f"%{digits}%", limit, offset)
        facts = await self._facts_known([caller for caller, *_ in rows])
        newest = {caller: place.partition("~") for caller, _, place in rows}
        return [
            CallerRow(caller, calls, newest[caller][0], newest[caller][2], facts[caller]) for caller, calls, _ in rows
        ]

    async def _facts_known(self, callers: list[str]) -> Counter[str]:
        if not callers:
            return Counter()
        found = await self._fetch(_FACTS_KNOWN.format(marks=", ".join("?" * len(callers))), *callers)
        return Counter(caller for caller, _, metadata in found if not orjson.loads(metadata).get("superseded_by"))

    async def count_callers(self, digits: str = "") -> int:
        query = "SELECT count(DISTINCT caller) FROM call_lines WHERE caller LIKE ?"
        [(number,)] = await self._fetch(query, f"%{digits}%")
        return int(number)

    async def agents(self) -> list[str]:
        return [agent for (agent,) in await self._fetch("SELECT DISTINCT agent FROM call_lines ORDER BY agent")]

    async def oldest(self, wanted: CallRowFilter) -> str:
        """When the first of these calls began; empty for none."""
        where, values = wanted.where()
        [(moment,)] = await self._fetch(f"SELECT min(started_at) FROM call_lines WHERE {where}", *values)
        return moment or ""

    async def measured(self, begins: Sequence[str], wanted: CallRowFilter = EVERY_CALL) -> list[LatencyBucket]:
        """Those since the first of these moments, by steps that begin at each. Added up off the loop."""
        where, values = replace(wanted, since=begins[0]).where()
        query = f"SELECT started_at, outcome, seconds, told, stages FROM call_lines WHERE {where}"

        def work(connection: Connection) -> list[LatencyBucket]:
            grouped: dict[tuple[int, str], list[tuple[float, int, str]]] = {}
            for started_at, outcome, *rest in connection.execute(query, values):
                place = bisect_right(begins, started_at) - 1
                grouped.setdefault((place, outcome), []).append(tuple(rest))
            return [_added_up(place, outcome, some) for (place, outcome), some in sorted(grouped.items())]

        return await self._store.look(work)

    async def callers_since(self, since: str) -> tuple[int, int]:
        """How many called since then, and how many of them not for the first time."""
        query = """SELECT count(*), coalesce(sum(CASE WHEN calls > 1 THEN 1 ELSE 0 END), 0) FROM
            (SELECT count(*) AS calls FROM call_lines GROUP BY caller HAVING max(started_at) >= ?) AS per_caller"""
        [(callers, returning)] = await self._fetch(query, since)
        return callers, returning

    async def catch_up(self) -> None:
        """Take in calls that an earlier version has booked, some at a time."""

        def work(connection: Connection) -> int:
            rows = connection.execute(_UNLISTED).fetchall()
            for session_id, agent, caller, started_at, facts in rows:
                write_line(connection, session_id, agent, caller, started_at, orjson.loads(facts))
            return len(rows)

        while await self._store.run(work):
            pass

    async def _fetch(self, query: str, *values: Any) -> list[Any]:
        def work(connection: Connection) -> list[Any]:
            return connection.execute(query, values).fetchall()

        return await self._store.look(work)


def percentiles(measured: Iterable[LatencyBucket], stage: str, ranks: Sequence[float]) -> list[float]:
    """For each rank, the smallest seconds that so many of a hundred turns do not exceed. Empty without a turn."""
    import numpy as np  # it takes a while to load, and most gateways show no figures

    place = STAGES.index(stage)
    digits = np.frombuffer("".join(some.stages[place] for some in measured).encode(), np.uint8) - ord("0")
    if not digits.size:
        return []
    milliseconds = digits.reshape(-1, len(_DIGITS)) @ _DIGITS
    return [float(value) / 1000 for value in np.percentile(milliseconds, ranks, method="inverted_cdf")]


def _id(uuid: str) -> str:
    return f"voice-session:{uuid}"


def _added_up(place: int, outcome: str, calls: list[tuple[float, int, str]]) -> LatencyBucket:
    stages = zip(*(stages.split("|") for _, _, stages in calls), strict=True)
    told = sum(told > 0 for _, told, _ in calls)
    return LatencyBucket(place, outcome, len(calls), sum(call[0] for call in calls), told, tuple(map("".join, stages)))
