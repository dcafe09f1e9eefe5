"""What topics run through a caller's calls, worked out from what one call after the other said of them. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gateway.memory.topic_names import TopicName

CALLS_TO_PIN: Final = 2
"""In so many calls a topic was spoken of when it is pinned."""
MOST_OPEN_ITEMS: Final = 8

TopicState = Literal["open", "changed", "closed"]
"""As it began, as it was changed since, or over."""
Op = Literal["note", "pin", "change", "close", "reopen", "repeat", "unpin"]


@dataclass(frozen=True, slots=True)
class Mention:
    """
    What a call, or a person by hand, said of a topic: one row of the log.

    `state` is empty where nothing was said of it. `lists_all`: `open_items` are all there are, not only new ones.
    """

    session_id: str
    position: int
    started_at: str
    name: TopicName
    about: str = ""
    status: str = ""
    open_items: tuple[str, ...] = ()
    change: str = ""
    state: Literal["open", "closed", ""] = ""
    turns: tuple[int, ...] = ()
    lists_all: bool = False
    by_hand: bool = False
    unpins: bool = False


@dataclass(frozen=True, slots=True)
class TopicEvent:
    """What happened to a topic, for its history."""

    state: TopicState
    text: str
    session_id: str
    turns: tuple[int, ...]
    at: str


@dataclass(slots=True)
class Topic:
    """A topic while it is worked out. `first` is the mention that it came from, `name` what it is called now."""

    first: Mention
    last: Mention
    name: TopicName
    about: str = ""
    status: str = ""
    open_items: tuple[str, ...] = ()
    state: TopicState = "open"
    history: list[TopicEvent] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    mentions: list[Mention] = field(default_factory=list)
    spellings: set[str] = field(default_factory=set)
    """All that it was ever called."""
    pinned_by_hand: bool = False
    unpinned: bool = False

    @classmethod
    def of(cls, mention: Mention) -> "Topic":
        return cls(mention, mention, mention.name)

    @property
    def title(self) -> str:
        return self.name.text

    @property
    def source_id(self) -> str:
        return f"{self.first.session_id}#topic-{self.first.position}"

    @property
    def is_pinned(self) -> bool:
        return not self.unpinned and (self.pinned_by_hand or len(self.calls) >= CALLS_TO_PIN)

    @property
    def is_only_by_hand(self) -> bool:
        return not self.calls

    @property
    def changed_by(self) -> str:
        """The call that last changed it; empty where a person did."""
        return self.history[-1].session_id if self.history else ""

    @property
    def turns(self) -> tuple[int, ...]:
        """Where that was said."""
        return self.history[-1].turns if self.history else ()

    def describe(self) -> str:
        """What the log tells of it at one moment."""
        parts = [f"{self.title} ({self.state})", self.status, ", ".join(self.open_items)]
        return "; ".join(filter(None, parts))

    def is_named(self, name: TopicName) -> bool:
        """Whether the name is like its own. Any that it was given would not do: a vague one joins what is not one."""
        return self.name.is_same(name) or self.first.name is not self.name and self.first.name.is_same(name)

    def take(self, mention: Mention) -> Op:
        """Take in what was said; what that did."""
        was_pinned, before = self.is_pinned, (self.state, self.status, self.open_items)
        self.last = mention
        self.mentions.append(mention)
        self.spellings.add(mention.name.text.casefold())
        if mention.unpins:
            self.unpinned, self.pinned_by_hand = True, False
            return "unpin"
        if mention.by_hand:
            self.name, self.pinned_by_hand, self.unpinned = mention.name, True, False
        else:
            self.calls.add(mention.session_id)
        self.about = mention.about if mention.by_hand and mention.about else self.about or mention.about
        self._go_on(mention)
        return self._op(was_pinned, before)

    def _go_on(self, mention: Mention) -> None:
        """Where the topic stands after a mention. One that is over begins again only when that is said."""
        reopened = self.state == "closed" and mention.state == "open"
        if self.state == "closed" and not reopened:
            return
        before = (self.status, self.open_items)
        self.status = mention.status or self.status
        self.open_items = self._items_after(mention)
        if mention.state == "closed":
            self.state, self.open_items = "closed", ()
        elif not self.history or reopened:
            self.state = "open"
        elif before != (self.status, self.open_items):
            self.state = "changed"
        else:
            return
        text = mention.change or mention.status or mention.about
        session_id = "" if mention.by_hand else mention.session_id
        self.history.append(TopicEvent(self.state, text, session_id, mention.turns, mention.started_at))

    def _items_after(self, mention: Mention) -> tuple[str, ...]:
        if mention.lists_all:
            return mention.open_items[:MOST_OPEN_ITEMS]
        # The newest are kept: what was asked for long ago and never again is done, or nobody minds.
        return tuple(dict.fromkeys((*self.open_items, *mention.open_items)))[-MOST_OPEN_ITEMS:]

    def _op(self, was_pinned: bool, before: tuple[TopicState, str, tuple[str, ...]]) -> Op:
        match before[0], self.state:
            case _ if len(self.mentions) == 1 and not self.is_pinned:
                return "note"
            case (("open" | "changed"), "closed"):
                return "close"
            case _ if self.is_pinned and not was_pinned:
                return "pin"
            case "closed", ("open" | "changed"):
                return "reopen"
        return "repeat" if before == (self.state, self.status, self.open_items) else "change"


@dataclass(frozen=True, slots=True)
class TopicStep:
    """What one mention did. `before` is empty where the topic was new."""

    mention: Mention
    op: Op
    topic: Topic
    before: str
    after: str


def project(mentions: Iterable[Mention]) -> tuple[list[Topic], list[TopicStep]]:
    """The topics, and what each mention did. In the order of the calls, whenever they ended."""
    topics: list[Topic] = []
    steps: list[TopicStep] = []
    for mention in mentions:
        topic = find(topics, mention.name)
        if topic is None and mention.unpins:
            continue  # all that was said of it has been taken back
        before = topic.describe() if topic else ""
        if topic is None:
            topics.append(topic := Topic.of(mention))
        op = topic.take(mention)
        steps.append(TopicStep(mention, op, topic, before, topic.describe()))
    return topics, steps


def find(topics: Sequence[Topic], name: TopicName) -> Topic | None:
    """The topic of this name: of exactly this one before a like one, the last spoken of before others."""
    newest_first = sorted(topics, key=lambda topic: topic.last.started_at, reverse=True)
    exact = (topic for topic in newest_first if name.text.casefold() in topic.spellings)
    like = (topic for topic in newest_first if topic.is_named(name))
    return next(exact, None) or next(like, None)
