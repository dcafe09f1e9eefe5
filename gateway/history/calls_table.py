"""
The table of finished calls: when, who, how it ended, how fast the answers were, what the agent knew of earlier calls.

Words spoken are not in it, except the caller's name: lists show it, and calls are found by it. Each filter has an
index, so that a page is found without reading the whole table. What the agent was given is kept beside it: with those
texts in its rows the statistics of 10,000 calls took ten times as long.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import isnan, nan
from operator import itemgetter
from struct import iter_unpack, pack
from typing import Any, Final

import orjson

from gateway.memory.identity import same_person
from gateway.memory.stores.database import Connection, Migration, batches, tables
from gateway.memory.stores.documents import BY_SOURCE_ID, find_document
from gateway.memory.stores.store import MemoryStore
from gateway.memory.summary_parser import read_call
from gateway.response_time import STAGES, CountedFrom, ResponseTime
from gateway.session import TrustLevel, VoiceSession
from gateway.text.person_names import folded_name

_COLUMNS: Final = "session_id, started_at, agent, caller, carrier, outcome, seconds, turns, memory_items"
_ALL_COLUMNS: Final = f"{_COLUMNS}, document_id, summary_by, latencies"
WITH_RECEIPT: Final = f"""SELECT {_ALL_COLUMNS}, consent, caller_name, engine, first_audio, receipt FROM finished_calls
    LEFT JOIN call_details USING (session_id) LEFT JOIN call_engines USING (session_id)
    LEFT JOIN call_receipts USING (session_id)"""
NEWEST_FIRST: Final = "ORDER BY started_at DESC, session_id DESC LIMIT ?"
_FACTS_OF_CALLERS: Final = """SELECT DISTINCT caller, documents.id, metadata FROM memory_entries
    JOIN documents ON documents.id = memory_entries.document_id
    WHERE memory_entries.source = 'caller-fact' AND caller IN ({marks})"""
_MOST_PEOPLE: Final = 3
"""At most this many names are shown for a shared number."""
_SCANNED_CALLS: Final = 1000
"""For more calls than this, SQLite reads the table in half the time that it takes to find each through an index."""
_MARK: Final = b"\xff\xff\xff\xff"
"""The column `latencies` begins with it, unless an earlier version wrote it."""
_ANSWER: Final = f"<{1 + len(STAGES)}f"
"""
One turn in it: 32-bit floats, the place of `counted_from` in _COUNTED_FROM, and the seconds of each of STAGES, NaN for
one that was not reached. Earlier versions have neither the first nor the stage `speech_ended`.
"""
_COUNTED_FROM: Final = tuple(CountedFrom)
_OLD_ANSWER: Final = f"<{len(STAGES) - 1}f"


_NAMED: Final = """caller IN (SELECT caller FROM finished_calls JOIN call_details USING (session_id) WHERE {0}
    UNION SELECT caller FROM corrected_names WHERE {0})"""


def _copy_calls(connection: Connection) -> None:
    for session_id, agent, caller, started_at, stored in connection.execute("SELECT * FROM calls").fetchall():
        known = {"session_id": session_id, "agent": agent, "caller": caller, "started_at": started_at}
        insert_call(connection, FinishedCall.from_json(known | orjson.loads(stored)))


def _copy_consents(connection: Connection) -> None:
    """Copy the consents, and add the names, which were only in documents until November 2026."""
    consents = dict(connection.execute("SELECT session_id, consent FROM call_consents").fetchall())
    for (session_id,) in connection.execute("SELECT session_id FROM finished_calls").fetchall():
        _write_details(connection, session_id, consents.get(session_id, ""))


SCHEMA: Final = (
    *tables("calls_table"),
    Migration("call_consents", _copy_consents),
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
    """Everything in the table. `receipt` is what the agent was given, and the source of each part."""

    document_id: str
    summary_by: str
    receipt: Mapping[str, Any]
    timings: tuple[Mapping[str, Any], ...]
    """Of each answer, its ResponseTime as JSON."""
    consent: str = ""
    """To the recording: announced, agreed, refused, no answer; empty if the agent asked for none."""
    caller_name: str = ""
    """As given in this call; empty if none was."""
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
        fields = {"document_id": "", "summary_by": "", **stored, "timings": _timings(stored["timings"])}
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
    answers: Any
    """A numpy array with a row for each turn, as in _ANSWER."""


@dataclass(frozen=True)
class CallRowFilter:
    """
    Selects calls; an empty field selects all.

    `digits` may be anywhere in the number. `name` has the beginnings of words of the caller's name, as `searched_words`
    returns them. Times are ISO text in UTC.
    """

    agent: str = ""
    carrier: str = ""
    outcomes: tuple[str, ...] = ()
    caller: str = ""
    digits: str = ""
    name: tuple[tuple[str, ...], ...] = ()
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
        either_spelling = (" OR ".join(["folded_name || ' ' LIKE ?"] * len(spellings)) for spellings in self.name)
        folded = " AND ".join(f"({condition})" for condition in either_spelling)
        named = [_NAMED.format(folded)] if folded else []
        words = 2 * [f"% {spelling}%" for spellings in self.name for spelling in spellings]
        return " AND ".join([*either, *named, *given]) or "true", [*self.outcomes, *words, *given.values()]

    def admits(self, row: CallRow) -> bool:
        """The same condition without the name, for a row that was found in another way."""
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

    async def summary_rewritten(self, session_id: str, summary_by: str) -> None:
        """After the document of a call was replaced."""

        def work(connection: Connection) -> None:
            statement = "UPDATE finished_calls SET summary_by = ? WHERE session_id = ?"
            if connection.execute(statement, (summary_by, session_id)).rowcount:
                query = "SELECT consent FROM call_details WHERE session_id = ?"
                (consent,) = connection.execute(query, (session_id,)).fetchone() or ("",)
                _write_details(connection, session_id, consent)

        await self._store.run(work)

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
        marks = ", ".join("?" * len(ids)) or "NULL"
        rows = await self._store.fetch(f"SELECT {_COLUMNS} FROM finished_calls WHERE session_id IN ({marks})", *ids)
        found = {row[0]: CallRow(*row) for row in rows}
        return [found[id_] for id_ in ids if id_ in found]

    async def finished(self, session_ids: Iterable[str]) -> list[FinishedCall]:
        """The calls with these ids, in any order."""
        ids = list(session_ids)
        marks = ", ".join("?" * len(ids)) or "NULL"
        query = f"{WITH_RECEIPT} WHERE session_id IN ({marks})"
        return await self._store.look(lambda connection: [*map(call_from_row, connection.execute(query, ids))])

    async def count(self, wanted: CallRowFilter) -> int:
        where, values = wanted.where()
        [(number,)] = await self._store.fetch(f"SELECT count(*) FROM finished_calls WHERE {where}", *values)
        return int(number)

    async def oldest(self, wanted: CallRowFilter) -> str:
        """When the first of these calls started; empty if there are none."""
        where, values = wanted.where()
        [(moment,)] = await self._store.fetch(f"SELECT min(started_at) FROM finished_calls WHERE {where}", *values)
        return moment or ""

    async def calls_by_agent(self) -> dict[str, int]:
        return dict(await self._store.fetch("SELECT agent, count(*) FROM finished_calls GROUP BY agent"))

    async def agents(self) -> list[str]:
        return [
            agent for (agent,) in await self._store.fetch("SELECT DISTINCT agent FROM finished_calls ORDER BY agent")
        ]

    # Callers

    async def callers(self, wanted: CallRowFilter = EVERY_CALL, *, limit: int = 50, offset: int = 0) -> list[CallerRow]:
        """The callers of the selected calls, the most recent one first."""
        where, values = wanted.where()
        query = f"""SELECT caller, count(*), max(started_at || '~' || session_id) AS newest FROM finished_calls
            WHERE {where} GROUP BY caller ORDER BY newest DESC LIMIT ? OFFSET ?"""
        rows = await self._store.fetch(query, *values, limit, offset)
        if not rows:
            return []
        marks = ", ".join("?" * len(rows))
        stored = await self._store.fetch(_FACTS_OF_CALLERS.format(marks=marks), *(caller for caller, *_ in rows))
        facts = Counter(caller for caller, _, metadata in stored if not orjson.loads(metadata).get("superseded_by"))
        last = {caller: newest.partition("~") for caller, _, newest in rows}
        return [CallerRow(caller, calls, last[caller][0], last[caller][2], facts[caller]) for caller, calls, _ in rows]

    async def count_callers(self, wanted: CallRowFilter = EVERY_CALL) -> int:
        where, values = wanted.where()
        query = f"SELECT count(DISTINCT caller) FROM finished_calls WHERE {where}"
        [(number,)] = await self._store.fetch(query, *values)
        return int(number)

    # Names

    async def names_of_callers(self, callers: Iterable[str]) -> dict[str, str]:
        """
        The known names; the newest few if several people share a number.

        Names of less trusted calls are used only if no other call gave one. A corrected name replaces the old one in
        calls with every agent.
        """
        keys = list(dict.fromkeys(filter(None, callers)))

        def work(connection: Connection) -> dict[str, str]:
            parts = (_names_of_callers(connection, some) for some in batches(keys))
            return {caller: name for part in parts for caller, name in part.items()}

        return await self._store.look(work) if keys else {}

    async def names_of_calls(self, rows: Iterable[CallRow]) -> dict[str, str]:
        """By session id: the name given in the call, or else the caller's."""
        rows = list(rows)

        def work(connection: Connection) -> dict[str, str]:
            parts = (_names_in_calls(connection, some) for some in batches(rows))
            return {session_id: name for part in parts for session_id, name in part.items()}

        given = await self._store.look(work) if rows else {}
        callers = await self.names_of_callers(row.caller for row in rows if row.session_id not in given)
        return {row.session_id: given.get(row.session_id) or callers.get(row.caller, "") for row in rows}

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


def _names_of_callers(connection: Connection, callers: Sequence[str]) -> dict[str, str]:
    query = f"""SELECT caller, caller_name, trust, max(started_at) AS last
        FROM finished_calls JOIN call_details USING (session_id)
        WHERE caller_name <> '' AND caller IN ({", ".join("?" * len(callers))})
        GROUP BY caller, caller_name, trust ORDER BY trust DESC, last DESC"""
    people: dict[str, tuple[int, list[str]]] = {}
    corrections = _corrections(connection, callers)
    given = [
        (caller, _current(name, trust, corrections[caller]), trust)
        for caller, name, trust, _ in connection.execute(query, callers).fetchall()
    ]
    given += [(caller, name, trust) for caller in callers for _, name, trust in corrections[caller]]
    for caller, name, trust in given:
        most, names = people.setdefault(caller, (trust, []))
        is_new = trust == most and len(names) < _MOST_PEOPLE
        if is_new and not any(same_person(known, name) for known in names):
            names.append(name)
    return {caller: ", ".join(names) for caller, (_, names) in people.items()}


def _names_in_calls(connection: Connection, rows: Sequence[CallRow]) -> dict[str, str]:
    """By session id: the name that was given in the call, in its current form."""
    query = f"""SELECT session_id, caller, caller_name, trust FROM finished_calls
        JOIN call_details USING (session_id)
        WHERE caller_name <> '' AND session_id IN ({", ".join("?" * len(rows))})"""
    archived = [row for row in rows if isinstance(row, FinishedCall) and row.caller_name]
    found = [(row.session_id, row.caller, row.caller_name, TrustLevel.EVERYTHING) for row in archived]
    found += connection.execute(query, [row.session_id for row in rows]).fetchall()
    corrections = _corrections(connection, [caller for _, caller, *_ in found])
    return {id_: _current(name, trust, corrections[caller]) for id_, caller, name, trust in found}


def _corrections(connection: Connection, callers: Sequence[str]) -> dict[str, list[tuple[str, str, int]]]:
    """For each caller: the corrected name, the current one, and the trust level of the correction."""
    found: dict[str, list[tuple[str, str, int]]] = {caller: [] for caller in callers}
    query = f"""SELECT caller, old_name, name, trust FROM corrected_names
        WHERE caller IN ({", ".join("?" * len(found))}) ORDER BY trust DESC, agent, old_name"""
    for caller, *correction in connection.execute(query, list(found)).fetchall() if found else ():
        found[caller].append(tuple(correction))
    return found


def _current(given: str, trust: int, corrections: Iterable[tuple[str, str, int]]) -> str:
    """The current form of a name. A correction in a less trusted call changes nothing."""
    fitting = (name for old, name, level in corrections if level >= trust and same_person(old, given))
    return next(fitting, given)


def _time_step(rows: Sequence[tuple[Any, ...]]) -> TimeStep:
    _, outcomes, seconds, memory_items, latencies = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    with_memory = sum(items > 0 for items in memory_items)
    return TimeStep(Counter(outcomes), sum(seconds), with_memory, _answers(latencies))


def _answers(latencies: Sequence[bytes]) -> Any:
    """Answers that an earlier version stored are not counted from the caller's voice."""
    import numpy as np  # takes long to import, and most gateways show no statistics

    now = b"".join(stored[len(_MARK) :] for stored in latencies if stored.startswith(_MARK))
    earlier = b"".join(stored for stored in latencies if not stored.startswith(_MARK))
    old = np.frombuffer(earlier, "<f4").reshape(-1, len(STAGES) - 1)
    start = np.array([_COUNTED_FROM.index(CountedFrom.ENGINE), np.nan], "<f4")
    return np.vstack(
        [np.frombuffer(now, "<f4").reshape(-1, 1 + len(STAGES)), np.hstack([np.tile(start, (len(old), 1)), old])]
    )


def stage_seconds(answers: Any, stage: str, *, measured: bool = True) -> Any:
    """
    A numpy array: the seconds of every answer that reached this stage, counted from the caller's last voiced frame.

    With `measured=False`, those of the others.
    """
    import numpy as np

    is_measured = answers[:, 0] == _COUNTED_FROM.index(CountedFrom.VOICE)
    seconds = answers[is_measured == measured, 1 + STAGES.index(stage)]
    return seconds[~np.isnan(seconds)]


def percentiles(seconds: Any, ranks: Sequence[int]) -> list[float]:
    """
    For each rank, the smallest value that this percentage of answers does not exceed. Empty without answers.

    A stage that was reached before the caller's last voiced frame counts as 0.
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
        timings=_timings(session.timings),
        consent=session.consent,
        engine=session.engine,
        first_audio=session.first_audio,
    )


def insert_call(connection: Connection, call: FinishedCall) -> None:
    latencies = b"".join([_MARK, *map(_packed, call.timings)])
    columns = _ALL_COLUMNS.removesuffix(", latencies").split(", ")
    values = [*(getattr(call, name) for name in columns), latencies]
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO finished_calls ({_ALL_COLUMNS}) VALUES ({marks})", values)
    receipt = orjson.dumps(call.receipt).decode()
    connection.execute("INSERT INTO call_receipts VALUES (?, ?)", (call.session_id, receipt))
    _write_details(connection, call.session_id, call.consent)
    if call.engine:
        engine = (call.session_id, call.engine, call.first_audio)
        connection.execute("INSERT INTO call_engines VALUES (?, ?, ?)", engine)


def _write_details(connection: Connection, session_id: str, consent: str) -> None:
    """The consent, and the name that the call's document has."""
    document = find_document(connection, BY_SOURCE_ID, session_id)
    call = read_call(document) if document else None
    name, trust = (call.caller_name, call.trust) if call else ("", TrustLevel.EVERYTHING)
    connection.execute("DELETE FROM call_details WHERE session_id = ?", (session_id,))
    if consent or name:
        details = (session_id, consent, name, folded_name(name), int(trust))
        connection.execute("INSERT INTO call_details VALUES (?, ?, ?, ?, ?)", details)


def delete_call(connection: Connection, session_id: str) -> None:
    for table in ("finished_calls", "call_receipts", "call_details", "call_engines"):
        connection.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))


def call_from_row(row: tuple[Any, ...]) -> FinishedCall:
    *columns, document_id, summary_by, latencies, consent, name, engine, first_audio, receipt = row
    timings = tuple(answer.as_json() for answer in _unpacked(latencies))
    given = orjson.loads(receipt or "{}")
    about = consent or "", name or "", engine or "", first_audio
    return FinishedCall(*columns, document_id, summary_by, given, timings, *about)  # type: ignore[call-arg]


def _timings(stored: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """With the fields that earlier versions did not store."""
    return tuple(ResponseTime.from_json(timing).as_json() for timing in stored)


def _packed(stored: Mapping[str, Any]) -> bytes:
    answer = ResponseTime.from_json(stored)
    seconds = (nan if (value := getattr(answer, stage)) is None else value for stage in STAGES)
    return pack(_ANSWER, _COUNTED_FROM.index(answer.counted_from), *seconds)


def _unpacked(latencies: bytes) -> Iterator[ResponseTime]:
    is_old = not latencies.startswith(_MARK)
    for turn in iter_unpack(_OLD_ANSWER if is_old else _ANSWER, latencies if is_old else latencies[len(_MARK) :]):
        start, *stages = (_COUNTED_FROM.index(CountedFrom.ENGINE), nan, *turn) if is_old else turn
        seconds = {stage: _seconds(value) for stage, value in zip(STAGES, stages, strict=True) if not isnan(value)}
        yield ResponseTime(**seconds, counted_from=_COUNTED_FROM[int(start)])


def _seconds(value: float) -> float:
    """Of a 32-bit float, the digits that were measured."""
    return round(float(value), 4)
