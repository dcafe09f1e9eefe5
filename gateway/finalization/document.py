"""The text of a finished call: the lines of its archive and the document of its summary."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import tzinfo
from typing import Any, Final

from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory.facts import stated_name
from gateway.memory.identity import SpeakerTracker
from gateway.memory.stores.documents import NewDocument
from gateway.memory.summary_parser import NAME_FROM_EARLIER_CALL, NOTHING_TO_NOTE
from gateway.session import Speaker, Turn, VoiceSession
from gateway.text.person_names import introduced_name, relation_to_known, resolve
from gateway.text.plain_text import SpokenLine
from gateway.text.redaction import redact, redact_lines

SOURCE: Final = "voice-call"


def redact_turns(turns: Sequence[Turn]) -> list[Turn]:
    """
    The turns without secrets that were spoken over several of them.

    Each single text was redacted when it entered the transcript. Takes about 50 ms for a long call: keep it off the
    loop that carries audio.
    """
    lines = redact_lines([_line(turn, turn.text) for turn in turns], [turn.unheard for turn in turns])
    pairs = zip(turns, lines, strict=True)
    return [replace(turn, text=line.text, unheard=redact(turn.unheard)) for turn, line in pairs]


def spoken_lines(turns: Iterable[Turn]) -> list[SpokenLine]:
    """What was heard, one line per turn."""
    said = [(turn, " ".join(turn.text.split())) for turn in turns if turn.text.strip()]
    return [_line(turn, text if turn.heard else f"{text} —") for turn, text in said]


def speakers(turns: Iterable[Turn], *, silence: float, known_name: str = "") -> list[str]:
    """Who spoke each line, where several people share a phone: the person's name, or empty."""
    person = SpeakerTracker(known_name, silence=silence)
    spans: list[tuple[int, str]] = [(0, "")]
    said = [turn for turn in turns if turn.text.strip()]
    for index, turn in enumerate(said):
        if turn.speaker is not Speaker.CALLER:
            continue
        introduced, relation = introduced_name(turn.text), relation_to_known(turn.text)
        if person.heard(turn.at.timestamp(), introduced.text if introduced else "", relation=relation):
            spans.append((index, person.name))
        elif introduced or relation:
            spans[-1] = spans[-1][0], person.name
    ends = [start for start, _ in spans[1:]] + [len(said)]
    return [name for (start, name), end in zip(spans, ends, strict=True) for _ in range(start, end)]


def archive_text(lines: Sequence[SpokenLine]) -> str:
    """One `SPEAKER: text` line per turn, in the order spoken. The speaker is CALLER, AGENT or OPERATOR."""
    return "".join(f"{'OPERATOR' if line.by_operator else line.speaker.upper()}: {line.text}\n" for line in lines)


def archived_lines(text: str) -> list[SpokenLine]:
    """The turns of an archived transcript."""
    pairs = (line.partition(": ")[::2] for line in text.splitlines() if line)
    return [
        SpokenLine("caller" if speaker == "CALLER" else "agent", words, by_operator=speaker == "OPERATOR")
        for speaker, words in pairs
    ]


def call_document(session: VoiceSession, summary: CallSummary, zone: tzinfo | None) -> NewDocument:
    """
    The document of one call. Its `source_id` is the session, so that there is never a second one.

    The lasting facts of the call are among its important facts; the fact store strikes them when they are replaced or
    deleted.
    """
    title = f"Voice Call Summary — {session.started_at.astimezone(zone):%Y-%m-%d %I:%M %p}"
    minutes, seconds = divmod(round(max(session.seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    is_relative = any(relation_to_known(turn.text) for turn in session.turns if turn.speaker is Speaker.CALLER)
    name = _corrected_name(summary) or resolve(session.known_name, summary.caller_name, is_relative=is_relative)
    lasting = [fact.text for fact in summary.caller_facts]
    facts = _without_restated(summary.facts, lasting, name)
    noted = (summary.topics, summary.decisions, summary.action_items, summary.facts)
    context = summary.context or ("" if any(noted) else NOTHING_TO_NOTE)
    lines = [
        f"## {title}",
        "",
        f"**Session:** {session.id}",
        f"**Duration:** {f'{hours}h ' if hours else ''}{minutes}m {seconds}s",
        f"**Caller:** {f'{name} ' if name else ''}({session.caller})",
        f"**Agent:** {session.agent}",
        *_section("Topics Discussed", summary.topics),
        *_section("Key Decisions", summary.decisions),
        *_section("Action Items", [f"[ ] {item}" for item in summary.action_items]),
        *_section("Important Facts", facts),
        *["", "### Context for Next Call", *([context] if context else [])],
    ]
    metadata: dict[str, Any] = {
        "session_id": session.id,
        "agent": session.agent,
        "caller": session.caller,
        "carrier": session.carrier,
        "seconds": round(max(session.seconds, 0)),
        "summary_by": summary.written_by,
        **session.trust.mark,
    }
    if session.known_name and not summary.caller_name:
        # The name in the header is no evidence then: the call that gave it may be reverted or erased.
        metadata[NAME_FROM_EARLIER_CALL] = True
    return NewDocument(
        title=title,
        content=add_facts("\n".join(lines) + "\n", lasting),
        source=SOURCE,
        tags=("voice-session", "deepclaw", "phone-call", f"agent:{session.agent}", f"caller:{session.caller}"),
        created_at=session.started_at,
        metadata=metadata,
        source_id=session.id,
    )


def _without_restated(items: Sequence[str], facts: Sequence[str], name: str) -> list[str]:
    """The items without those that repeat a fact with its subject: "Ana has a dog" beside "Has a dog"."""
    subjects = {"the caller", "caller", *filter(None, (name.casefold(), name.casefold().partition(" ")[0]))}
    restated = {f"{subject} {fact.casefold().rstrip('.')}" for subject in subjects for fact in facts}
    return [item for item in items if item.casefold().rstrip(".") not in restated]


def add_facts(content: str, facts: Sequence[str]) -> str:
    """A call's document with these among its important facts, those that are there already once."""
    lines = content.splitlines()
    end = lines.index("### Important Facts") + 1
    while end < len(lines) and lines[end].startswith("- "):
        end += 1
    new = [line for line in dict.fromkeys(f"- {fact}" for fact in facts) if line not in lines]
    return "\n".join([*lines[:end], *new, *lines[end:]]) + "\n"


def _corrected_name(summary: CallSummary) -> str:
    """The name that replaces a known one, if the caller said so."""
    replacing = (stated_name(fact.text) for fact in summary.caller_facts if fact.relation == "replaces")
    return next(filter(None, replacing), "")


def _section(heading: str, items: Sequence[str]) -> list[str]:
    return ["", f"### {heading}", *(f"- {item}" for item in items)]


def _line(turn: Turn, text: str) -> SpokenLine:
    return SpokenLine("caller" if turn.speaker is Speaker.CALLER else "agent", text, by_operator=turn.by_operator)
