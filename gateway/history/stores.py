"""
Opens the databases: memory (everything remembered of callers) and this node's finalization jobs.

Both are one file under DATA_DIR. With DATABASE_URL memory is in a database that all nodes share; jobs stay with their
node, where they wait while that database is away.

The files of earlier versions are moved first. Until November 2026 a node kept turns for recovery in `journal.db` and
live events in `events.db`; both are in the call log now. The old files are deleted after their rows have been
committed; a start that was killed in between repeats the move without effect.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Unpack
from urllib.parse import quote

import orjson

from gateway import extras
from gateway.errors import SettingsError, StoreUnavailable
from gateway.finalization import job_table, remote_copies, webhooks
from gateway.history import agent_versions, api_tokens, archived_calls, audit_log, calls_table, erasure
from gateway.history.call_log import FILE_NAME, INSERT_ROW, Row, open_call_log
from gateway.invocation import command
from gateway.memory import memory_log, personas, pin_codes, state
from gateway.memory.stores.sqlite import SqliteStore
from gateway.memory.stores.store import MemoryStore, StoreOptions
from gateway.settings import Secret, Settings

_MEMORY: Final = (
    *(calls_table, archived_calls, memory_log, state, pin_codes, personas, erasure, remote_copies),
    *(audit_log, webhooks, api_tokens, agent_versions),
)
MEMORY_SCHEMA: Final = tuple(statement for module in _MEMORY for statement in module.SCHEMA)
"""All tables that hold data of callers."""


@dataclass(frozen=True)
class Stores:
    """`local` has this node's jobs. Without a shared database both are one store."""

    memory: MemoryStore
    local: SqliteStore

    async def close(self) -> None:
        await self.memory.close()
        await self.local.close()


def store_path(data_dir: Path) -> Path:
    return data_dir / "gateway.db"


async def open_local_store(data_dir: Path, **options: Unpack[StoreOptions]) -> SqliteStore:
    """Open the file, creating it if needed; searched by meaning with an embedder. Raises StoreUnavailable."""
    await asyncio.to_thread(migrate_call_log, data_dir)
    schema = (*job_table.SCHEMA, *MEMORY_SCHEMA)
    return await SqliteStore.open(store_path(data_dir), schema=schema, **options)


def check_database_url(database_url: Secret | None) -> None:
    """Raises SettingsError if it is set and the driver is missing."""
    if database_url is not None:
        extras.require("postgres", "DATABASE_URL is set")


async def open_stores(data_dir: Path, database_url: Secret | None, **options: Unpack[StoreOptions]) -> Stores:
    """Open both. A shared database need not be reachable yet."""
    check_database_url(database_url)
    if database_url is None:
        store = await open_local_store(data_dir, **options)
        return Stores(store, store)
    from gateway.memory.stores.postgres import PostgresStore  # the driver takes long to import, and one node needs none

    local = await open_local_store(data_dir)
    return Stores(PostgresStore(database_url.reveal(), schema=MEMORY_SCHEMA, **options), local)


@contextlib.asynccontextmanager
async def opened_stores(settings: Settings, **options: Unpack[StoreOptions]) -> AsyncIterator[Stores]:
    """As `open_stores`, and closed at the end."""
    stores = await open_stores(settings.data_dir, settings.database_url, **options)
    try:
        yield stores
    finally:
        await stores.close()


@contextlib.asynccontextmanager
async def existing_stores(settings: Settings, *, needs_local: bool = False) -> AsyncIterator[Stores]:
    """The stores of a gateway that has run here, for a command. Raises SettingsError; `needs_local`: for jobs too."""
    if not have_stores(settings, needs_local=needs_local):
        path = store_path(settings.data_dir)
        raise SettingsError(f"{path} does not exist; run `{command('serve')}` once, or set DATA_DIR to its folder")
    async with opened_stores(settings) as stores:
        yield stores


def have_stores(settings: Settings, *, needs_local: bool = False) -> bool:
    """Whether a gateway may have run with these settings. `needs_local`: on this machine."""
    return store_path(settings.data_dir).is_file() or (settings.database_url is not None and not needs_local)


# Files of earlier versions

_OLD_TABLES: Final = {
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
    files = {name: data_dir / f"{name}.db" for name in _OLD_TABLES}
    present = [path for path in files.values() if path.is_file()]
    if not present:
        return
    try:
        for path in present:
            # SQLite leaves WAL mode only for the last connection, and with it the -wal file is merged.
            with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=2)) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
        with closing(open_call_log(data_dir / FILE_NAME)) as connection:
            for name, tables in _OLD_TABLES.items():
                source = str(files[name]) if files[name] in present else ":memory:"
                connection.execute(f"ATTACH ? AS {name}", (source,))
                for statement in tables:
                    connection.execute(statement)
            with connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(_COPY_EVENTS)
                for call in connection.execute(_LIVE_CALLS).fetchall():
                    _copy_live_call(connection, *call)
    except sqlite3.Error as error:
        if not any(path.is_file() for path in present):  # another worker has just done it
            return
        problem = f"{' and '.join(path.name for path in present)} cannot be migrated: {error}"
        raise StoreUnavailable(f"{problem}; stop the earlier version first") from error
    for path in present:
        for suffix in ("-wal", "-shm", ""):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def _copy_live_call(connection: sqlite3.Connection, session_id: str, header: str | bytes, node: str) -> None:
    text = header.decode() if isinstance(header, bytes) else header
    connection.execute("INSERT INTO main.live_calls VALUES (?, ?, ?)", (session_id, text, node))
    query = "SELECT entry FROM journal.entries WHERE session = ? ORDER BY number"
    entries = [orjson.loads(entry) for (entry,) in connection.execute(query, (session_id,))]
    # Give the caller's turns among the events the time of the turn, by which a retraction finds them.
    times = {entry["caller"]: entry["at"] for entry in entries if "caller" in entry}
    query = "SELECT id, entry FROM main.entries WHERE session = ? AND position IS NOT NULL"
    for id_, stored in connection.execute(query, (session_id,)).fetchall():
        event = orjson.loads(stored)
        if event.get("speaker") == "caller" and (at := times.get(event.get("text"))):
            stored = orjson.dumps({**event, "at": at}).decode()
            connection.execute("UPDATE main.entries SET entry = ? WHERE id = ?", (stored, id_))
    # The journal decides what was said: the turns among the events do not count from here on.
    session = orjson.loads(text)["session"]
    number = session.get("number") or session["caller"]
    for row in ({"restart": True}, *map(_row, entries)):
        connection.execute(INSERT_ROW, (session_id, number, session["agent"], orjson.dumps(row).decode()))


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
