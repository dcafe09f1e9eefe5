"""What a recorded call found in the gateway's store and what it stored there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gateway.finalization.document import call_document
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory import facts, pinned_topics
from gateway.memory.facts import Fact
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.summary_parser import PastCall
from gateway.replay.recording import CallHeader, Recording
from gateway.session import VoiceSession


@dataclass(frozen=True)
class StoredCall:
    """The archive text and the document of a finished call; empty if nothing was stored."""

    archive: str = ""
    document: str = ""


def past_documents(recording: Recording) -> Iterator[dict[str, Any]]:
    """Documents that make a store return what the recorded call remembered from the start."""
    header, memory = recording.header, recording.memory
    yield from (stored_document(call, header) for call in memory.calls)
    yield from (_fact_document(fact, header) for fact in memory.facts)
    yield from (_pin_document(pin, header) for pin in memory.pins)


def stored_document(past_call: PastCall, header: CallHeader) -> dict[str, Any]:
    """The document of an earlier call, rebuilt from what the recorded call remembered of it."""
    session = VoiceSession(
        id=past_call.session_id,
        agent=past_call.agent or header.agent["name"],
        caller=past_call.caller or header.caller,
        carrier=header.carrier,
        started_at=past_call.started_at,
        ended_at=past_call.started_at,
    )
    summary = CallSummary(
        caller_name=past_call.caller_name,
        topics=past_call.topics,
        decisions=past_call.decisions,
        action_items=past_call.action_items,
        facts=past_call.facts,
        context=past_call.context,
        written_by="",
    )
    document = call_document(session, summary, None)
    return {
        "title": document.title,
        "content": document.content,
        "source": document.source,
        "source_id": document.source_id,
        "tags": list(document.tags),
        "metadata": document.metadata,
        "created_at": session.started_at.isoformat(),
    }


def _fact_document(fact: Fact, header: CallHeader) -> dict[str, Any]:
    return {
        "content": fact.text,
        "source": facts.SOURCE,
        "source_id": fact.id,
        "tags": _tags(facts.SOURCE, header),
        "created_at": fact.said_at.isoformat(),
        "metadata": {
            "session": fact.session_id,
            "type": fact.type,
            "confidence": fact.confidence,
            "turns": fact.turns,
            "last_said_at": fact.last_said_at.isoformat(),
            "instead_of": fact.instead_of,
            "person": fact.person,
        },
    }


def _pin_document(pin: PinnedTopic, header: CallHeader) -> dict[str, Any]:
    events = [
        {"state": event.state, "text": event.text, "session": event.session_id, "at": event.at.isoformat()}
        for event in pin.history
    ]
    return {
        "content": pin.title,
        "source": pinned_topics.SOURCE,
        "source_id": pin.id,
        "tags": _tags(pinned_topics.SOURCE, header),
        "created_at": pin.since.isoformat(),
        "metadata": {
            "title": pin.title,
            "about": pin.about,
            "status": pin.status,
            "open_items": pin.open_items,
            "state": pin.state,
            "history": events,
            "calls": pin.calls,
            "session": pin.session_id,
            "turns": pin.turns,
            "last_said_at": pin.last_said_at.isoformat(),
        },
    }


def _tags(source: str, header: CallHeader) -> list[str]:
    return [source, f"agent:{header.agent['name']}", f"caller:{header.caller}"]
