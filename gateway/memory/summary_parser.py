"""
Parses the summary document of a call.

The text may come back from a foreign store: truncated, without line breaks, without tags. Unreadable parts stay empty;
the owner of a call is never guessed.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from gateway.memory.stores.documents import Document
from gateway.session import TrustLevel

SESSION_PREFIX: Final = "voice-session:"
NAME_FROM_EARLIER_CALL: Final = "name_from_earlier_call"
"""Metadata of a document whose header has a name that was not given in its call."""
NOTHING_TO_NOTE: Final = "Nothing to note from this call."
"""The context of a call without any notes."""

_HEADER: Final = re.compile(r"\*\*(Session|Duration|Caller|Agent):\*\*[ \t]*(.*?)[ \t]*(?=\*\*\w+:\*\*|#{2,}|\n|$)")
_SECTION: Final = re.compile(
    r"#{2,4}[ \t]*(Topics Discussed|Key Decisions|Action Items|Important Facts|Context for Next Call)[ \t]*:?",
    re.IGNORECASE,
)
_NAME_AND_NUMBER: Final = re.compile(r"(.*?)\s*\(([^()]*)\)")
_BULLET: Final = re.compile(r"^\s*(?:[-*•]|\d+[.)])\s+")
_NOTHING: Final = frozenset({"", "-", "none", "n/a", "nothing", "(none)", NOTHING_TO_NOTE.rstrip(".").lower()})


@dataclass(frozen=True, slots=True)
class PastCall:
    """The summary of an earlier call. `caller_name` is empty if no name was given in it."""

    session_id: str
    started_at: datetime
    caller_name: str
    caller: str
    agent: str
    topics: tuple[str, ...] = ()
    decisions: tuple[str, ...] = ()
    action_items: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    context: str = ""
    trust: TrustLevel = TrustLevel.EVERYTHING

    @property
    def has_notes(self) -> bool:
        """Whether anything but the date is known of it. A caller who only hears the greeting leaves no notes."""
        return any((self.caller_name, self.topics, self.decisions, self.action_items, self.facts, self.context))


def read_call(document: Document) -> PastCall | None:
    """The call that a document is about; None if it names no session."""
    header = _header(document.content)
    session_id = header.get("Session") or document.source_id
    if not session_id.startswith(SESSION_PREFIX):
        return None
    name, number = _caller(header.get("Caller", ""))
    _, *parts = _SECTION.split(document.content)
    sections = {title.lower(): body for title, body in zip(parts[::2], parts[1::2], strict=True)}
    return PastCall(
        session_id=session_id,
        started_at=document.created_at,
        caller_name="" if document.metadata.get(NAME_FROM_EARLIER_CALL) else name,
        caller=number or _tagged(document, "caller:"),
        agent=header.get("Agent") or _tagged(document, "agent:"),
        topics=_items(sections.get("topics discussed", "")),
        decisions=_items(sections.get("key decisions", "")),
        action_items=_items(sections.get("action items", "")),
        facts=_items(sections.get("important facts", "")),
        context=" ".join(_items(sections.get("context for next call", ""))),
        trust=TrustLevel.of(document.metadata.get("trust")),
    )


def name_from_earlier_call(document: Document) -> str:
    """The name in a document's header that was not given in its call; empty without one."""
    return (
        _caller(_header(document.content).get("Caller", ""))[0] if document.metadata.get(NAME_FROM_EARLIER_CALL) else ""
    )


def without_fact(content: str, fact: str) -> str:
    """The text of a call's document without one of its important facts."""
    head, heading, rest = content.partition("\n### Important Facts\n")
    facts, next_heading, after = rest.partition("\n###")
    kept = [line for line in facts.split("\n") if line != f"- {fact}"]
    return f"{head}{heading}{chr(10).join(kept)}{next_heading}{after}"


def belongs_to(document: Document, agent: str, caller: str) -> bool | None:
    """
    Whether a document belongs to this caller with this agent; None if it does not say.

    Its tags decide, or without tags the lines below its heading. The same lines further down may be a caller's words.
    """
    if scope := {tag for tag in document.tags if tag.startswith(("agent:", "caller:"))}:
        return scope == {f"agent:{agent}", f"caller:{caller}"}
    header = _header(document.content)
    if "Agent" not in header or "Caller" not in header:
        return None
    return header["Agent"] == agent and _caller(header["Caller"])[1] == caller


def _header(content: str) -> dict[str, str]:
    """The `**Name:** value` entries between the heading and the first section; the first entry of a name counts."""
    text = content.lstrip()
    if not text.startswith("## Voice Call"):
        return {}
    section = _SECTION.search(text)
    lines = _HEADER.findall(text[: section.start()] if section else text)
    return dict(reversed(lines))


def _caller(text: str) -> tuple[str, str]:
    if match := _NAME_AND_NUMBER.fullmatch(text):
        return match[1].strip(), match[2].strip()
    return ("", text) if text.startswith("+") else (text, "")


def _items(body: str) -> tuple[str, ...]:
    """The items of a section, without those that are ticked off or say that there are none."""
    points = [_BULLET.sub("", line).strip() for line in body.splitlines()]
    left = [point for point in points if not point.startswith(("[x]", "[X]"))]
    return tuple(re.sub(r"^\[ ?\]\s*", "", point) for point in left if point.rstrip(".").lower() not in _NOTHING)


def _tagged(document: Document, prefix: str) -> str:
    return next((tag.removeprefix(prefix) for tag in document.tags if tag.startswith(prefix)), "")
