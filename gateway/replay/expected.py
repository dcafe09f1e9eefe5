"""What a recorded call found in the gateway's store and what it stored there."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
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
        trust=past_call.trust,
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
    return {**asdict(document), "tags": list(document.tags), "created_at": session.started_at.isoformat()}


def _fact_document(fact: Fact, header: CallHeader) -> dict[str, Any]:
    fields = asdict(fact)
    metadata = {name: fields[name] for name in ("type", "confidence", "turns", "instead_of", "person")}
    metadata |= {"session": fact.session_id, "last_said_at": fact.last_said_at.isoformat(), **fact.trust.mark}
    return _document(facts.SOURCE, fact.id, fact.text, fact.said_at, metadata, header)


def _pin_document(pin: PinnedTopic, header: CallHeader) -> dict[str, Any]:
    fields = asdict(pin)
    metadata = {name: fields[name] for name in ("title", "about", "status", "open_items", "state", "calls", "turns")}
    history = [
        {"state": event.state, "text": event.text, "session": event.session_id, "at": event.at.isoformat()}
        for event in pin.history
    ]
    metadata |= {"session": pin.session_id, "last_said_at": pin.last_said_at.isoformat(), "history": history}
    metadata |= pin.trust.mark
    return _document(pinned_topics.SOURCE, pin.id, pin.title, pin.since, metadata, header)


def _document(
    source: str, source_id: str, content: str, created_at: datetime, metadata: dict[str, Any], header: CallHeader
) -> dict[str, Any]:
    return {
        "content": content,
        "source": source,
        "source_id": source_id,
        "tags": [source, f"agent:{header.agent['name']}", f"caller:{header.caller}"],
        "created_at": created_at.isoformat(),
        "metadata": metadata,
    }
