"""Computes the topics of a caller from what one call after the other said about them. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from gateway.memory.memory_log import EntryKey
from gateway.memory.topic_names import TopicName

CALLS_TO_PIN: Final = 2
"""A topic is pinned once this many calls mentioned it."""
MOST_OPEN_ITEMS: Final = 8

TopicState = Literal["open", "changed", "closed"]
TopicOp = Literal["note", "pin", "change", "close", "reopen", "repeat", "unpin"]


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
        return cls(**{**stored, "open_items": tuple(stored["open_items"]), "turns": tuple(stored["turns"])})


@dataclass(frozen=True, slots=True)
class Mention:
    """One entry of the log."""

    key: EntryKey
    started_at: str
    name: TopicName
    note: TopicNote
    is_manual: bool = False
    unpins: bool = False


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """A change of a topic, for its history."""

    state: TopicState
    text: str
    session_id: str
    turns: tuple[int, ...]
    at: str


@dataclass(slots=True)
class Topic:
    """A topic under construction. `first` is the mention that introduced it, `name` what it is called now."""

    first: Mention
    last: Mention
    name: TopicName
    about: str = ""
    status: str = ""
    open_items: tuple[str, ...] = ()
    state: TopicState = "open"
    history: list[TopicEvent] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    keys: list[EntryKey] = field(default_factory=list)
    spellings: set[str] = field(default_factory=set)
    """All names it was ever given."""
    is_pinned_manually: bool = False
    is_unpinned: bool = False

    @property
    def title(self) -> str:
        return self.name.text

    @property
    def source_id(self) -> str:
        session_id, position = self.first.key
        return f"{session_id}#topic-{position}"

    @property
    def is_pinned(self) -> bool:
        return not self.is_unpinned and (self.is_pinned_manually or len(self.calls) >= CALLS_TO_PIN)

    def describe(self) -> str:
        """One line for the list of changes."""
        parts = [f"{self.title} ({self.state})", self.status, ", ".join(self.open_items)]
        return "; ".join(filter(None, parts))

    def is_named(self, name: TopicName) -> bool:
        """
        Whether the name is similar to the current or the first one.

        Not to any of its names: a vague one would join topics that do not belong together.
        """
        return self.name.is_same(name) or self.first.name is not self.name and self.first.name.is_same(name)

    def add(self, mention: Mention) -> TopicOp:
        """Apply a mention. Returns its effect."""
        was_pinned, before = self.is_pinned, (self.state, self.status, self.open_items)
        self.last = mention
        self.keys.append(mention.key)
        self.spellings.add(mention.name.text.casefold())
        if mention.unpins:
            self.is_unpinned, self.is_pinned_manually = True, False
            return "unpin"
        if mention.is_manual:
            self.name, self.is_pinned_manually, self.is_unpinned = mention.name, True, False
        else:
            self.calls.add(mention.key[0])
        new_about = mention.note.about
        self.about = new_about if mention.is_manual and new_about else self.about or new_about
        self._update(mention)
        match before[0], self.state:
            case _ if len(self.keys) == 1 and not self.is_pinned:
                return "note"
            case (("open" | "changed"), "closed"):
                return "close"
            case _ if self.is_pinned and not was_pinned:
                return "pin"
            case "closed", ("open" | "changed"):
                return "reopen"
        return "repeat" if before == (self.state, self.status, self.open_items) else "change"

    def _update(self, mention: Mention) -> None:
        """Update status, open items and state. A closed topic reopens only when a mention says that it is open."""
        note = mention.note
        reopened = self.state == "closed" and note.state == "open"
        if self.state == "closed" and not reopened:
            return
        before = (self.status, self.open_items)
        self.status = note.status or self.status
        if note.lists_all:
            self.open_items = note.open_items[:MOST_OPEN_ITEMS]
        else:
            # The newest stay: an item that was mentioned long ago and never again is probably done.
            self.open_items = tuple(dict.fromkeys((*self.open_items, *note.open_items)))[-MOST_OPEN_ITEMS:]
        if note.state == "closed":
            self.state, self.open_items = "closed", ()
        elif not self.history or reopened:
            self.state = "open"
        elif before != (self.status, self.open_items):
            self.state = "changed"
        else:
            return
        text = note.change or note.status or note.about
        session_id = "" if mention.is_manual else mention.key[0]
        self.history.append(TopicEvent(self.state, text, session_id, note.turns, mention.started_at))


@dataclass(frozen=True, slots=True)
class TopicStep:
    """The effect of one mention. `before` is empty for a new topic."""

    mention: Mention
    op: TopicOp
    topic: Topic
    before: str
    after: str


def project(mentions: Iterable[Mention]) -> tuple[list[Topic], list[TopicStep]]:
    """The topics, and the effect of each mention, in the order of the calls."""
    topics: list[Topic] = []
    steps: list[TopicStep] = []
    for mention in mentions:
        topic = find(topics, mention.name)
        if topic is None and mention.unpins:
            continue  # every other mention of it was removed
        before = topic.describe() if topic else ""
        if topic is None:
            topics.append(topic := Topic(mention, mention, mention.name))
        op = topic.add(mention)
        steps.append(TopicStep(mention, op, topic, before, topic.describe()))
    return topics, steps


def find(topics: Sequence[Topic], name: TopicName) -> Topic | None:
    """The topic of this name: an exact match before a similar one, the last mentioned before others."""
    newest_first = sorted(topics, key=lambda topic: topic.last.started_at, reverse=True)
    exact = (topic for topic in newest_first if name.text.casefold() in topic.spellings)
    similar = (topic for topic in newest_first if topic.is_named(name))
    return next(exact, None) or next(similar, None)
