"""
Moves the journal and the events of earlier versions into the call log, once, before anything else opens it.

Until November 2026 a node kept turns for recovery in `journal.db` and live events in `events.db`. The old files are
deleted after their rows have been committed; a start that was killed in between repeats the move without effect.
"""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from gateway.errors import StoreUnavailable
from gateway.history.call_log import FILE_NAME, Row, open_private_database

_OLD: Final = {
    "journal": (
        "CREATE TABLE IF NOT EXISTS journal.sessions (id TEXT PRIMARY KEY, header TEXT, node TEXT)",
        "CREATE TABLE IF NOT EXISTS journal.entries (number INTEGER PRIMARY KEY, session TEXT, entry TEXT)",
    ),
    "events": (
        """CREATE TABLE IF NOT EXISTS events.events (
            number INTEGER PRIMARY KEY, session TEXT, caller TEXT, agent TEXT, event TEXT)""",
    ),
}
_COPY_EVENTS: Final = """INSERT OR IGNORE INTO main.entries (session, caller, agent, position, entry)
    SELECT session, caller, agent, number, event FROM events.events ORDER BY number"""
_LIVE_CALLS: Final = """SELECT id, header, node FROM journal.sessions
    WHERE id NOT IN (SELECT session FROM main.live_calls) ORDER BY id"""


def migrate_call_log(data_dir: Path) -> None:
    """Raises StoreUnavailable, with both old files untouched, also while an earlier version still runs."""
    files = {name: data_dir / f"{name}.db" for name in _OLD}
    present = [path for path in files.values() if path.is_file()]
    if not present:
        return
    try:
        for path in present:
            _assert_unused(path)
        with closing(open_private_database(data_dir / FILE_NAME)) as connection:
            for name, tables in _OLD.items():
                source = str(files[name]) if files[name] in present else ":memory:"
                connection.execute(f"ATTACH ? AS {name}", (source,))
                for statement in tables:
                    connection.execute(statement)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                _copy(connection)
    except sqlite3.Error as error:
        if not any(path.is_file() for path in present):  # another worker has just done it
            return
        problem = f"{' and '.join(path.name for path in present)} cannot be migrated: {error}"
        raise StoreUnavailable(f"{problem}; stop the earlier version first") from error
    for path in present:
        for suffix in ("-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _assert_unused(path: Path) -> None:
    """SQLite leaves WAL mode only for the last connection, and with it the -wal file is merged."""
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=2)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def _copy(connection: sqlite3.Connection) -> None:
    connection.execute(_COPY_EVENTS)
    for session_id, header, node in connection.execute(_LIVE_CALLS).fetchall():
        text = header.decode() if isinstance(header, bytes) else header
        connection.execute("INSERT INTO main.live_calls VALUES (?, ?, ?)", (session_id, text, node))
        session = orjson.loads(text)["session"]
        query = "SELECT entry FROM journal.entries WHERE session = ? ORDER BY number"
        entries = [orjson.loads(entry) for (entry,) in connection.execute(query, (session_id,))]
        _align_times(connection, session_id, entries)
        # The journal decides what was said: the turns among the events do not count from here on.
        for row in ({"restart": True}, *map(_row, entries)):
            connection.execute(
                "INSERT INTO main.entries (session, caller, agent, position, entry) VALUES (?, ?, ?, NULL, ?)",
                (session_id, session.get("number") or session["caller"], session["agent"], orjson.dumps(row).decode()),
            )


def _row(entry: Mapping[str, Any]) -> Row:
    match entry:
        case {"anew": _}:
            return {"restart": True}
        case {"caller": text, "at": at}:
            return {"event": "turn", "speaker": "caller", "text": text, "at": at}
        case {"agent": text, "answer": answer, "at": at}:
            return {"event": "turn", "speaker": "agent", "text": text, "answer": answer, "at": at}
        case {"heard": heard, "unheard": unheard, "answer": answer}:
            return {"event": "interruption", "heard": heard, "unheard": unheard, "answer": answer}
    return entry  # state, known_as, off_record, taken_back


def _align_times(connection: sqlite3.Connection, session_id: str, entries: list[Mapping[str, Any]]) -> None:
    """Give the caller's turns among the events the time of the turn, by which a retraction finds them."""
    times = {entry["caller"]: entry["at"] for entry in entries if "caller" in entry}
    query = "SELECT id, entry FROM main.entries WHERE session = ? AND position IS NOT NULL"
    for id_, stored in connection.execute(query, (session_id,)).fetchall():
        event = orjson.loads(stored)
        if event.get("speaker") == "caller" and (at := times.get(event.get("text"))):
            stored = orjson.dumps({**event, "at": at}).decode()
            connection.execute("UPDATE main.entries SET entry = ? WHERE id = ?", (stored, id_))
