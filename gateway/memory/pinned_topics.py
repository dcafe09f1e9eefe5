"""Pinned topics: matters that run through several calls of a caller, their status, and what is open."""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from gateway.memory.database import Connection
from gateway.memory.documents import NewDocument
from gateway.memory.memory_log import CallerScope, LearningSession, LogEntry, MemoryLog, NewEntry
from gateway.memory.store import MemoryStore
from gateway.memory.topic_names import TopicName
from gateway.memory.topic_projection import Mention, Topic, TopicNote, TopicOp, TopicState, find, project

SOURCE: Final = "pinned-topic"
MOST_TITLE_CHARACTERS: Final = 80
MOST_TEXT_CHARACTERS: Final = 300
MOST_ITEMS: Final = 8

_MOST_HISTORY: Final = 20
_MANUAL: Final = "by-hand:"  # stored in place of a session id

Embed = Callable[[Sequence[str]], Awaitable[bytes | None]]
"""Returns the vectors of some texts, concatenated; None without a model."""


@dataclass(frozen=True, slots=True)
class PinnedTopicEvent:
    """A line of a topic's history. `session_id` is empty for an operator's change."""

    state: TopicState
    text: str
    session_id: str
    at: datetime


@dataclass(frozen=True, slots=True)
class PinnedTopic:
    """
    A topic of a caller. `id` is its document's, empty while it is not pinned.

    `session_id` and `turns` name the call that changed it last; both are empty for an operator's change. Recordings
    of calls contain these fields under these names.
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
    """The effect of one entry; `before` is empty for a new topic."""

    op: TopicOp
    session_id: str
    title: str
    before: str
    after: str
    at: datetime


class PinnedTopicStore(MemoryLog[Topic]):
    """
    The topics of all callers.

    With `embed`, titles that share few words are also compared by meaning.
    """

    source = SOURCE

    def __init__(self, store: MemoryStore, *, embed: Embed | None = None) -> None:
        super().__init__(store)
        self._embed = embed

    # Calls

    async def note(
        self, session: LearningSession, topics: Sequence[TopicNote], now: datetime
    ) -> list[PinnedTopicChange]:
        """
        Store what a session said about topics. Returns the changes.

        Other topics of the same session, from a better summary, replace its first ones.
        """
        entries = [NewEntry(asdict(topic), await self._vector(topic.title)) for topic in topics]
        changed = await self._replace_session(session, entries, now)
        history = await self.history(session.agent, session.caller) if changed else []
        return [change for change in history if change.session_id == session.id]

    # Operators

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
        Pin a topic, or change the one of this name; `open_items`, if any, replace the old ones.

        A closed or unpinned topic opens again, unless `closed` is set. Raises ValueError for invalid text.
        """
        scope = self._checked_scope(agent, caller)
        name = _checked(title, "title", MOST_TITLE_CHARACTERS)
        items = [_checked(item, "open item", MOST_TEXT_CHARACTERS) for item in open_items]
        if not name or not all(items) or len(items) > MOST_ITEMS:
            raise ValueError(f"a topic needs a title, and may have up to {MOST_ITEMS} open items with words in them")
        note = TopicNote(
            name,
            about=_checked(about, "description", MOST_TEXT_CHARACTERS),
            status=_checked(status, "status", MOST_TEXT_CHARACTERS),
            open_items=tuple(items),
            state="closed" if closed else "open",
            lists_all=bool(items),
        )
        moment, vector = now or datetime.now(UTC), await self._vector(name)

        def work(connection: Connection) -> PinnedTopic:
            key = self._append_manual(connection, scope, asdict(note), moment, vector)
            topics, ids = self._rebuild(connection, scope)
            topic = next(topic for topic in topics if key in topic.keys)
            return _as_pinned(topic, ids.get(topic.source_id, ""))

        return await self._store.run(work)

    async def unpin(self, agent: str, caller: str, which: str, *, now: datetime | None = None) -> bool:
        """
        Unpin a topic, by its title or the id of its document. Returns whether one was pinned.

        Later calls do not pin it again; an operator can.
        """
        scope, moment = self._checked_scope(agent, caller), now or datetime.now(UTC)

        def work(connection: Connection) -> bool:
            topics, ids = self._rebuild(connection, scope)
            pinned = [topic for topic in topics if topic.is_pinned]
            by_id = next((topic for topic in pinned if ids[topic.source_id] == which), None)
            topic = by_id or find(pinned, TopicName(which))
            if topic is None:
                return False
            if topic.calls:
                self._append_manual(connection, scope, {"title": topic.title, "unpins": True}, moment)
            else:
                self._delete(connection, topic.keys)
            self._rebuild(connection, scope)
            return True

        return await self._store.run(work)

    # Reading

    async def pinned(
        self, agent: str, caller: str, limit: int = 100, *, not_before: datetime | None = None, closed: bool = False
    ) -> list[PinnedTopic]:
        """The pinned topics, last mentioned first; with `closed` also the closed ones, after the open ones."""
        scope = self._scope(agent, caller)
        pins = await self._store.look(lambda connection: self._stored(connection, scope, _from_document))
        visible = [
            pin for pin in pins if (closed or pin.is_open) and (not_before is None or pin.last_said_at >= not_before)
        ]
        # Ties are ordered by title: the order of the documents changes when a call is reverted.
        by_title = sorted(visible, key=lambda pin: pin.title)
        return sorted(by_title, key=lambda pin: (pin.is_open, pin.last_said_at), reverse=True)[:limit]

    async def topics(self, agent: str, caller: str) -> list[PinnedTopic]:
        """All topics, pinned or not, last mentioned first; without the ids of documents."""
        scope = self._scope(agent, caller)
        entries = await self._store.look(lambda connection: self._entries(connection, scope))
        pins = [_as_pinned(topic, "") for topic in self._project(entries)]
        return sorted(pins, key=lambda pin: pin.last_said_at, reverse=True)

    async def history(self, agent: str, caller: str) -> list[PinnedTopicChange]:
        """All changes in the order of the calls: why each topic is what it is."""
        scope = self._scope(agent, caller)
        entries = await self._store.look(lambda connection: self._entries(connection, scope))
        _, steps = project(map(_mention, entries))
        return [
            PinnedTopicChange(
                step.op,
                "" if step.mention.is_manual else step.mention.key[0],
                step.topic.title,
                step.before,
                step.after,
                datetime.fromisoformat(step.mention.started_at),
            )
            for step in steps
            if step.op != "repeat"
        ]

    # The log

    def _project(self, entries: Sequence[LogEntry]) -> Sequence[Topic]:
        return project(map(_mention, entries))[0]

    def _document(self, item: Topic, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument | None:
        if not item.is_pinned:
            return None
        return NewDocument(
            title=f"Pinned Topic — {item.title}",
            content=_text(item),
            source=SOURCE,
            tags=scope.tags,
            created_at=datetime.fromisoformat(item.first.started_at),
            metadata=_metadata(item),
            source_id=item.source_id,
        )

    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        """A topic that is still mentioned keeps all of its history."""
        current = (topic for topic in self._project(entries) if topic.last.started_at >= before)
        kept = {key for topic in current for key in topic.keys}
        return [entry for entry in entries if entry.started_at < before and entry.key not in kept]

    def _append_manual(
        self,
        connection: Connection,
        scope: CallerScope,
        content: Mapping[str, Any],
        moment: datetime,
        vector: bytes = b"",
    ) -> tuple[str, int]:
        """Append an operator's entry under a unique key. Returns the key."""
        session_id = f"{_MANUAL}{uuid.uuid4()}"
        entry = NewEntry({**content, "by_hand": True}, vector)
        self._append(connection, scope, session_id, moment, [entry], moment)
        return session_id, 0

    def _checked_scope(self, agent: str, caller: str) -> CallerScope:
        if not agent or not caller:
            raise ValueError("a pinned topic belongs to a caller with an agent; name both")
        return self._scope(agent, caller)

    async def _vector(self, title: str) -> bytes:
        return (await self._embed([title]) if self._embed else None) or b""


def _checked(text: str, what: str, most: int) -> str:
    """The text as one line. Raises ValueError, without quoting it, for text that is too long or not plain."""
    line = " ".join(text.split())
    if not line.isprintable():
        raise ValueError(f"a {what} must be plain text")
    if len(line) > most:
        raise ValueError(f"a {what} may have at most {most} characters")
    return line


def _mention(entry: LogEntry) -> Mention:
    content = {"open_items": (), "turns": (), **entry.content}
    is_manual, unpins = content.pop("by_hand", False), content.pop("unpins", False)
    name = TopicName(content["title"], entry.vector)
    return Mention(entry.key, entry.started_at, name, TopicNote.from_json(content), is_manual, unpins)


# Documents


def _text(topic: Topic) -> str:
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
    last = topic.history[-1] if topic.history else None
    return {
        "title": topic.title,
        "about": topic.about,
        "status": topic.status,
        "open_items": list(topic.open_items),
        "state": topic.state,
        "history": [
            {"state": event.state, "text": event.text, "session": event.session_id, "at": event.at}
            for event in topic.history[-_MOST_HISTORY:]
        ],
        "calls": len(topic.calls),
        "session": last.session_id if last else "",
        "turns": list(last.turns) if last else [],
        "last_said_at": topic.last.started_at,
    }


def _as_pinned(topic: Topic, document_id: str) -> PinnedTopic:
    return _from_document(document_id, "", datetime.fromisoformat(topic.first.started_at), _metadata(topic))


def _from_document(document_id: str, content: str, created_at: datetime, metadata: dict[str, Any]) -> PinnedTopic:
    return PinnedTopic(
        id=document_id,
        title=metadata["title"],
        about=metadata["about"],
        status=metadata["status"],
        open_items=tuple(metadata["open_items"]),
        state=metadata["state"],
        history=tuple(
            PinnedTopicEvent(event["state"], event["text"], event["session"], datetime.fromisoformat(event["at"]))
            for event in metadata["history"]
        ),
        calls=metadata["calls"],
        session_id=metadata["session"],
        turns=tuple(metadata["turns"]),
        since=created_at,
        last_said_at=datetime.fromisoformat(metadata["last_said_at"]),
    )
