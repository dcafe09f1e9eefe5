"""What calls leave behind, between a recording and the gateway's store."""

from dataclasses import dataclass
from typing import Any

from gateway.calls.call_document import call_document
from gateway.calls.session import VoiceSession
from gateway.llm.summary import CallSummary
from gateway.memory.call_notes import PastCall
from gateway.replay.recording import CallHeader


@dataclass(frozen=True)
class Remembered:
    """The archive's text and the document of a finished call; empty where nothing was kept."""

    archive: str = ""
    document: str = ""


def past_document(past_call: PastCall, header: CallHeader) -> dict[str, Any]:
    """The document of a call that the recorded one remembered, as it is given to a store."""
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
