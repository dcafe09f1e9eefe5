"""
The audit log: who did what, and when. One entry per administrative action, without anything that was said.

A caller appears as the last four digits and a keyed hash: erasure leaves no number here, and an operator who knows the
number still finds its entries. Each entry has the hash of the one before it, so `verify` finds changed, inserted and
deleted entries. A person with write access to the database can compute all hashes again, or delete the newest entries:
that is found only with a hash that was noted elsewhere. Each entry's log line has its hash.
"""

import asyncio
import contextlib
import enum
import getpass
import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from typing import Final

import orjson

from gateway.errors import StoreError
from gateway.llm.responder import hashed_caller
from gateway.logs import last_four
from gateway.memory.stores.database import Connection, tables
from gateway.memory.stores.documents import time_text
from gateway.memory.stores.store import MemoryStore
from gateway.metrics import AUDIT_FAILURES
from gateway.settings import Secret

WRITE_SECONDS: Final = 5.0
"""How long an action waits for its entry."""
MAX_TEXT: Final = 200
"""Characters of one field."""

_COLUMNS: Final = (
    "action, actor, outcome, agent, session, caller, caller_hash, item, address, number, at, previous, hash"
)
SCHEMA: Final = tables("audit_log")

_log = logging.getLogger(__name__)


class AuditAction(enum.StrEnum):
    """What was done. docs/erasure-and-audit.md lists where each comes from."""

    LOGIN = "login"
    LOGIN_LINK = "login.link"
    LOGOUT = "logout"
    CALLER_EXPORT = "caller.export"
    CALLER_ERASE = "caller.erase"
    RECORDING_EXPORT = "recording.export"
    RECORDING_ROTATE = "recording.rotate"
    CALL_EXPORT = "call.export"
    CALL_REVERT = "call.revert"
    CALL_RETRY = "call.retry"
    CALL_IMPORT = "call.import"
    CALL_DIAL = "call.dial"
    CALL_LISTEN = "call.listen"
    CALL_SAY = "call.say"
    CALL_END = "call.end"
    FACT_CORRECT = "fact.correct"
    FACT_ERASE = "fact.erase"
    TOPIC_PIN = "topic.pin"
    TOPIC_UNPIN = "topic.unpin"
    STATE_CORRECT = "state.correct"
    STATE_ERASE = "state.erase"
    MEMORY_REBUILD = "memory.rebuild"
    MEMORY_UNDO = "memory.undo"
    MEMORY_ADD = "memory.add"
    PIN_SET = "pin.set"
    PIN_REMOVE = "pin.remove"
    PHONE_CALL = "phone.call"
    LINK_CREATE = "link.create"
    LINK_USE = "link.use"
    PERSONA_ADD = "persona.add"
    AGENT_CHANGE = "agent.change"
    DOCUMENT_CHANGE = "document.change"
    DOCUMENT_DELETE = "document.delete"
    TOKEN_CREATE = "token.create"
    TOKEN_REVOKE = "token.revoke"
    NUMBER_SETUP = "number.setup"
    AUDIT_TRIM = "audit.trim"


class AuditOutcome(enum.StrEnum):
    DONE = "done"
    INCOMPLETE = "incomplete"
    """Parts could not be reached; the command or page says which."""
    REFUSED = "refused"
    FAILED = "failed"


@dataclass
class AuditNote:
    """An action under way; those who carry it out fill in what it concerns. Without an action nothing is logged."""

    action: AuditAction | None = None
    actor: str = ""
    outcome: AuditOutcome | None = None
    agent: str = ""
    session: str = ""
    caller: str = ""
    """The number or other key of memory. Only its last four characters and its hash are stored."""
    item: str = ""
    """An id of something else: a document, a token."""
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the log. `caller` are the last four digits; `previous` is the hash of the entry before it."""

    action: str
    actor: str
    outcome: str = AuditOutcome.DONE
    agent: str = ""
    session: str = ""
    caller: str = ""
    caller_hash: str = ""
    item: str = ""
    address: str = ""
    number: int = 0
    at: str = ""
    previous: str = ""
    hash: str = ""

    @property
    def right_hash(self) -> str:
        return hashlib.sha256(orjson.dumps(astuple(self)[:-1])).hexdigest()


@dataclass(frozen=True)
class AuditFilter:
    """Empty fields match everything. `since` and `before` are times as stored."""

    actor: str = ""
    """A whole actor, or what comes before its colon."""
    action: str = ""
    """A whole action, or what comes before its dot."""
    caller_hash: str = ""
    since: str = ""
    before: str = ""

    @property
    def where(self) -> tuple[str, tuple[str, ...]]:
        tests = {
            "(actor = ? OR substr(actor, 1, length(?)) = ?)": (self.actor, *2 * (f"{self.actor}:",)),
            "(action = ? OR substr(action, 1, length(?)) = ?)": (self.action, *2 * (f"{self.action}.",)),
            "caller_hash = ?": (self.caller_hash,),
            "at >= ?": (self.since,),
            "at < ?": (self.before,),
        }
        given = {test: values for test, values in tests.items() if values[0]}
        return " AND ".join(["1 = 1", *given]), tuple(value for values in given.values() for value in values)


@dataclass(frozen=True)
class ChainCheck:
    """The result of `verify`. `problem` is empty if no change was found."""

    entries: int
    last_hash: str
    problem: str


class AuditLog:
    """`secret` is the key of callers' hashes: after it has changed, older entries are not found by caller."""

    def __init__(
        self,
        store: MemoryStore,
        secret: Secret,
        *,
        write_seconds: float = WRITE_SECONDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._secret = secret
        self._write_seconds = write_seconds
        self._now = now

    def hash_of(self, caller: str) -> str:
        return hashed_caller("", caller, self._secret)

    # Writing

    @contextlib.asynccontextmanager
    async def noted(self, note: AuditNote) -> AsyncIterator[AuditNote]:
        """Write the entry when the block has ended: done, or failed if it raised, unless the note has an outcome."""
        try:
            yield note
        except BaseException:
            note.outcome = note.outcome or AuditOutcome.FAILED
            raise
        finally:
            await self.write(note)

    async def write(self, note: AuditNote) -> None:
        """
        Append the entry. On return it is stored, or a log line with all of its fields says that it is not.

        Never raises: an erasure must not fail because its entry can't be written.
        """
        if note.action is None:
            return
        entry = AuditEntry(
            note.action,
            _short(note.actor),
            note.outcome or AuditOutcome.DONE,
            agent=_short(note.agent),
            session=_short(note.session),
            caller=last_four(note.caller) if note.caller else "",
            caller_hash=self.hash_of(note.caller),
            item=_short(note.item),
            address=_short(note.address),
        )
        fields = {name: value for name, value in asdict(entry).items() if value and name != "caller_hash"}
        try:
            async with asyncio.timeout(self._write_seconds):
                written = await self._store.run(lambda connection: self._append(connection, entry))
        except (StoreError, TimeoutError) as error:
            AUDIT_FAILURES.inc()
            _log.error("audit entry could not be stored", extra={**fields, "error": type(error).__name__})
        else:
            _log.info("administrative action", extra={**fields, "number": written.number, "hash": written.hash})

    async def trim(self, before: datetime) -> int:
        """Delete entries older than this and note up to which number, so that the rest can be verified."""

        def work(connection: Connection) -> int:
            query = "SELECT min(number), max(number), min(CASE WHEN at >= ? THEN number END) FROM audit_log"
            first, last, kept = connection.execute(query, (time_text(before),)).fetchone()
            if first is None or first == kept:
                return 0
            end = last if kept is None else kept - 1
            # Appended before the others are deleted: it continues their chain.
            self._append(connection, AuditEntry(AuditAction.AUDIT_TRIM, "gateway", item=str(end)))
            connection.execute("DELETE FROM audit_log WHERE number <= ?", (end,))
            return int(end - first + 1)

        return await self._store.run(work)

    def _append(self, connection: Connection, entry: AuditEntry) -> AuditEntry:
        query = "SELECT number, hash FROM audit_log ORDER BY number DESC LIMIT 1"
        number, previous = connection.execute(query).fetchone() or (0, "")
        linked = replace(entry, number=number + 1, at=time_text(self._now()), previous=previous)
        written = replace(linked, hash=linked.right_hash)
        marks = ", ".join("?" * len(astuple(written)))
        connection.execute(f"INSERT INTO audit_log ({_COLUMNS}) VALUES ({marks})", astuple(written))
        return written

    # Reading. Raises StoreUnavailable.

    async def page(self, chosen: AuditFilter, *, limit: int, below: int = 0) -> list[AuditEntry]:
        """The newest entries, or those with a number below this one."""
        where, values = chosen.where
        if below:
            where = f"{where} AND number < {below:d}"
        query = f"SELECT {_COLUMNS} FROM audit_log WHERE {where} ORDER BY number DESC LIMIT ?"
        return [AuditEntry(*row) for row in await self._store.fetch(query, *values, limit)]

    async def count(self, chosen: AuditFilter) -> int:
        where, values = chosen.where
        [(entries,)] = await self._store.fetch(f"SELECT count(*) FROM audit_log WHERE {where}", *values)
        return int(entries)

    async def verify(self, noted_hash: str = "") -> ChainCheck:
        """Check every entry's hash, that no number is missing, and that `noted_hash` is in the chain."""

        def work(connection: Connection) -> ChainCheck:
            query = f"SELECT {_COLUMNS} FROM audit_log ORDER BY number"
            return _check((AuditEntry(*row) for row in connection.execute(query)), noted_hash)

        return await self._store.look(work)


def cli_actor() -> str:
    """The actor of a command that works on this machine's data."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"cli:{os.getuid()}"


def _short(text: str) -> str:
    return text[:MAX_TEXT]


def _check(chain: Iterable[AuditEntry], noted_hash: str) -> ChainCheck:
    entries, first, trimmed, last = 0, 1, 0, AuditEntry("", "")
    found = not noted_hash
    for entry in chain:
        if not entries:
            first = entry.number
        elif entry.number != last.number + 1 or entry.previous != last.hash:
            return ChainCheck(entries, last.hash, f"entries between {last.number} and {entry.number} are missing")
        if entry.hash != entry.right_hash:
            return ChainCheck(entries, last.hash, f"entry {entry.number} was changed")
        if entry.action == AuditAction.AUDIT_TRIM:
            trimmed = int(entry.item)
        entries, last, found = entries + 1, entry, found or entry.hash == noted_hash
    if first != trimmed + 1:
        return ChainCheck(entries, last.hash, f"entries before {first} are missing")
    return ChainCheck(entries, last.hash, "" if found else "no entry has this hash")
