"""What calls leave behind, between a recording and the gateway's store."""

from dataclasses import dataclass
from datetime import datetime

from gateway.calls.call_document import call_document
from gateway.calls.session import VoiceSession
from gateway.llm.summary import CallSummary
from gateway.memory.documents import NewDocument
from gateway.replay.recording import CallHeader, Fields


@dataclass(frozen=True)
class Remembered:
    """The archive's text and the document of a finished call; empty where nothing was kept."""

    archive: str = ""
    document: str = ""


def summary_of(fields: Fields) -> CallSummary:
    """A summary from its recorded fields; a past call has the same ones."""
    lists = {name: tuple(fields[name]) for name in ("topics", "decisions", "action_items", "facts")}
    return CallSummary(
        caller_name=fields["caller_name"],
        context=fields["context"],
        written_by=fields.get("written_by", ""),
        **lists,
    )


def past_document(past_call: Fields, header: CallHeader) -> NewDocument:
    """The document of a call that the recorded one remembered."""
    started_at = datetime.fromisoformat(past_call["started_at"])
    session = VoiceSession(
        id=past_call["session_id"],
        agent=past_call["agent"] or header.agent["name"],
        caller=past_call["caller"] or header.caller,
        carrier=header.carrier,
        started_at=started_at,
        ended_at=started_at,
    )
    return call_document(session, summary_of(past_call), None)
