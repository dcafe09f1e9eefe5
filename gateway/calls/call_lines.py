"""
What lists and figures need of every call: a narrow table beside the book of calls, with an index for each way to ask.

Triggers keep it in step with the book. A page of it is read through an index, whatever the number of calls.
"""

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gateway.memory.sqlite import SqliteStore

STAGES: Final = ("transcript", "llm_request", "first_token", "first_audio", "first_frame")

_COLUMNS: Final = f"""session_id, started_at, agent, caller, carrier, outcome, seconds, turns, told,
    {", ".join(f"{stage}_ms" for stage in STAGES)}"""
# Each turn's milliseconds to a stage, five digits each: however many there are, they are read in no time.
_STAGE_MS: Final = """(
    SELECT coalesce(group_concat(
        printf('%05d', min(max(round(1000 * json_extract(value, '$.{stage}')), 0), 99999)), ''), '')
    FROM json_each({row}facts, '$.timings') WHERE json_extract(value, '$.{stage}') IS NOT NULL)"""


def _of_book(row: str) -> str:
    """What the columns hold, from a row of the book."""
    return f"""{row}session_id, {row}started_at, {row}agent, {row}caller,
        json_extract({row}facts, '$.carrier'), json_extract({row}facts, '$.end_reason'),
        json_extract({row}facts, '$.seconds'), json_extract({row}facts, '$.turns'),
        coalesce(json_array_length({row}facts, '$.receipt.items'), 0),
        {", ".join(_STAGE_MS.format(stage=stage, row=row) for stage in STAGES)}"""


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
        transcript_ms TEXT NOT NULL,
        llm_request_ms TEXT NOT NULL,
        first_token_ms TEXT NOT NULL,
        first_audio_ms TEXT NOT NULL,
        first_frame_ms TEXT NOT NULL) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS call_lines_by_time ON call_lines (started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_agent ON call_lines (agent, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_carrier ON call_lines (carrier, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_outcome ON call_lines (outcome, started_at, session_id)",
    "CREATE INDEX IF NOT EXISTS call_lines_by_caller ON call_lines (caller, started_at, session_id)",
    f"""CREATE TRIGGER IF NOT EXISTS calls_inserted AFTER INSERT ON calls BEGIN
        INSERT OR REPLACE INTO call_lines ({_COLUMNS}) VALUES ({_of_book("new.")});
    END""",
    """CREATE TRIGGER IF NOT EXISTS calls_deleted AFTER DELETE ON calls BEGIN
        DELETE FROM call_lines WHERE session_id = old.session_id;
    END""",
    # Of calls that an earlier version has booked.
    f"""INSERT INTO call_lines ({_COLUMNS}) SELECT {_of_book("")} FROM calls
        WHERE session_id NOT IN (SELECT session_id FROM call_lines)""",
)

_SHOWN: Final = "session_id, started_at, agent, caller, carrier, outcome, seconds, turns, told"

_FACTS_KNOWN: Final = """SELECT caller, count(DISTINCT documents.id) FROM memory_log
    JOIN documents ON documents.id = memory_log.document_id
    WHERE caller IN ({marks}) AND json_extract(metadata, '$.superseded_by') IS NULL GROUP BY caller"""


@dataclass(frozen=True, slots=True)
class CallLine:
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
class CallerLine:
    """A caller in a list; `session_id` is of the last call."""

    caller: str
    calls: int
    last_call: str
    session_id: str
    facts: int


@dataclass(frozen=True, slots=True)
class Measured:
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


@dataclass(frozen=True)
class Wanted:
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
            "instr(caller, ?) > 0": self.digits,
            "started_at >= ?": self.since,
            "started_at < ?": self.before,
        }
        given = {condition: value for condition, value in conditions.items() if value}
        return " AND ".join(given) or "true", list(given.values())

    def admits(self, line: CallLine) -> bool:
        """The same, of a line that was found in another way."""
        is_whose = self.caller in ("", line.caller) and self.digits in line.caller
        is_how = self.agent in ("", line.agent) and self.carrier in ("", line.carrier)
        is_when = self.since <= line.started_at and (not self.before or line.started_at < self.before)
        return is_whose and is_how and is_when and self.outcome in ("", line.outcome)


class CallLines:
    """Reads the table. Raises StoreUnavailable."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    async def page(self, wanted: Wanted, *, after: str = "", limit: int = 50) -> list[CallLine]:
        """The newest of these calls, or those after a line's `place`."""
        where, values = wanted.where()
        if after:
            started_at, _, uuid = after.partition("~")
            where, values = f"(started_at, session_id) < (?, ?) AND {where}", [started_at, _id(uuid), *values]
        query = f"SELECT {_SHOWN} FROM call_lines WHERE {where} ORDER BY started_at DESC, session_id DESC LIMIT ?"
        return [CallLine(*row) for row in await self._fetch(query, *values, limit)]

    async def count(self, wanted: Wanted) -> int:
        where, values = wanted.where()
        [(number,)] = await self._fetch(f"SELECT count(*) FROM call_lines WHERE {where}", *values)
        return int(number)

    async def these(self, session_ids: Iterable[str]) -> list[CallLine]:
        """The calls with these ids, in their order; one that is not booked is left out."""
        ids = list(session_ids)
        marks = ", ".join("?" * len(ids))
        rows = await self._fetch(f"SELECT {_SHOWN} FROM call_lines WHERE session_id IN ({marks})", *ids)
        lines = {line.session_id: line for line in (CallLine(*row) for row in rows)}
        return [lines[id_] for id_ in ids if id_ in lines]

    async def callers(self, digits: str = "", *, limit: int = 50, offset: int = 0) -> list[CallerLine]:
        """Who called, last first."""
        query = """SELECT caller, count(*), max(started_at), session_id FROM call_lines WHERE instr(caller, ?) > 0
            GROUP BY caller ORDER BY max(started_at) DESC LIMIT ? OFFSET ?"""
        rows = await self._fetch(query, digits, limit, offset)
        facts = dict(
            await self._fetch(_FACTS_KNOWN.format(marks=", ".join("?" * len(rows))), *(row[0] for row in rows))
        )
        return [
            CallerLine(caller, calls, last_call, session_id, facts.get(caller, 0))
            for caller, calls, last_call, session_id in rows
        ]

    async def count_callers(self, digits: str = "") -> int:
        query = "SELECT count(DISTINCT caller) FROM call_lines WHERE instr(caller, ?) > 0"
        [(number,)] = await self._fetch(query, digits)
        return int(number)

    async def agents(self) -> list[str]:
        return [agent for (agent,) in await self._fetch("SELECT DISTINCT agent FROM call_lines ORDER BY agent")]

    async def measured(self, since: str, step_days: float) -> list[Measured]:
        """All since then, by steps of so many days. Added up by the database, which needs no interpreter for it."""
        stages = ", ".join(f"group_concat({stage}_ms, '')" for stage in STAGES)
        query = f"""SELECT CAST((julianday(started_at) - julianday(?1)) / ?2 AS INTEGER) AS step, outcome, count(*),
            sum(seconds), sum(told > 0), {stages} FROM call_lines WHERE started_at >= ?1 GROUP BY step, outcome"""
        rows = await self._fetch(query, since, step_days)
        return [
            Measured(step, outcome, calls, seconds, told, tuple(stages))
            for step, outcome, calls, seconds, told, *stages in rows
        ]

    async def callers_since(self, since: str) -> tuple[int, int]:
        """How many called since then, and how many of them not for the first time."""
        query = """SELECT count(*), coalesce(sum(calls > 1), 0) FROM
            (SELECT count(*) AS calls FROM call_lines GROUP BY caller HAVING max(started_at) >= ?)"""
        [(callers, returning)] = await self._fetch(query, since)
        return callers, returning

    async def _fetch(self, query: str, *values: Any) -> list[Any]:
        def work(connection: sqlite3.Connection) -> list[Any]:
            return connection.execute(query, values).fetchall()

        return await self._store.look(work)


def _id(uuid: str) -> str:
    return f"voice-session:{uuid}"
