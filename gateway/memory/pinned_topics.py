"""
The book of pinned topics: what runs through several calls of a caller, where it stands, and what is open.

The log holds what each call, and each person by hand, said of a topic. What is pinned is worked out from it in the
order of the calls, so that taking entries out (a call reverted, a caller forgotten) leaves what would be pinned without
them. Each pinned topic is a document too, and found like any other.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import orjson

from gateway.memory.database import Connection
from gateway.memory.document_table import create_document
from gateway.memory.documents import Document, NewDocument
from gateway.memory.facts import LearningSession
from gateway.memory.pinned_topic_log import (
    SOURCE,
    Noted,
    TopicLogEntry,
    TopicScope,
    delete,
    is_taken_back,
    json_text,
    mentions_of,
    said_before,
    said_of,
    strike,
    take_back,
    time_text,
    write,
)
from gateway.memory.store import MemoryStore
from gateway.memory.topic_names import TopicName
from gateway.memory.topics import Op, Topic, TopicEvent, TopicState, find, project

MOST_TITLE_CHARACTERS: Final = 80
MOST_TEXT_CHARACTERS: Final = 300
MOST_ITEMS: Final = 8

_MOST_HISTORY: Final = 20

Embed = Callable[[Sequence[str]], Awaitable[bytes | None]]
"""The vectors of some texts, one after the other; None without a model."""


@dataclass(frozen=True, slots=True)
class PinnedTopicEvent:
    """A line of a topic's history. `session_id` is empty where a person wrote it."""

    state: TopicState
    text: str
    session_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PinnedTopic:
    """
    A topic of a caller's. `id` is its document's, empty while it is not pinned.

    `session_id` is the call that changed it last, `turns` where that was said; empty where a person did.
    """

    id: str
    title: str
    about: str
    status: str
    open_items: tuple[str, ...]
    state: TopicState
    history: tuple[PinnedTopicEvent, ...]
    calls: int
    session_id: str
    turns: tuple[int, ...]
    since: datetime
    last_said_at: datetime

    @property
    def is_open(self) -> bool:
        return self.state != "closed"


@dataclass(frozen=True, slots=True)
class PinnedTopicChange:
    """What one entry of the log did to a topic; `before` is empty where there was none."""

    op: Op
    session_id: str
    title: str
    before: str
    after: str
    at: datetime


class PinnedTopics:
    """
    The topics of callers, in a store that was opened with the schemas of `pin_log` and `facts`. Raises
    StoreUnavailable.

    With `embed`, topics that share few words are told apart and put together by their meaning too.
    """

    def __init__(self, store: MemoryStore, *, embed: Embed | None = None) -> None:
        self._store = store
        self._embed = embed

    # By calls

    async def note(self, session: LearningSession, topics: Sequence[Noted], now: datetime) -> list[PinnedTopicChange]:
        """
        Take in what a session said of topics; what that changed.

        The same again changes nothing. Other topics of the same session, from a better summary, take the place of the
        first. One that was reverted or forgotten says nothing any more.
        """
        scope = TopicScope(session.agent, session.caller)
        said = [said_of(topic) for topic in topics]
        if said == await self._store.look(partial(said_before, session_id=session.id)):
            return []
        meanings = await self._meanings([topic.title for topic in topics])
        entries = [TopicLogEntry(session.id, session.started_at, *entry) for entry in zip(said, meanings, strict=True)]

        def work(connection: Connection) -> list[PinnedTopicChange]:
            if is_taken_back(connection, session.id):
                return []
            connection.execute("DELETE FROM pin_log WHERE session_id = ?", (session.id,))
            write(connection, scope, entries, now)
            _settle(connection, scope)
            return [change for change in _changes(connection, scope) if change.session_id == session.id]

        return await self._store.run(work)

    async def revert(self, session_id: str) -> int:
        """Make it as if a call had not happened, and see that it stays so; how many entries that was."""

        def work(connection: Connection) -> int:
            take_back(connection, [session_id])
            rows = connection.execute("SELECT DISTINCT agent, caller FROM pin_log WHERE session_id = ?", (session_id,))
            scopes = [TopicScope(*row) for row in rows.fetchall()]
            count = connection.execute("DELETE FROM pin_log WHERE session_id = ?", (session_id,)).rowcount
            for scope in scopes:
                _settle(connection, scope)
            return count

        return await self._store.run(work)

    # By hand

    async def pin(
        self,
        agent: str,
        caller: str,
        title: str,
        *,
        about: str = "",
        status: str = "",
        open_items: Sequence[str] = (),
        closed: bool = False,
        now: datetime | None = None,
    ) -> PinnedTopic:
        """
        Pin a topic, or change the one of this name; `open_items`, where there are any, take the place of the old ones.

        One that is over, or was unpinned, begins again, unless it is `closed` with this. Raises ValueError for what
        can't be kept.
        """
        scope = _checked_scope(agent, caller)
        name = _checked(title, "title", MOST_TITLE_CHARACTERS)
        items = [_checked(item, "open item", MOST_TEXT_CHARACTERS) for item in open_items]
        if not name or not all(items) or len(items) > MOST_ITEMS:
            raise ValueError(f"a topic needs a title, and may have up to {MOST_ITEMS} open items with words in them")
        said = {
            "title": name,
            "about": _checked(about, "description", MOST_TEXT_CHARACTERS),
            "status": _checked(status, "status", MOST_TEXT_CHARACTERS),
            "open_items": items,
            "state": "closed" if closed else "open",
            "lists_all": bool(items),
        }
        moment = now or datetime.now(UTC)
        [meaning] = await self._meanings([name])
        entry = TopicLogEntry.by_hand(moment, said, meaning)

        def work(connection: Connection) -> PinnedTopic:
            write(connection, scope, [entry], moment)
            topics, ids = _settle(connection, scope)
            topic = next(topic for topic in topics if any(m.session_id == entry.session_id for m in topic.mentions))
            return _pin_of(topic, ids.get(topic.source_id, ""))

        return await self._store.run(work)

    async def unpin(self, agent: str, caller: str, which: str, *, now: datetime | None = None) -> bool:
        """
        Let go of a topic, by its title or the id of its document; false where there is none that is pinned.

        It stays so whatever calls say of it, until somebody pins it again.
        """
        scope, moment = _checked_scope(agent, caller), now or datetime.now(UTC)

        def work(connection: Connection) -> bool:
            topics, ids = _settle(connection, scope)
            pinned = [topic for topic in topics if topic.is_pinned]
            by_id = next((topic for topic in pinned if ids[topic.source_id] == which), None)
            topic = by_id or find(pinned, TopicName(which))
            if topic is None:
                return False
            if topic.is_only_by_hand:
                delete(connection, topic.mentions)
            else:
                entry = TopicLogEntry.by_hand(moment, {"title": topic.title, "unpins": True})
                write(connection, scope, [entry], moment)
            _settle(connection, scope)
            return True

        return await self._store.run(work)

    # Looking

    async def pinned(
        self, agent: str, caller: str, limit: int = 100, *, not_before: datetime | None = None, closed: bool = False
    ) -> list[PinnedTopic]:
        """What is pinned, last spoken of first; those that are `closed` too if asked for, after the open ones."""
        pins = await self._store.look(lambda connection: _pins(connection, TopicScope(agent, caller)))
        shown = [
            pin for pin in pins if (closed or pin.is_open) and (not_before is None or pin.last_said_at >= not_before)
        ]
        # The title decides in the end, and not when the document was made: that may be anew, after a call was reverted.
        in_order = sorted(shown, key=lambda pin: pin.title)
        return sorted(in_order, key=lambda pin: (pin.is_open, pin.last_said_at), reverse=True)[:limit]

    async def topics(self, agent: str, caller: str) -> list[PinnedTopic]:
        """All topics there are, pinned or not yet, last spoken of first; without the ids of documents."""

        def work(connection: Connection) -> list[PinnedTopic]:
            topics, _ = project(mentions_of(connection, TopicScope(agent, caller)))
            return [_pin_of(topic, "") for topic in topics]

        pins = await self._store.look(work)
        return sorted(pins, key=lambda pin: pin.last_said_at, reverse=True)

    async def history(self, agent: str, caller: str) -> list[PinnedTopicChange]:
        """All changes, in the order of the calls: why the book says what it says."""
        return await self._store.look(lambda connection: _changes(connection, TopicScope(agent, caller)))

    # Forgetting

    async def deleted(self, document_id: str) -> None:
        """The document of a topic, if it was one, is there no more: nor is what was said of it."""

        def work(connection: Connection) -> None:
            query = "SELECT DISTINCT agent, caller FROM pin_log WHERE document_id = ?"
            for row in connection.execute(query, (document_id,)).fetchall():
                _settle(connection, TopicScope(*row))

        await self._store.run(work)

    async def forget(self, agent: str | None, caller: str) -> int:
        """Delete all topics of a caller and their history, with one agent or all; how many entries that was."""

        def work(connection: Connection) -> int:
            rows = connection.execute("SELECT DISTINCT agent FROM pin_log WHERE caller = ?", (caller,)).fetchall()
            scopes = [TopicScope(name, caller) for (name,) in rows if agent in (None, name)]
            return sum(strike(connection, scope) for scope in scopes)

        return await self._store.run(work)

    async def expire(self, before: datetime, of: Callable[[str], bool] = lambda agent: True) -> int:
        """
        Delete topics that nobody spoke of to these agents since this moment; how many entries that was.

        One that is still spoken of keeps all of its history.
        """
        moment = time_text(before)
        query = "SELECT DISTINCT agent, caller FROM pin_log WHERE started_at < ?"
        rows = await self._store.look(lambda connection: connection.execute(query, (moment,)).fetchall())

        def work(connection: Connection, scope: TopicScope) -> int:
            mentions = mentions_of(connection, scope)
            topics, _ = project(mentions)
            alive = {id(mention) for topic in topics if topic.last.started_at >= moment for mention in topic.mentions}
            old = [mention for mention in mentions if mention.started_at < moment and id(mention) not in alive]
            delete(connection, old)
            _settle(connection, scope)
            return len(old)

        # One caller a transaction: calls that read memory meanwhile do not wait long.
        return sum([await self._store.run(partial(work, scope=TopicScope(*row))) for row in rows if of(row[0])])

    async def _meanings(self, titles: Sequence[str]) -> list[bytes]:
        vectors = [await self._embed([title]) if self._embed else None for title in titles]
        return [vector or b"" for vector in vectors]


def is_shown(document: Document, not_before: datetime | None = None) -> bool:
    """Whether a search may tell of a document: not of topics that nobody spoke of since `not_before`."""
    if document.source != SOURCE or "last_said_at" not in document.metadata:
        return True
    return not_before is None or datetime.fromisoformat(document.metadata["last_said_at"]) >= not_before


def _checked_scope(agent: str, caller: str) -> TopicScope:
    if not agent or not caller:
        raise ValueError("a pinned topic belongs to a caller with an agent; name both")
    return TopicScope(agent, caller)


def _checked(text: str, what: str, most: int) -> str:
    """One line of text, of a certain length; else ValueError, which does not quote it."""
    line = " ".join(text.split())
    if not line.isprintable():
        raise ValueError(f"a {what} must be plain text")
    if len(line) > most:
        raise ValueError(f"a {what} may have at most {most} characters")
    return line


# The documents


def _changes(connection: Connection, scope: TopicScope) -> list[PinnedTopicChange]:
    _, steps = project(mentions_of(connection, scope))
    return [
        PinnedTopicChange(
            step.op,
            "" if step.mention.by_hand else step.mention.session_id,
            step.topic.title,
            step.before,
            step.after,
            datetime.fromisoformat(step.mention.started_at),
        )
        for step in steps
        if step.op != "repeat"
    ]


def _settle(connection: Connection, scope: TopicScope) -> tuple[list[Topic], dict[str, str]]:
    """Make the documents tell what the log comes to; the topics, and the ids of the documents of pinned ones."""
    # A document that somebody deleted is not to come back: what was said of it goes too.
    connection.execute(
        """DELETE FROM pin_log WHERE agent = ? AND caller = ? AND document_id <> ''
            AND document_id NOT IN (SELECT id FROM documents WHERE source = ? AND tags = ?)""",
        (*scope.names, SOURCE, scope.tags_text),
    )
    topics, _ = project(mentions_of(connection, scope))
    ids = {topic.source_id: _document_id(connection, scope, topic) for topic in topics if topic.is_pinned}
    connection.executemany(
        "UPDATE pin_log SET document_id = ? WHERE session_id = ? AND position = ?",
        [
            (ids.get(topic.source_id, ""), mention.session_id, mention.position)
            for topic in topics
            for mention in topic.mentions
        ],
    )
    connection.execute(
        """DELETE FROM documents WHERE source = ? AND tags = ? AND source_id <> ''
            AND id NOT IN (SELECT document_id FROM pin_log WHERE agent = ? AND caller = ?)""",
        (SOURCE, scope.tags_text, *scope.names),
    )
    return topics, ids


def _document_id(connection: Connection, scope: TopicScope, topic: Topic) -> str:
    """Of the topic's document, which is made, or made to tell the newest."""
    title, content, metadata = f"Pinned Topic — {topic.title}", _content(topic), _metadata(topic)
    now = datetime.now(UTC)
    began = datetime.fromisoformat(topic.first.started_at)
    new = NewDocument(title, content, SOURCE, scope.tags, began, metadata, topic.source_id)
    document_id = create_document(connection, new, now).id
    told = (title, content, json_text(metadata))
    connection.execute(
        """UPDATE documents SET title = ?, content = ?, metadata = ?, updated_at = ?
            WHERE id = ? AND (title <> ? OR content <> ? OR metadata <> ?)""",
        (*told, time_text(now), document_id, *told),
    )
    return document_id


def _content(topic: Topic) -> str:
    lines = [
        f"## {topic.title}",
        "",
        *filter(None, [topic.about, f"**Status:** {topic.state}. {topic.status}".rstrip(" .")]),
        "",
        "### Open Items",
        *(f"- {item}" for item in topic.open_items),
        "",
        "### History",
        *(f"- {event.at[:10]} {event.state}: {event.text}" for event in topic.history[-_MOST_HISTORY:]),
    ]
    return "\n".join(lines) + "\n"


def _metadata(topic: Topic) -> dict[str, Any]:
    return {
        "title": topic.title,
        "about": topic.about,
        "status": topic.status,
        "open_items": list(topic.open_items),
        "state": topic.state,
        "history": [_event(event) for event in topic.history[-_MOST_HISTORY:]],
        "calls": len(topic.calls),
        "session": topic.changed_by,
        "turns": list(topic.turns),
        "last_said_at": topic.last.started_at,
    }


def _event(event: TopicEvent) -> dict[str, str]:
    return {"state": event.state, "text": event.text, "session": event.session_id, "at": event.at}


def _pins(connection: Connection, scope: TopicScope) -> list[PinnedTopic]:
    rows = connection.execute(
        "SELECT id, created_at, metadata FROM documents WHERE source = ? AND tags = ? AND source_id <> ''",
        (SOURCE, scope.tags_text),
    )
    return [pin for row in rows.fetchall() if (pin := _readable(*row)) is not None]


def _readable(id_: str, since: str, metadata: str) -> PinnedTopic | None:
    """None for what another program has stored in the place of a topic."""
    try:
        return _pin(id_, since, orjson.loads(metadata))
    except (KeyError, TypeError, ValueError):
        return None


def _pin_of(topic: Topic, document_id: str) -> PinnedTopic:
    return _pin(document_id, topic.first.started_at, _metadata(topic))


def _pin(id_: str, since: str, told: dict[str, Any]) -> PinnedTopic:
    return PinnedTopic(
        id=id_,
        title=told["title"],
        about=told["about"],
        status=told["status"],
        open_items=tuple(told["open_items"]),
        state=told["state"],
        history=tuple(
            PinnedTopicEvent(event["state"], event["text"], event["session"], datetime.fromisoformat(event["at"]))
            for event in told["history"]
        ),
        calls=told["calls"],
        session_id=told["session"],
        turns=tuple(told["turns"]),
        since=datetime.fromisoformat(since),
        last_said_at=datetime.fromisoformat(told["last_said_at"]),
    )
