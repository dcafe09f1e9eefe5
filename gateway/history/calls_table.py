"""
The table of finished calls: when, who, how it ended, how fast the answers were, what the agent knew of earlier calls.

Words spoken are not in it. Each filter has an index, so that a page is found without reading the whole table. What the
agent was given is kept beside it: with those texts in its rows the statistics of 10,000 calls took ten times as long.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isnan, nan
from operator import itemgetter
from struct import iter_unpack, pack
from typing import Any, Final

import orjson

from gateway.memory.stores.database import Connection, Migration, tables
from gateway.memory.stores.store import MemoryStore
from gateway.session import VoiceSession

STAGES: Final = ("transcript", "llm_request", "first_token", "first_audio", "first_frame")
"""The stages of an answer, each in seconds from the end of the caller's speech."""

_COLUMNS: Final = "session_id, started_at, agent, caller, carrier, outcome, seconds, turns, memory_items"
_ALL_COLUMNS: Final = f"{_COLUMNS}, document_id, summary_by, latencies"
WITH_RECEIPT: Final = f"""SELECT {_ALL_COLUMNS}, consent, engine, first_audio, receipt FROM finished_calls
    LEFT JOIN call_consents USING (session_id) LEFT JOIN call_engines USING (session_id)
    LEFT JOIN call_receipts USING (session_id)"""
NEWEST_FIRST: Final = "ORDER BY started_at DESC, session_id DESC LIMIT ?"
_FACTS_OF_CALLERS: Final = """SELECT DISTINCT caller, documents.id, metadata FROM memory_entries
    JOIN documents ON documents.id = memory_entries.document_id
    WHERE memory_entries.source = 'caller-fact' AND caller IN ({marks})"""
_SCANNED_CALLS: Final = 1000
"""For more calls than this, SQLite reads the table in half the time that it takes to find each through an index."""
_LATENCY: Final = f"<{len(STAGES)}f"
"""One turn in the column `latencies`: a 32-bit float for each of STAGES, NaN for one that was not reached."""


def _copy_calls(connection: Connection) -> None:
    for session_id, agent, caller, started_at, stored in connection.execute("SELECT * FROM calls").fetchall():
        known = {"session_id": session_id, "agent": agent, "caller": caller, "started_at": started_at}
        insert_call(connection, FinishedCall.from_json(known | orjson.loads(stored)))


SCHEMA: Final = (
    *tables("calls_table"),
    # Until November 2026 a call was in three tables.
    Migration("calls", _copy_calls),
    Migration("call_outcomes"),
    Migration("call_lines"),
)


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call in a list. `memory_items`: how many facts, topics and past calls the agent was given."""

    session_id: str
    started_at: str
    agent: str
    caller: str
    carrier: str
    outcome: str
    seconds: float
    turns: int
    memory_items: int

    @property
    def uuid(self) -> str:
        return self.session_id.removeprefix("voice-session:")

    @property
    def cursor(self) -> str:
        """The position in a list, where the next page begins."""
        return f"{self.started_at}~{self.uuid}"


@dataclass(frozen=True, slots=True)
class FinishedCall(CallRow):
    """Everything in the table. `receipt` is what the agent was given of earlier calls, and where each part is from."""

    document_id: str
    summary_by: str
    receipt: Mapping[str, Any]
    timings: tuple[Mapping[str, float | None], ...]
    """For each answer, the seconds of STAGES."""
    consent: str = ""
    """To the recording: announced, agreed, refused, no answer; empty if the agent asked for none."""
    engine: str = ""
    """The voice engine that answered last; empty if not known."""
    first_audio: float | None = None
    """Seconds from the answer to the agent's first audio."""

    def as_json(self) -> dict[str, Any]:
        """The call in reports, exports and the archive."""
        stored = asdict(self)
        del stored["memory_items"]
        stored["end_reason"] = stored.pop("outcome")
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "FinishedCall":
        fields = {"document_id": "", "summary_by": "", **stored, "timings": tuple(stored["timings"])}
        outcome, items = fields.pop("end_reason"), stored["receipt"].get("items", ())
        return cls(**fields, outcome=outcome, memory_items=len(items))


@dataclass(frozen=True, slots=True)
class CallerRow:
    """One caller in a list, with the id of the last call."""

    caller: str
    calls: int
    last_call: str
    session_id: str
    facts: int


@dataclass(frozen=True, slots=True)
class TimeStep:
    """The calls of one time step. `with_memory`: those whose agent was given something."""

    outcomes: Counter[str]
    seconds: float
    with_memory: int
    latencies: bytes


@dataclass(frozen=True)
class CallRowFilter:
    """Selects calls; an empty field selects all. `digits` may be anywhere in the number; times are ISO text in UTC."""

    agent: str = ""
    carrier: str = ""
    outcomes: tuple[str, ...] = ()
    caller: str = ""
    digits: str = ""
    since: str = ""
    before: str = ""

    def where(self) -> tuple[str, list[str]]:
        """The condition and its values. Only what was asked for is in it, so that an index can serve it."""
        conditions = {
            "agent = ?": self.agent,
            "carrier = ?": self.carrier,
            "caller = ?": self.caller,
            "caller LIKE ?": f"%{self.digits}%" if self.digits else "",
            "started_at >= ?": self.since,
            "started_at < ?": self.before,
        }
        given = {condition: value for condition, value in conditions.items() if value}
        either = [f"outcome IN ({', '.join('?' * len(self.outcomes))})"] if self.outcomes else []
        return " AND ".join([*either, *given]) or "true", [*self.outcomes, *given.values()]

    def admits(self, row: CallRow) -> bool:
        """The same condition, for a row that was found in another way."""
        is_caller = self.caller in ("", row.caller) and self.digits in row.caller
        is_kind = self.agent in ("", row.agent) and self.carrier in ("", row.carrier)
        is_when = self.since <= row.started_at and (not self.before or row.started_at < self.before)
        return is_caller and is_kind and is_when and (not self.outcomes or row.outcome in self.outcomes)


EVERY_CALL: Final = CallRowFilter()


class CallsTable:
    """All methods raise StoreUnavailable."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def write(self, session: VoiceSession, *, document_id: str, summary_by: str) -> None:
        """Add a call, or update it."""
        call = finished_call(session, document_id=document_id, summary_by=summary_by)

        def work(connection: Connection) -> None:
            delete_call(connection, call.session_id)
            insert_call(connection, call)
            if session.number:
                statement = "INSERT INTO caller_numbers VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
                connection.execute(statement, (session.number, session.agent, session.caller))

        await self._store.run(work)

    async def set_summary_by(self, session_id: str, summary_by: str) -> None:
        statement = "UPDATE finished_calls SET summary_by = ? WHERE session_id = ?"
        await self._store.change(statement, summary_by, session_id)

    async def forget(self, *, caller: str, agent: str = "") -> list[str]:
        """Delete a caller's calls, with one agent or all. Returns the session ids."""

        def work(connection: Connection) -> list[Any]:
            query = "SELECT session_id FROM finished_calls WHERE caller = ? AND ? IN ('', agent)"
            rows = connection.execute(query, (caller, agent)).fetchall()
            for (session_id,) in rows:
                delete_call(connection, session_id)
            connection.execute("DELETE FROM caller_numbers WHERE caller = ? AND ? IN ('', agent)", (caller, agent))
            return rows

        return [session_id for (session_id,) in await self._store.run(work)]

    async def callers_from(self, number: str, agent: str = "") -> list[str]:
        """The callers under another identifier who have called from this number."""
        query = "SELECT DISTINCT caller FROM caller_numbers WHERE number = ? AND ? IN ('', agent) ORDER BY caller"
        return [caller for (caller,) in await self._store.fetch(query, number, agent)]

    # Calls

    async def find(self, session_id: str) -> FinishedCall | None:
        """By id, or by the beginning of the uuid if only one call has it."""
        prefix = f"voice-session:{session_id.removeprefix('voice-session:')}"
        query = f"{WITH_RECEIPT} WHERE session_id >= ? AND session_id < ? LIMIT 2"
        rows = await self._store.fetch(query, prefix, prefix + "\U0010ffff")
        return call_from_row(rows[0]) if len(rows) == 1 else None

    async def newest(self, wanted: CallRowFilter = EVERY_CALL, *, limit: int = 100) -> list[FinishedCall]:
        """The newest first."""
        where, values = wanted.where()
        query = f"{WITH_RECEIPT} WHERE {where} {NEWEST_FIRST}"
        return [call_from_row(row) for row in await self._store.fetch(query, *values, limit)]

    async def page(self, wanted: CallRowFilter, *, after: str = "", limit: int = 50) -> list[CallRow]:
        """The newest, or those after a row's `cursor`."""
        where, values = wanted.where()
        if after:
            started_at, _, uuid = after.partition("~")
            where = f"(started_at, session_id) < (?, ?) AND {where}"
            values = [started_at, f"voice-session:{uuid}", *values]
        query = f"SELECT {_COLUMNS} FROM finished_calls WHERE {where} {NEWEST_FIRST}"
        return [CallRow(*row) for row in await self._store.fetch(query, *values, limit)]

    async def by_ids(self, session_ids: Iterable[str]) -> list[CallRow]:
        """The calls with these ids, in their order; unknown ids are skipped."""
        ids = list(session_ids)
        marks = ", ".join("?" * len(ids))
        rows = await self._store.fetch(f"SELECT {_COLUMNS} FROM finished_calls WHERE session_id IN ({marks})", *ids)
        found = {row[0]: CallRow(*row) for row in rows}
        return [found[id_] for id_ in ids if id_ in found]

    async def count(self, wanted: CallRowFilter) -> int:
        where, values = wanted.where()
        [(number,)] = await self._store.fetch(f"SELECT count(*) FROM finished_calls WHERE {where}", *values)
        return int(number)

    async def oldest(self, wanted: CallRowFilter) -> str:
        """When the first of these calls started; empty if there are none."""
        where, values = wanted.where()
        [(moment,)] = await self._store.fetch(f"SELECT min(started_at) FROM finished_calls WHERE {where}", *values)
        return moment or ""

    async def agents(self) -> list[str]:
        return [
            agent for (agent,) in await self._store.fetch("SELECT DISTINCT agent FROM finished_calls ORDER BY agent")
        ]

    # Callers

    async def callers(self, digits: str = "", *, limit: int = 50, offset: int = 0) -> list[CallerRow]:
        """The last caller first."""
        query = """SELECT caller, count(*), max(started_at || '~' || session_id) AS newest FROM finished_calls
            WHERE caller LIKE ? GROUP BY caller ORDER BY newest DESC LIMIT ? OFFSET ?"""
        rows = await self._store.fetch(query, f"%{digits}%", limit, offset)
        if not rows:
            return []
        marks = ", ".join("?" * len(rows))
        stored = await self._store.fetch(_FACTS_OF_CALLERS.format(marks=marks), *(caller for caller, *_ in rows))
        facts = Counter(caller for caller, _, metadata in stored if not orjson.loads(metadata).get("superseded_by"))
        last = {caller: newest.partition("~") for caller, _, newest in rows}
        return [CallerRow(caller, calls, last[caller][0], last[caller][2], facts[caller]) for caller, calls, _ in rows]

    async def count_callers(self, digits: str = "") -> int:
        query = "SELECT count(DISTINCT caller) FROM finished_calls WHERE caller LIKE ?"
        [(number,)] = await self._store.fetch(query, f"%{digits}%")
        return int(number)

    async def callers_since(self, since: str) -> tuple[int, int]:
        """How many called since then, and how many of them not for the first time."""
        query = """SELECT count(*), coalesce(sum(CASE WHEN calls > 1 THEN 1 ELSE 0 END), 0) FROM
            (SELECT count(*) AS calls FROM finished_calls GROUP BY caller HAVING max(started_at) >= ?) AS per_caller"""
        [(callers, returning)] = await self._store.fetch(query, since)
        return callers, returning

    # Latency

    async def time_steps(self, starts: Sequence[str], wanted: CallRowFilter = EVERY_CALL) -> list[TimeStep]:
        """The calls since the first of these times. Each step begins at one of them."""
        where, values = wanted.where()
        if await self.count(wanted) > _SCANNED_CALLS:
            where = where.replace("started_at >= ?", "started_at || '' >= ?")  # an expression has no index
        query = f"SELECT started_at, outcome, seconds, memory_items, latencies FROM finished_calls WHERE {where}"

        def work(connection: Connection) -> list[TimeStep]:
            rows = sorted(connection.execute(query, values).fetchall(), key=itemgetter(0))
            edges = [bisect_left(rows, start, key=itemgetter(0)) for start in starts]
            return [_time_step(rows[first:last]) for first, last in pairwise([*edges, len(rows)])]

        return await self._store.look(work)

    async def first_audio(self, starts: Sequence[str], wanted: CallRowFilter = EVERY_CALL) -> list[Any]:
        """Numpy arrays: of the calls of each time step, the seconds from the answer to the agent's first audio."""
        import numpy as np

        where, values = wanted.where()
        query = f"""SELECT started_at, first_audio FROM finished_calls JOIN call_engines USING (session_id)
            WHERE first_audio IS NOT NULL AND {where} ORDER BY started_at"""
        rows = await self._store.fetch(query, *values)
        edges = [bisect_left(rows, start, key=itemgetter(0)) for start in starts]
        return [np.array([seconds for _, seconds in rows[a:b]]) for a, b in pairwise([*edges, len(rows)])]


def _time_step(rows: Sequence[tuple[Any, ...]]) -> TimeStep:
    _, outcomes, seconds, memory_items, latencies = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    return TimeStep(Counter(outcomes), sum(seconds), sum(items > 0 for items in memory_items), b"".join(latencies))


def stage_seconds(latencies: bytes, stage: str) -> Any:
    """A numpy array: the seconds of every answer that reached this stage."""
    import numpy as np  # takes long to import, and most gateways show no statistics

    seconds = np.frombuffer(latencies, "<f4")[STAGES.index(stage) :: len(STAGES)]
    return seconds[~np.isnan(seconds)]


def percentiles(seconds: Any, ranks: Sequence[int]) -> list[float]:
    """
    For each rank, the smallest value that this percentage of answers does not exceed. Empty without answers.

    A stage that was reached before the end of the caller's speech counts as 0.
    """
    import numpy as np

    if not seconds.size:
        return []
    # numpy.percentile takes ten times as long for a few answers.
    places = [max(-(-rank * seconds.size // 100), 1) - 1 for rank in ranks]
    return [max(_seconds(value), 0.0) for value in np.partition(seconds, places)[places]]


def finished_call(session: VoiceSession, *, document_id: str, summary_by: str) -> FinishedCall:
    return FinishedCall(
        session_id=session.id,
        started_at=session.started_at.isoformat(),
        agent=session.agent,
        caller=session.caller,
        carrier=session.carrier,
        outcome=str(session.end_reason or ""),
        seconds=round(session.seconds, 1),
        turns=len(session.turns),
        memory_items=len(session.receipt.get("items", ())),
        document_id=document_id,
        summary_by=summary_by,
        receipt=session.receipt,
        timings=tuple(session.timings),
        consent=session.consent,
        engine=session.engine,
        first_audio=session.first_audio,
    )


def insert_call(connection: Connection, call: FinishedCall) -> None:
    turns = [[nan if (seconds := turn.get(stage)) is None else seconds for stage in STAGES] for turn in call.timings]
    columns = _ALL_COLUMNS.removesuffix(", latencies").split(", ")
    values = [*(getattr(call, name) for name in columns), b"".join(pack(_LATENCY, *turn) for turn in turns)]
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO finished_calls ({_ALL_COLUMNS}) VALUES ({marks})", values)
    receipt = orjson.dumps(call.receipt).decode()
    connection.execute("INSERT INTO call_receipts VALUES (?, ?)", (call.session_id, receipt))
    if call.consent:
        connection.execute("INSERT INTO call_consents VALUES (?, ?)", (call.session_id, call.consent))
    if call.engine:
        engine = (call.session_id, call.engine, call.first_audio)
        connection.execute("INSERT INTO call_engines VALUES (?, ?, ?)", engine)


def delete_call(connection: Connection, session_id: str) -> None:
    for table in ("finished_calls", "call_receipts", "call_consents", "call_engines"):
        connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))


def call_from_row(row: tuple[Any, ...]) -> FinishedCall:
    *columns, document_id, summary_by, latencies, consent, engine, first_audio, receipt = row
    timings = tuple(
        {stage: None if isnan(value) else _seconds(value) for stage, value in zip(STAGES, turn, strict=True)}
        for turn in iter_unpack(_LATENCY, latencies)
    )
    given = orjson.loads(receipt or "{}")
    about = consent or "", engine or "", first_audio
    return FinishedCall(*columns, document_id, summary_by, given, timings, *about)  # type: ignore[call-arg]


def _seconds(value: float) -> float:
    """Of a 32-bit float, the digits that were measured."""
    return round(float(value), 4)
