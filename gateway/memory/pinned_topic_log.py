"""The log of pinned topics: what each call, and each person by hand, said of a topic. Rows in, values out."""

import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import orjson

from gateway.memory.caller_scope import CallerScope
from gateway.memory.database import Connection
from gateway.memory.embeddings.embedder import MODEL
from gateway.memory.topic_names import TopicName
from gateway.memory.topics import Mention

SOURCE: Final = "pinned-topic"
"""Of the documents of pinned topics."""

_BY_HAND: Final = "by-hand:"

# Lives beside the tables of facts: `memory_taken_back` is theirs.
SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS pin_log (
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        session_id TEXT NOT NULL,
        position INTEGER NOT NULL,
        started_at TEXT NOT NULL,
        said TEXT NOT NULL,
        model TEXT NOT NULL DEFAULT '',
        meaning TEXT NOT NULL DEFAULT '',
        document_id TEXT NOT NULL DEFAULT '',
        at TEXT NOT NULL,
        PRIMARY KEY (session_id, position))""",
    "CREATE INDEX IF NOT EXISTS pin_log_by_caller ON pin_log (caller, agent)",
    "CREATE INDEX IF NOT EXISTS pin_log_by_age ON pin_log (started_at)",
    f"CREATE INDEX IF NOT EXISTS documents_of_pins ON documents (tags) WHERE source = '{SOURCE}'",
)


class Noted(Protocol):
    """What a call said of a topic. `turns` are lines of its transcript."""

    @property
    def title(self) -> str: ...

    @property
    def about(self) -> str: ...

    @property
    def status(self) -> str: ...

    @property
    def open_items(self) -> Sequence[str]: ...

    @property
    def change(self) -> str: ...

    @property
    def state(self) -> Literal["open", "closed", ""]: ...

    @property
    def turns(self) -> Sequence[int]: ...

    @property
    def lists_all(self) -> bool: ...


class TopicScope(CallerScope):
    __slots__ = ()
    source = SOURCE


@dataclass(frozen=True, slots=True)
class TopicLogEntry:
    """A row to be written."""

    session_id: str
    started_at: datetime
    said: str
    meaning: bytes = b""

    @classmethod
    def by_hand(cls, moment: datetime, said: dict[str, Any], meaning: bytes = b"") -> "TopicLogEntry":
        """A person's; no two have the same key."""
        return cls(f"{_BY_HAND}{uuid.uuid4()}", moment, json_text({**said, "by_hand": True}), meaning)


def said_of(topic: Noted) -> str:
    entry = {
        "title": topic.title,
        "about": topic.about,
        "status": topic.status,
        "open_items": list(topic.open_items),
        "change": topic.change,
        "state": topic.state,
        "turns": list(topic.turns),
        "lists_all": topic.lists_all,
    }
    return json_text(entry)


def said_before(connection: Connection, session_id: str) -> list[str]:
    rows = connection.execute("SELECT said FROM pin_log WHERE session_id = ? ORDER BY position", (session_id,))
    return [said for (said,) in rows.fetchall()]


def write(connection: Connection, scope: TopicScope, entries: Iterable[TopicLogEntry], now: datetime) -> None:
    connection.executemany(
        """INSERT INTO pin_log (agent, caller, session_id, position, started_at, said, model, meaning, at)
            VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        [
            (
                *scope.names,
                entry.session_id,
                position,
                time_text(entry.started_at),
                entry.said,
                MODEL if entry.meaning else "",
                b64encode(entry.meaning).decode(),
                time_text(now),
            )
            for position, entry in enumerate(entries)
        ],
    )


def delete(connection: Connection, mentions: Iterable[Mention]) -> None:
    keys = [(mention.session_id, mention.position) for mention in mentions]
    connection.executemany("DELETE FROM pin_log WHERE session_id = ? AND position = ?", keys)


def strike(connection: Connection, scope: TopicScope) -> int:
    """All of a caller's, with the documents; how many entries that was. Its calls can't bring anything back."""
    rows = connection.execute("SELECT session_id FROM pin_log WHERE agent = ? AND caller = ?", scope.names).fetchall()
    take_back(connection, [session_id for (session_id,) in rows if not session_id.startswith(_BY_HAND)])
    connection.execute("DELETE FROM documents WHERE source = ? AND tags = ?", (SOURCE, scope.tags_text))
    return connection.execute("DELETE FROM pin_log WHERE agent = ? AND caller = ?", scope.names).rowcount


def is_taken_back(connection: Connection, session_id: str) -> bool:
    return bool(connection.execute("SELECT 1 FROM memory_taken_back WHERE session_id = ?", (session_id,)).fetchone())


def take_back(connection: Connection, session_ids: Iterable[str]) -> None:
    statement = "INSERT INTO memory_taken_back (session_id) VALUES (?) ON CONFLICT DO NOTHING"
    connection.executemany(statement, [(session_id,) for session_id in session_ids])


def mentions_of(connection: Connection, scope: TopicScope) -> list[Mention]:
    """All of a caller's, in the order of the calls: who ended late does not count as newest."""
    rows = connection.execute(
        """SELECT session_id, position, started_at, said, model, meaning FROM pin_log
            WHERE agent = ? AND caller = ? ORDER BY started_at, session_id, position""",
        scope.names,
    )
    return [_mention(*row) for row in rows.fetchall()]


def _mention(session_id: str, position: int, started_at: str, said: str, model: str, meaning: str) -> Mention:
    entry: dict[str, Any] = orjson.loads(said)
    name = TopicName(entry.pop("title"), b64decode(meaning) if model == MODEL else b"")
    entry |= {key: tuple(entry.get(key, ())) for key in ("open_items", "turns")}
    return Mention(session_id, position, started_at, name, **entry)


def json_text(value: object) -> str:
    return orjson.dumps(value).decode()


def time_text(time: datetime) -> str:
    """Always the same width, so that text order is time order."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")
