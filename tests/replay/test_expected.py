"""What a recorded call remembered, as documents for the gateway's store."""

from gateway.replay.expected import past_documents, stored_document
from gateway.replay.recording import read
from tests.replay.calls import SHIPPED


def second_call():
    return read(SHIPPED / "second.jsonl")


def test_every_memory_becomes_a_document():
    recording = second_call()
    documents = list(past_documents(recording))
    memory = recording.memory
    assert len(documents) == len(memory.calls) + len(memory.facts) + len(memory.pins) > 0
    caller, agent = f"caller:{recording.header.caller}", f"agent:{recording.header.agent['name']}"
    assert all({caller, agent} <= set(document["tags"]) for document in documents)


def test_document_of_an_earlier_call_has_its_summary():
    recording = second_call()
    past_call = recording.memory.calls[0]
    document = stored_document(past_call, recording.header)
    assert document["source_id"] == past_call.session_id
    assert document["created_at"] == past_call.started_at.isoformat()
    assert past_call.context in document["content"]


def test_first_call_remembers_nothing():
    assert list(past_documents(read(SHIPPED / "first.jsonl"))) == []
