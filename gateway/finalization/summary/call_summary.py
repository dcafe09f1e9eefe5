"""
A call's summary, and how it is parsed from a model's answer.

Values and pure functions. Models deviate from the format they were given, so `parse_answer` accepts whatever is still
clear, and raises LlmRefused for the rest.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from gateway.agents import RequestedField
from gateway.errors import LlmRefused
from gateway.finalization.summary import requested_fields
from gateway.finalization.summary.facts import FACT_SCHEMA, PLACEHOLDER, parse_facts
from gateway.finalization.summary.requested_fields import field_schema, parse_fields
from gateway.finalization.summary.topics import TOPIC_SCHEMA, parse_topics
from gateway.memory.facts import CallerFact
from gateway.memory.pinned_topics import TopicNote
from gateway.text.person_names import PersonName, introduced_name, is_no_name
from gateway.text.plain_text import SpokenLine, plain, trimmed
from gateway.text.redaction import redact
from gateway.text.sensitive import without_sensitive

MAX_ITEMS: Final = 12
MAX_ITEM_CHARACTERS: Final = 300
MAX_CONTEXT_CHARACTERS: Final = 1200
MAX_NAME_CHARACTERS: Final = 80

_LIST: Final = {"type": "array", "items": {"type": "string"}}
_FIELDS: Final[dict[str, dict[str, Any]]] = {
    "caller_name": {"type": "string"},
    "topics": _LIST,
    "decisions": _LIST,
    "action_items": _LIST,
    "facts": _LIST,
    "context": {"type": "string"},
    "caller_facts": {"type": "array", "items": FACT_SCHEMA},
    "running_topics": {"type": "array", "items": TOPIC_SCHEMA},
}

# Names that models use for our fields, as keys and as Markdown headings.
_ALIASES: Final = {
    alias: field
    for field, aliases in {
        "caller_name": "caller name",
        "topics": "topics_discussed",
        "decisions": "key_decisions",
        "action_items": "actions actionitems",
        "facts": "important_facts key_facts",
        "context": "next_call context_for_next_call context_for_the_next_call",
        "caller_facts": "facts_about_the_caller",
        "running_topics": "ongoing_topics",
        requested_fields.KEY: "",
    }.items()
    for alias in (field, *aliases.split())
}

# What models write for an empty section: "None.", "No decisions were made", or a placeholder of the format.
_NOTHING: Final = re.compile(
    r"(?:none|n/?a|null|nothing|unknown|-+|not"
    rf"|{PLACEHOLDER}"
    r"|no (?:topics|key decisions|decisions|action items|actions|facts|items|name))"
    r"(?: (?:were|was|is|are|yet|in|this|the|call|made|mentioned|stated|given|provided|discussed"
    r"|recorded|known|noted))*\.?",
    re.IGNORECASE,
)
_MAX_JSON_STARTS: Final = 50
_TRAILING_COMMA: Final = re.compile(r",(?=\s*[}\]])")
NO_FIELDS: Final[Mapping[str, RequestedField]] = MappingProxyType({})
_LEFT_OUT: Final = "[{} lines left out here]"


class EmptySummary(LlmRefused):
    """The model answered in our format and had nothing to say."""


@dataclass(frozen=True)
class SummaryRequest:
    """What a model is asked. `fields`: what the agent's webhook reports of the call."""

    instructions: str
    transcript: str
    fields: Mapping[str, RequestedField] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the answer."""
        properties = {**_FIELDS, **({requested_fields.KEY: field_schema(self.fields)} if self.fields else {})}
        return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class CallSummary:
    """The summary of a call. Each item is one plain line; `written_by` is "provider/model" or "extractive"."""

    caller_name: str
    topics: tuple[str, ...]
    decisions: tuple[str, ...]
    action_items: tuple[str, ...]
    facts: tuple[str, ...]
    context: str
    written_by: str
    caller_facts: tuple[CallerFact, ...] = ()
    """Lasting facts about the caller; stored separately too."""
    running_topics: tuple[TopicNote, ...] = ()
    """Topics that continue after the call; stored separately too."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """What the agent's webhook reports of the call; None for what was not said."""

    @property
    def has_notes(self) -> bool:
        return bool(self.topics or self.decisions or self.action_items or self.facts or self.context)

    def without_sensitive(self) -> "CallSummary":
        """The summary without secrets and sensitive sentences: what is no fact must not be in the notes."""
        return self.changed(lambda text: redact(without_sensitive(text)))

    def changed(self, change: Callable[[str], str]) -> "CallSummary":
        """The summary with another wording of its notes; those of which nothing is left are dropped."""
        sections = (self.topics, self.decisions, self.action_items, self.facts)
        topics, decisions, action_items, facts = (tuple(filter(None, map(change, section))) for section in sections)
        context = change(self.context)
        return replace(
            self, topics=topics, decisions=decisions, action_items=action_items, facts=facts, context=context
        )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "CallSummary":
        """A stored summary. Those of older versions have no caller facts or running topics."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        fields["caller_facts"] = tuple(CallerFact.from_json(fact) for fact in stored.get("caller_facts", ()))
        fields["running_topics"] = tuple(TopicNote.from_json(note) for note in stored.get("running_topics", ()))
        return cls(**fields)


def transcript_of(lines: Sequence[SpokenLine], max_characters: int) -> str:
    """
    The call as lines "[0] CALLER: …", "[1] AGENT: …"; of a very long call the beginning and, mostly, the end.

    Lines keep their numbers when others are left out, so that facts can refer to them.
    """
    # One turn is one line, so that a caller can't forge a line of the agent.
    rendered = [
        f"[{number}] {line.speaker.upper()}: {' '.join(line.text.split())}" for number, line in enumerate(lines)
    ]
    whole = "\n".join(rendered)
    if len(whole) <= max_characters:
        return whole
    room = max(0, max_characters - len(_LEFT_OUT) - 10)
    head = _fitting(rendered, room // 3)
    rest = rendered[len(head) :]
    tail = _fitting(rest[::-1], room - sum(len(line) + 1 for line in head))
    note = _LEFT_OUT.format(len(rest) - len(tail))
    return "\n".join([*head, note, *reversed(tail)])[:max_characters]


def parse_answer(text: str, written_by: str, fields: Mapping[str, RequestedField] = NO_FIELDS) -> CallSummary:
    """
    Parse a model's answer: JSON, JSON within text, or Markdown with our headings. Raises LlmRefused.

    Of several summaries the last one counts that is not empty: before it are drafts and examples.
    """
    answers = list(_summaries(text)) or list(_summaries(_TRAILING_COMMA.sub("", text)))
    answers = answers or list(filter(None, [_markdown_fields(text)]))
    if not answers:
        raise LlmRefused("the answer holds no summary")
    try:
        summaries = [_summary_of(answer, written_by, fields) for answer in answers]
    except RecursionError:
        raise LlmRefused("the answer is nested too deep") from None
    told = [one for one in summaries if one.has_notes or one.caller_facts or one.running_topics]
    if not told:
        raise EmptySummary("the answer is an empty summary")
    return told[-1]


def callers_name(name: str, lines: Sequence[SpokenLine]) -> str:
    """The name in a model's answer; empty if it is a role such as "customer", or the one that the agent goes by."""
    given = PersonName.parse(name)
    introduced = {(line.speaker, found.words) for line in lines if (found := introduced_name(line.text))}
    is_agents = ("agent", given.words) in introduced and ("caller", given.words) not in introduced
    return "" if is_agents or is_no_name(given) else name


def _summary_of(answer: Mapping[str, Any], written_by: str, fields: Mapping[str, RequestedField]) -> CallSummary:
    return CallSummary(
        caller_name=trimmed(" ".join(_plain_lines(answer.get("caller_name"))[:1]), MAX_NAME_CHARACTERS),
        topics=_items(answer.get("topics")),
        decisions=_items(answer.get("decisions")),
        action_items=_items(answer.get("action_items")),
        facts=_items(answer.get("facts")),
        context=trimmed(" ".join(_plain_lines(answer.get("context"))), MAX_CONTEXT_CHARACTERS),
        written_by=written_by,
        caller_facts=parse_facts(answer.get("caller_facts")),
        running_topics=parse_topics(answer.get("running_topics")),
        fields=parse_fields(fields, answer.get(requested_fields.KEY)),
    )


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """As many lines as fit from the front; at least part of the first."""
    kept: list[str] = []
    for line in lines:
        if len(line) + 1 > room:
            break
        kept.append(line)
        room -= len(line) + 1
    return kept or [trimmed(line, room) for line in lines[:1] if room > 1]


def _summaries(text: str) -> Iterator[dict[str, Any]]:
    """The JSON objects with our fields, also within other objects."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(_MAX_JSON_STARTS):
        if start < 0:
            return
        after = start + 1
        try:
            pairs, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            pass  # text with a brace in it, or truncated JSON
        else:
            if known := _known(pairs):
                yield known
                after = end
        start = text.find("{", after)


def _known(pairs: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs.items():
        # A value such as {"type": "string"} is the schema, repeated.
        is_schema = isinstance(value, dict) and isinstance(value.get("type"), str) and not value.get("text")
        if (field := _ALIASES.get(_normalised(key))) and not is_schema:
            found.setdefault(field, value)
    # A name alone is no summary: any JSON object may have a "name".
    return found if set(found) - {"caller_name"} else {}


def _markdown_fields(text: str) -> dict[str, Any]:
    sections: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in text.splitlines():
        field = _ALIASES.get(_normalised(line)) if line.lstrip().startswith(("#", "**")) else None
        if field:
            current = sections.setdefault(field, [])
        elif line.lstrip().startswith("#"):
            current = None  # an unknown section
        elif current is not None:
            current.append(line)
    return _known(sections)


def _normalised(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def _items(value: Any) -> tuple[str, ...]:
    unique = dict.fromkeys(trimmed(line, MAX_ITEM_CHARACTERS) for line in _plain_lines(value))
    return tuple(unique)[:MAX_ITEMS]


def _plain_lines(value: Any) -> list[str]:
    """The value of a field as plain lines of text, whatever its type."""
    return [line for raw in _raw_lines(value) if (line := plain(raw)) and not _NOTHING.fullmatch(line)]


def _raw_lines(value: Any) -> list[str]:
    match value:
        case str():
            return value.splitlines()
        case bool():
            return []
        case int() | float():
            return [str(value)]
        case list():
            return [_as_line(item) for item in value]
        case dict():
            return [f"{key}: {_as_line(item)}" for key, item in value.items() if _as_line(item)]
        case _:
            return []


def _as_line(item: Any) -> str:
    """One item of a list; an object such as {"task": …, "owner": …} becomes one line."""
    if isinstance(item, dict):
        return "; ".join(part for part in map(_as_line, item.values()) if part)
    return "" if isinstance(item, list) else " ".join(_raw_lines(item))
