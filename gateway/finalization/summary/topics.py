"""
Topics that continue after a call, in a model's answer: parsing them, and deciding which may be stored.

Models deviate from the format they were given: whatever still names a topic is accepted, the rest is dropped.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from gateway.finalization.summary.facts import may_be_stored
from gateway.memory.pinned_topics import TopicNote
from gateway.text.plain_text import SpokenLine, plain, trimmed

MAX_TOPICS: Final = 3
MAX_TITLE_CHARACTERS: Final = 80
MAX_TEXT_CHARACTERS: Final = 240
MAX_OPEN_ITEMS: Final = 5

_TEXT: Final = {"type": "string"}
TOPIC_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "title": _TEXT,
        "about": _TEXT,
        "status": _TEXT,
        "open_items": {"type": "array", "items": _TEXT},
        "change": _TEXT,
        "state": {"type": "string", "enum": ["open", "closed"]},
        "turns": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["title", "about", "status", "open_items", "change", "state", "turns"],
    "additionalProperties": False,
}

_MOST_READ: Final = 20
_MOST_KNOWN: Final = 12
_NOTHING: Final = frozenset({"", "-", "none", "n/a", "null", "nothing", "unknown", "no change", "unchanged"})
# Other names that models use for our keys and states.
_KEYS: Final = {
    "title": ("title", "topic", "name"),
    "about": ("about", "what", "description", "summary"),
    "status": ("status", "current_status"),
    "open_items": ("open_items", "open", "items", "action_items"),
    "change": ("change", "what_changed", "changed", "update"),
    "state": ("state", "closed", "done"),
    "turns": ("turns", "turn", "lines", "evidence"),
}
_CLOSED: Final = frozenset({"closed", "done", "finished", "completed", "cancelled", "canceled", "resolved"})
_OPEN: Final = frozenset({"open", "ongoing", "active", "pending", "in progress", "running", "changed"})


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic of earlier calls, given to the model so that it uses the same name again."""

    title: str
    status: str = ""
    open_items: tuple[str, ...] = ()


def parse_topics(value: Any) -> tuple[TopicNote, ...]:
    """The topics in a model's answer, whatever its shape."""
    entries = value if isinstance(value, list) else [value]
    notes = (_note(entry) for entry in entries[:_MOST_READ] if isinstance(entry, dict))
    return tuple(note for note in notes if note is not None)


def known_topics_text(known: Iterable[KnownTopic]) -> str:
    """Topics of earlier calls, to put before a transcript; empty without any. Always one line each."""
    lines = [_known_topic_line(topic) for topic in list(known)[:_MOST_KNOWN]]
    return "\n".join(["TOPICS OF EARLIER CALLS:", *lines, "", "TRANSCRIPT:", ""]) if lines else ""


def _known_topic_line(topic: KnownTopic) -> str:
    parts = [topic.title, f"status: {topic.status}" if topic.status else "", *(f"open: {i}" for i in topic.open_items)]
    return "- " + "; ".join(plain(part) for part in parts if part)


def _note(entry: Mapping[str, Any]) -> TopicNote | None:
    given = {str(key).strip().lower().replace(" ", "_"): value for key, value in entry.items()}
    parts = {part: next((given[key] for key in keys if key in given), None) for part, keys in _KEYS.items()}
    title = trimmed(_text(parts["title"]).rstrip("."), MAX_TITLE_CHARACTERS)
    if not title:
        return None
    return TopicNote(
        title,
        about=trimmed(_text(parts["about"]), MAX_TEXT_CHARACTERS),
        status=trimmed(_text(parts["status"]), MAX_TEXT_CHARACTERS),
        open_items=_items(parts["open_items"]),
        change=trimmed(_text(parts["change"]), MAX_TEXT_CHARACTERS),
        state=_state(parts["state"], parts["status"]),
        turns=_turns(parts["turns"]),
        lists_all=isinstance(parts["open_items"], list),
    )


def _text(value: Any) -> str:
    text = plain(value) if isinstance(value, str) else ""
    return "" if text.rstrip(".").lower() in _NOTHING else text


def _items(value: Any) -> tuple[str, ...]:
    texts = (trimmed(_text(item), MAX_TEXT_CHARACTERS) for item in (value if isinstance(value, list) else [value]))
    return tuple(dict.fromkeys(filter(None, texts)))[:MAX_OPEN_ITEMS]


def _state(*values: Any) -> Literal["open", "closed", ""]:
    """The first value that is a state. Models also put it into the status, or answer with true and false."""
    for value in values:
        if isinstance(value, bool):
            return "closed" if value else "open"
        word = value.strip().lower().replace("_", " ") if isinstance(value, str) else ""
        if word in _CLOSED:
            return "closed"
        if word in _OPEN:
            return "open"
    return ""


def _turns(value: Any) -> tuple[int, ...]:
    numbers = value if isinstance(value, list) else [value]
    return tuple(sorted({number for number in numbers if isinstance(number, int) and not isinstance(number, bool)}))


def _on_lines(note: TopicNote, callers: Sequence[bool]) -> TopicNote | None:
    """
    The note with only its existing lines; None if the caller spoke none of them.

    `callers` says for each line whether the caller spoke it. What only the agent mentions is not new.
    """
    turns = tuple(turn for turn in note.turns if 0 <= turn < len(callers))
    return replace(note, turns=turns) if any(callers[turn] for turn in turns) else None


def keep_topics(notes: Iterable[TopicNote], lines: Sequence[SpokenLine]) -> tuple[TopicNote, ...]:
    """The topics to store, at most three, in their order, without parts that must not be stored."""
    callers = [line.speaker == "caller" for line in lines]
    unique = {note.title.casefold(): note for note in notes}
    fit = [note for note in unique.values() if may_be_stored(f"{note.title}. {note.about}")]
    based = [based for note in fit if (based := _on_lines(note, callers))]
    return tuple(_cleaned(note) for note in based[:MAX_TOPICS])


def _cleaned(note: TopicNote) -> TopicNote:
    return replace(
        note,
        status=note.status if may_be_stored(note.status) else "",
        change=note.change if may_be_stored(note.change) else "",
        open_items=tuple(filter(may_be_stored, note.open_items)),
    )
