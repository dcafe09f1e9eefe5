"""
Every final turn on disk the moment it is known, so that a killed process loses nothing that was said.

The call only puts an entry into a queue, and never waits for the disk.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.history.sqlite_writer import SqliteWriter, private_database
from gateway.session import Speaker, Turn, VoiceSession

_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS sessions (id TEXT PRIMARY KEY, header TEXT NOT NULL, node TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS entries (number INTEGER PRIMARY KEY, session TEXT NOT NULL, entry TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS entries_by_session ON entries (session, number)",
)

# Also those of a session that is not there any more: its caller was forgotten while the call went on.
_FORGET_ENTRIES: Final = """DELETE FROM entries
    WHERE session = ? AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ? AND node <> ?)"""
_INSERT: Final = "INSERT INTO entries (session, entry) VALUES (?, ?)"

Share = Callable[[str, bytes], None]
"""Tells other nodes of an entry: session and entry. Returns at once."""


@dataclass(frozen=True)
class RecoveredCall:
    """A call that a journal knows and no ending has taken over: it was live when its process died."""

    session: VoiceSession
    header: dict[str, Any]
    """What was given to `open_session` beside the session."""
    node: str = ""
    """Whose it was."""


class CallJournal:
    """One call's side of the journal. Every method returns at once."""

    def __init__(self, journal: "Journal", session_id: str, share: Share | None) -> None:
        self._journal = journal
        self._session_id = session_id
        self._share = share

    def caller_said(self, text: str, at: datetime) -> None:
        self._put({"caller": text, "at": at.isoformat()})

    def agent_said(self, answer: int, text: str, at: datetime) -> None:
        """A piece of the agent's answer of that number."""
        self._put({"agent": text, "answer": answer, "at": at.isoformat()})

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        """Of the answer of that number, only this was heard."""
        self._put({"heard": heard, "unheard": unheard, "answer": answer})

    def state_is(self, state: Mapping[str, Any]) -> None:
        """What the agent's functions want kept of the caller, as of now."""
        self._put({"state": dict(state)})

    def known_as(self, caller: str, number: str) -> None:
        """Under whom the call's memory is kept, as of now."""
        self._put({"known_as": [caller, number]})

    def record_is(self, *, off: bool) -> None:
        """Whether the caller wants nothing kept from here on."""
        self._put({"off_record": off})

    def begin_anew(self, entries: Iterable[dict[str, Any]]) -> None:
        """All that was put before is void; these are the entries instead."""
        self._journal.put("DELETE FROM entries WHERE session = ?", self._session_id)
        for entry in ({"anew": True}, *entries):
            self._put(entry)

    def _put(self, entry: dict[str, Any]) -> None:
        stored = orjson.dumps(entry)
        self._journal.put(_INSERT, self._session_id, stored)
        if self._share is not None:
            self._share(self._session_id, stored)


class Journal:
    """
    The journal of one node, and the thread that writes it.

    Workers on one machine share the database; each forgets only the calls that bear its name.
    """

    def __init__(self, path: Path, node: str = "") -> None:
        self._path = path
        self._node = node
        self._writer = SqliteWriter("journal", lambda: _connect(path))

    # The call's side

    def open_session(self, session: VoiceSession, header: dict[str, Any], share: Share | None = None) -> CallJournal:
        """A call began, or goes on. `header` is what its continuation would need to know."""
        stored = orjson.dumps({"session": {**session.as_json(), "turns": []}, "header": header})
        self.put("INSERT OR REPLACE INTO sessions (id, header, node) VALUES (?, ?, ?)", session.id, stored, self._node)
        return CallJournal(self, session.id, share)

    def take_over(self, session: VoiceSession, header: dict[str, Any]) -> None:
        """A call goes on that another node began: with all its turns."""
        self.put("DELETE FROM entries WHERE session = ?", session.id)
        self.open_session(session, header)
        for entry in [*entries_of(session.turns), *circumstances(session)]:
            self.put(_INSERT, session.id, orjson.dumps(entry))

    def claim(self, session_id: str) -> None:
        """A call that a dead process left is this one's now."""
        self.put("UPDATE sessions SET node = ? WHERE id = ?", self._node, session_id)

    def forget(self, session_id: str) -> None:
        """The call's ending has everything, or another node the call: it needs no journal here any more."""
        self.put(_FORGET_ENTRIES, session_id, session_id, self._node)
        self.put("DELETE FROM sessions WHERE id = ? AND node = ?", session_id, self._node)

    async def flushed(self) -> None:
        """Wait until everything put so far is on disk."""
        await self._writer.flushed()

    async def unfinished(self) -> list[RecoveredCall]:
        """The calls that an earlier process left behind."""
        await self.flushed()
        return await asyncio.to_thread(self._read)

    async def entries(self, session_id: str) -> list[dict[str, Any]]:
        """What is on disk of one call, whoever wrote it; nothing while the disk can't be read."""
        with contextlib.suppress(sqlite3.Error, OSError):
            return await asyncio.to_thread(self._read_entries, session_id)
        return []

    def close(self) -> None:
        """Write what is queued, and no more."""
        self._writer.close()

    def put(self, statement: str, *values: Any) -> None:
        self._writer.put(lambda connection: connection.execute(statement, values))

    def _read_entries(self, session_id: str) -> list[dict[str, Any]]:
        connection = _connect(self._path)
        try:
            return _entries(connection, session_id)
        finally:
            connection.close()

    def _read(self) -> list[RecoveredCall]:
        connection = _connect(self._path)
        try:
            headers = connection.execute("SELECT id, header, node FROM sessions ORDER BY id").fetchall()
            return [_journaled(orjson.loads(stored), _entries(connection, id_), node) for id_, stored, node in headers]
        finally:
            connection.close()


def turns_of(entries: Iterable[dict[str, Any]]) -> list[Turn]:
    """
    The turns that a call's entries tell of, in the order spoken. An answer in mid-speech counts as far as it got.

    Nobody says the same twice at one moment: where entries are shared, one that seemed to be lost is there twice.
    """
    turns: dict[object, Turn] = {}
    last: dict[str, Any] = {}
    for number, entry in enumerate(entries):
        if entry == last and "at" in entry:
            continue
        last = entry
        match entry:
            case {"anew": _}:
                turns.clear()
            case {"caller": text, "at": at}:
                turns["caller", number] = Turn(Speaker.CALLER, text, datetime.fromisoformat(at))
            case {"agent": text, "answer": answer, "at": at}:
                before = turns.get(answer)
                words = f"{before.text} {text}" if before else text
                turns[answer] = Turn(Speaker.AGENT, words, before.at if before else datetime.fromisoformat(at))
            case {"heard": heard, "unheard": unheard, "answer": answer} if answer in turns:
                turns[answer] = Turn(Speaker.AGENT, heard, turns[answer].at, unheard)
    return list(turns.values())


def restore(session: VoiceSession, entries: Sequence[dict[str, Any]]) -> None:
    """Make a session what its entries tell: turns, and the last word on all else."""
    last = {name: value for entry in entries for name, value in entry.items()}
    session.turns = turns_of(entries)
    session.state = dict(last.get("state", {}))
    session.off_record = bool(last.get("off_record"))
    session.taken_back = list(last.get("taken_back", []))
    session.caller, session.number = last.get("known_as", (session.caller, session.number))


def circumstances(session: VoiceSession) -> list[dict[str, Any]]:
    """Entries that tell all of a session but its turns."""
    known_as = [session.caller, session.number]
    record = {"off_record": session.off_record, "taken_back": session.taken_back}
    return [{"state": session.state}, record, {"known_as": known_as}]


def entries_of(turns: Sequence[Turn], *, open_answer: int | None = None) -> list[dict[str, Any]]:
    """
    Entries that tell of these turns. The last turn is the answer of that number where there is one being spoken.

    Numbers of past answers are below zero: none to come has the same.
    """
    entries: list[dict[str, Any]] = []
    for number, turn in enumerate(turns, 1):
        if turn.speaker is Speaker.CALLER:
            entries.append({"caller": turn.text, "at": turn.at.isoformat()})
            continue
        answer = open_answer if open_answer is not None and number == len(turns) else -number
        text = turn.text if turn.heard else f"{turn.text} {turn.unheard}".strip()
        entries.append({"agent": text, "answer": answer, "at": turn.at.isoformat()})
        if not turn.heard:
            entries.append({"heard": turn.text, "unheard": turn.unheard, "answer": answer})
    return entries


def _connect(path: Path) -> sqlite3.Connection:
    return private_database(path, _SCHEMA, synchronous="FULL")


def _entries(connection: sqlite3.Connection, session_id: str) -> list[dict[str, Any]]:
    rows = connection.execute("SELECT entry FROM entries WHERE session = ? ORDER BY number", (session_id,))
    return [orjson.loads(entry) for (entry,) in rows]


def _journaled(stored: dict[str, Any], entries: list[dict[str, Any]], node: str) -> RecoveredCall:
    session = VoiceSession.from_json(stored["session"])
    restore(session, entries)
    return RecoveredCall(session, stored["header"], node)
