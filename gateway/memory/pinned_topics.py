"""Pinned topics: matters that run through several calls of a caller, their status, and what is open."""

import re
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any, Final, Literal

from gateway.memory.memory_log import CallerScope, EntryKey, LogChange, LogEntry, MemoryLog, NewEntry, by_trust
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import NewDocument, time_text
from gateway.memory.stores.store import MemoryStore
from gateway.session import TrustLevel, VoiceSession
from gateway.text.languages import language_table
from gateway.text.plain_text import is_plain_line, singular

SOURCE: Final = "pinned-topic"
CALLS_TO_PIN: Final = 2
"""A topic is pinned once this many calls mentioned it."""
MOST_TITLE_CHARACTERS: Final = 80
MOST_TEXT_CHARACTERS: Final = 300
MOST_ITEMS: Final = 8
"""Open items of a topic."""

SAME_WORDS: Final = 0.6
"""The share of common words from which two names mean the same topic."""
LIKE: Final = 0.75
"""The cosine from which two names with a common word mean the same. Kitchen and bathroom renovation have 0.70."""
ALIKE: Final = 0.85
"""The same for names without a common word."""

_MOST_HISTORY: Final = 20
_MANUAL: Final = "by-hand:"  # stored in place of a session id
_NOT_IN_NOTES: Final = ("by_hand", "clears", "trust")
"""Fields of an entry that no TopicNote has. `clears` names the texts that an operator emptied."""

TopicState = Literal["open", "changed", "closed"]

Embed = Callable[[Sequence[str]], Awaitable[bytes | None]]
"""Returns the vectors of some texts, concatenated; None without a model."""


@dataclass(frozen=True, slots=True)
class TopicNote:
    """
    What one call, or an operator, says about a topic.

    `change` is what this call changed. `state` is empty where nothing was said about it. `turns` are lines of the
    call's transcript. `lists_all`: `open_items` replaces the open items instead of adding to them.
    """

    title: str
    about: str = ""
    status: str = ""
    open_items: tuple[str, ...] = ()
    change: str = ""
    state: Literal["open", "closed", ""] = ""
    turns: tuple[int, ...] = ()
    lists_all: bool = False

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TopicNote":
        lists = {name: tuple(stored.get(name, ())) for name in ("open_items", "turns")}
        return cls(**{**stored, **lists})


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
    trust: TrustLevel = TrustLevel.EVERYTHING
    """Of the calls that taught it; below `EVERYTHING` it is unverified."""

    @property
    def is_open(self) -> bool:
        return self.state != "closed"


# Names of topics


@lru_cache(maxsize=1)
def _topic_words() -> tuple[frozenset[str], dict[str, str]]:
    """Words without meaning, and the kind of matter that a word stands for. English."""
    words = language_table("en", "topics")
    kinds = {word: line.split()[0] for line in words["kinds"].strip().splitlines() for word in line.split()}
    return frozenset(words["fillers"].split()), kinds


@dataclass(frozen=True)
class TopicName:
    """
    A topic's name prepared for comparison. `meaning` is its vector of length 1, or empty.

    In doubt two topics are kept apart, unless all distinctive words of one name are in the other.
    """

    text: str
    meaning: bytes = b""

    @cached_property
    def words(self) -> frozenset[str]:
        fillers, kinds = _topic_words()
        found = map(singular, re.findall(r"[^\W_]+", self.text.casefold()))
        return frozenset(kinds.get(word, word) for word in found if word not in fillers)

    @cached_property
    def kinds(self) -> frozenset[str]:
        return self.words.intersection(_topic_words()[1].values())

    @cached_property
    def codes(self) -> frozenset[str]:
        return frozenset(word for word in self.words if any(character.isdigit() for character in word))

    def is_same(self, other: "TopicName") -> bool:
        """Whether two names mean the same topic: by their words, else by their vectors."""
        if self.words == other.words:
            return bool(self.words) or self.text.casefold() == other.text.casefold()
        if self.codes and other.codes and not self.codes & other.codes:
            return False
        shared = (self.words & other.words) - self.kinds
        kinds_differ = bool(self.kinds and other.kinds and not self.kinds & other.kinds)
        if not shared or kinds_differ:
            return self._similarity(other) >= ALIKE
        own, others = self.words - self.kinds, other.words - other.kinds
        overlap = len(self.words & other.words) / len(self.words | other.words)
        return own <= others or others <= own or overlap >= SAME_WORDS or self._similarity(other) >= LIKE

    def _similarity(self, other: "TopicName") -> float:
        if not self.meaning or len(self.meaning) != len(other.meaning):
            return 0.0
        import numpy as np  # slow to import, and not needed without vectors

        return float(np.frombuffer(self.meaning, "<f4") @ np.frombuffer(other.meaning, "<f4"))


# The projection of the log


class Topic:
    """A topic under construction, from its first mention on."""

    def __init__(self, first: LogEntry, name: TopicName) -> None:
        self.first = self.last = first
        self.name = self.first_name = name
        """What it is called now, and at first."""
        self.about = self.status = ""
        self.open_items: tuple[str, ...] = ()
        self.state: TopicState = "open"
        self.history: list[PinnedTopicEvent] = []
        self.turns: tuple[int, ...] = ()
        self.calls: set[str] = set()
        self.keys: list[EntryKey] = []
        self.spellings: set[str] = set()
        """All names it was ever given."""
        self.is_pinned_manually = self.is_unpinned = False

    @property
    def source_id(self) -> str:
        return f"{self.first.session_id}#topic-{self.first.position}"

    @property
    def trust(self) -> TrustLevel:
        return self.first.trust

    @property
    def is_pinned(self) -> bool:
        return not self.is_unpinned and (self.is_pinned_manually or len(self.calls) >= CALLS_TO_PIN)

    def describe(self) -> str:
        """One line for the list of changes."""
        mark = ", unverified" if self.trust.mark else ""
        parts = [f"{self.name.text} ({self.state}{mark})", self.status, ", ".join(self.open_items)]
        return "; ".join(filter(None, parts))

    def is_named(self, name: TopicName) -> bool:
        """Whether the name is similar to the current or the first one."""
        # Not to any of its names: a vague one would join topics that do not belong together.
        return self.name.is_same(name) or self.first_name is not self.name and self.first_name.is_same(name)

    def add(self, mention: LogEntry, name: TopicName) -> str:
        """Apply a mention. Returns its effect: note, pin, change, close, reopen, repeat or unpin."""
        was_pinned, before = self.is_pinned, (self.state, self.status, self.open_items)
        self.last = mention
        self.keys.append(mention.key)
        self.spellings.add(name.text.casefold())
        if mention.content.get("unpins"):
            self.is_unpinned, self.is_pinned_manually = True, False
            return "unpin"
        content = mention.content
        note = TopicNote.from_json({name: content[name] for name in content if name not in _NOT_IN_NOTES})
        about, clears = self.about, content.get("clears", ())
        if session_id := _session_of(mention):
            self.calls.add(session_id)
            self.about = self.about or note.about
        else:
            self.name, self.is_pinned_manually, self.is_unpinned = name, True, False
            self.about = "" if "about" in clears else note.about or self.about
        self._update(mention, note, clears)
        match before[0], self.state:
            case _ if len(self.keys) == 1 and not self.is_pinned:
                return "note"
            case (("open" | "changed"), "closed"):
                return "close"
            case _ if self.is_pinned and not was_pinned:
                return "pin"
            case "closed", ("open" | "changed"):
                return "reopen"
        is_edited = not session_id and self.about != about
        return "repeat" if before == (self.state, self.status, self.open_items) and not is_edited else "change"

    def _update(self, mention: LogEntry, note: TopicNote, clears: Collection[str]) -> None:
        """Update status, open items and state. A closed topic reopens only when a mention says that it is open."""
        reopened = self.state == "closed" and note.state == "open"
        if self.state == "closed" and not reopened:
            return
        before = (self.status, self.open_items)
        self.status = "" if "status" in clears else note.status or self.status
        if note.lists_all:
            self.open_items = note.open_items[:MOST_ITEMS]
        else:
            # The newest stay: an item that was mentioned long ago and never again is probably done.
            self.open_items = tuple(dict.fromkeys((*self.open_items, *note.open_items)))[-MOST_ITEMS:]
        if note.state == "closed":
            self.state, self.open_items = "closed", ()
        elif not self.history or reopened:
            self.state = "open"
        elif before != (self.status, self.open_items):
            self.state = "changed"
        else:
            return
        text, at = note.change or note.status or note.about, datetime.fromisoformat(mention.started_at)
        self.history.append(PinnedTopicEvent(self.state, text, _session_of(mention), at))
        self.turns = note.turns


def _session_of(mention: LogEntry) -> str:
    """The call that made the entry; empty if an operator made it."""
    return "" if mention.content.get("by_hand") else mention.session_id


def project(mentions: Sequence[LogEntry]) -> tuple[list[Topic], list[LogChange]]:
    """
    The topics that the mentions of one caller add up to, and the changes that each made. Pure.

    A less trusted call does not change a topic of more trusted ones: it gets another of that name, which is unverified
    until a more trusted call mentions the topic again.
    """
    topics: list[Topic] = []
    changes: dict[int, LogChange] = {}
    for level, visible in by_trust(mentions):
        above, topics_here = list(topics), list[Topic]()
        for mention in visible:
            if mention.trust != level:
                continue
            name = TopicName(mention.content["title"], mention.vector)
            topic, trusted = find(topics_here, name), find(above, name)
            is_confirmed = trusted and trusted.is_pinned and mention.started_at <= trusted.last.started_at
            if trusted and (is_confirmed or trusted.is_unpinned):
                trusted.keys.append(mention.key)
                continue
            if topic is None and mention.content.get("unpins"):
                continue  # every other mention of it was removed
            before = topic.describe() if topic else ""
            if topic is None:
                topic = Topic(mention, name)
                topic.calls |= trusted.calls if trusted else set()
                topics_here.append(topic)
            op = topic.add(mention, name)
            if op != "repeat":
                at = datetime.fromisoformat(mention.started_at)
                changes[id(mention)] = LogChange(op, _session_of(mention), before, topic.describe(), at)
        topics += topics_here
    return topics, [changes[id(mention)] for mention in mentions if id(mention) in changes]


def find(topics: Sequence[Topic], name: TopicName) -> Topic | None:
    """The topic of this name: an exact match before a similar one, the last mentioned before others."""
    newest_first = sorted(topics, key=lambda topic: topic.last.started_at, reverse=True)
    exact = (topic for topic in newest_first if name.text.casefold() in topic.spellings)
    similar = (topic for topic in newest_first if topic.is_named(name))
    return next(exact, None) or next(similar, None)


class PinnedTopicStore(MemoryLog[Topic]):
    """The topics of all callers. With `embed`, titles that share few words are also compared by meaning."""

    source = SOURCE

    def __init__(self, store: MemoryStore, *, embed: Embed | None = None) -> None:
        super().__init__(store)
        self._embed = embed

    async def note(self, session: VoiceSession, topics: Sequence[TopicNote], now: datetime) -> bool:
        """Store what a session said about topics, replacing what it said before. Returns whether anything changed."""
        entries = [NewEntry(asdict(topic), await self._vector(topic.title)) for topic in topics]
        return await self.replace_session(session, entries, now)

    # Operators

    async def pin(
        self,
        agent: str,
        caller: str,
        title: str,
        *,
        about: str | None = None,
        status: str | None = None,
        open_items: Sequence[str] | None = None,
        closed: bool = False,
        now: datetime | None = None,
    ) -> PinnedTopic:
        """
        Pin a topic, or change the one of this name. What is None stays as it is; what is empty is cleared.

        A closed or unpinned topic opens again, unless `closed` is set. Raises ValueError for invalid text.
        """
        scope = self._checked_scope(agent, caller)
        name = _checked(title, "title", MOST_TITLE_CHARACTERS)
        items = tuple(_checked(item, "open item", MOST_TEXT_CHARACTERS) for item in open_items or ())
        if not name or not all(items) or len(items) > MOST_ITEMS:
            raise ValueError(f"a topic needs a title, and may have up to {MOST_ITEMS} open items with words in them")
        note = TopicNote(
            name,
            about=_checked(about or "", "description", MOST_TEXT_CHARACTERS),
            status=_checked(status or "", "status", MOST_TEXT_CHARACTERS),
            open_items=items,
            state="closed" if closed else "open",
            lists_all=open_items is not None,
        )
        clears = [
            field for field, text in (("about", about), ("status", status)) if text is not None and not text.strip()
        ]
        content = {**asdict(note), "by_hand": True, "clears": clears}
        entry, moment = NewEntry(content, await self._vector(name)), now or datetime.now(UTC)

        def work(connection: Connection) -> PinnedTopic:
            session_id = f"{_MANUAL}{uuid.uuid4()}"
            self._append(connection, scope, session_id, moment, [entry], moment)
            topics, ids = self._rebuild(connection, scope)
            topic = next(topic for topic in topics if (session_id, 0) in topic.keys)
            return _as_pinned(topic, ids.get(topic.source_id, ""))

        return await self._store.run(work)

    async def unpin(self, agent: str, caller: str, which: str, *, now: datetime | None = None) -> bool:
        """Unpin a topic, by title or document id, until an operator pins it again. Returns whether one was pinned."""
        scope, moment = self._checked_scope(agent, caller), now or datetime.now(UTC)

        def work(connection: Connection) -> bool:
            topics, ids = self._rebuild(connection, scope)
            pinned = [topic for topic in topics if topic.is_pinned]
            by_id = next((topic for topic in pinned if ids[topic.source_id] == which), None)
            topic = by_id or find(pinned, TopicName(which))
            if topic is None:
                return False
            if topic.calls and not topic.trust.mark:
                entry = NewEntry({"title": topic.name.text, "unpins": True, "by_hand": True})
                self._append(connection, scope, f"{_MANUAL}{uuid.uuid4()}", moment, [entry], moment)
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
        in_time = [pin for pin in pins if not_before is None or pin.last_said_at >= not_before]
        visible = [pin for pin in in_time if closed or pin.is_open]
        # Ties are ordered by title: the order of the documents changes when a call is reverted.
        by_title = sorted(visible, key=lambda pin: pin.title)
        return sorted(by_title, key=lambda pin: (pin.is_open, pin.last_said_at), reverse=True)[:limit]

    async def topics(self, agent: str, caller: str) -> list[PinnedTopic]:
        """All topics, pinned or not, last mentioned first; without the ids of documents."""
        scope = self._scope(agent, caller)
        entries = await self._store.look(lambda connection: self._entries(connection, scope))
        pins = [_as_pinned(topic, "") for topic in project(entries)[0]]
        return sorted(pins, key=lambda pin: pin.last_said_at, reverse=True)

    # The log

    def _project(self, entries: Sequence[LogEntry]) -> tuple[list[Topic], list[LogChange]]:
        return project(entries)

    def _document(self, item: Topic, scope: CallerScope, ids: Mapping[str, str]) -> NewDocument | None:
        if not item.is_pinned:
            return None
        lines = [
            f"## {item.name.text}",
            "",
            *filter(None, [item.about, f"**Status:** {item.state}. {item.status}".rstrip(" .")]),
            "",
            "### Open Items",
            *(f"- {open_item}" for open_item in item.open_items),
            "",
            "### History",
            *(f"- {event.at:%Y-%m-%d} {event.state}: {event.text}" for event in item.history[-_MOST_HISTORY:]),
        ]
        return NewDocument(
            title=f"Pinned Topic — {item.name.text}",
            content="\n".join(lines) + "\n",
            source=SOURCE,
            tags=scope.tags,
            created_at=datetime.fromisoformat(item.first.started_at),
            metadata=_metadata(item),
            source_id=item.source_id,
        )

    def _expired(self, entries: Sequence[LogEntry], before: str) -> list[LogEntry]:
        """A topic that is still mentioned keeps all of its history."""
        current = (topic for topic in project(entries)[0] if topic.last.started_at >= before)
        kept = {key for topic in current for key in topic.keys}
        return [entry for entry in entries if entry.started_at < before and entry.key not in kept]

    def _checked_scope(self, agent: str, caller: str) -> CallerScope:
        if not agent or not caller:
            raise ValueError("a pinned topic belongs to a caller with an agent; name both")
        return self._scope(agent, caller)

    async def _vector(self, title: str) -> bytes:
        return (await self._embed([title]) if self._embed else None) or b""


def _checked(text: str, what: str, most: int) -> str:
    """The text as one line. Raises ValueError, without quoting it, for text that is too long or not plain."""
    line = " ".join(text.split())
    if not is_plain_line(line):
        raise ValueError(f"a {what} must have no control characters")
    if len(line) > most:
        raise ValueError(f"a {what} may have at most {most} characters")
    return line


def _metadata(topic: Topic) -> dict[str, Any]:
    return {
        "title": topic.name.text,
        "about": topic.about,
        "status": topic.status,
        "open_items": list(topic.open_items),
        "state": topic.state,
        "history": [
            {"state": event.state, "text": event.text, "session": event.session_id, "at": time_text(event.at)}
            for event in topic.history[-_MOST_HISTORY:]
        ],
        "calls": len(topic.calls),
        "session": topic.history[-1].session_id if topic.history else "",
        "turns": list(topic.turns),
        "last_said_at": topic.last.started_at,
        **topic.trust.mark,
    }


def _as_pinned(topic: Topic, document_id: str) -> PinnedTopic:
    return _from_document(document_id, "", datetime.fromisoformat(topic.first.started_at), _metadata(topic))


def _from_document(document_id: str, content: str, created_at: datetime, metadata: dict[str, Any]) -> PinnedTopic:
    history = [
        PinnedTopicEvent(event["state"], event["text"], event["session"], datetime.fromisoformat(event["at"]))
        for event in metadata["history"]
    ]
    return PinnedTopic(
        id=document_id,
        **{name: metadata[name] for name in ("title", "about", "status", "state", "calls")},
        open_items=tuple(metadata["open_items"]),
        turns=tuple(metadata["turns"]),
        history=tuple(history),
        session_id=metadata["session"],
        since=created_at,
        last_said_at=datetime.fromisoformat(metadata["last_said_at"]),
        trust=TrustLevel.of(metadata.get("trust")),
    )
