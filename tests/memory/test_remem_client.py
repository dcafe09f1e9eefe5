from datetime import UTC, datetime

import httpx
import pytest

from gateway.errors import StoreRefused, StoreUnavailable
from gateway.memory.remem_client import RememClient
from gateway.memory.stores.documents import NewDocument
from gateway.settings import Secret
from tests.fakes.remem import FakeRemem, Fault

SESSION = "voice-session:3f2a9c1e-0b7d-4a56-9a35-0c8f6d1b2e77"
ANA, BEN = "+12025550101", "+12025550102"
TAGS = ("voice-session", "agent:maya", f"caller:{ANA}")


def call_text(session=SESSION, caller=ANA, agent="maya", context="Ana waits for the kettle."):
    return (
        f"## Voice Call Summary — 2026-02-06 11:15 PM\n\n**Session:** {session}\n**Caller:** Ana ({caller})\n"
        f"**Agent:** {agent}\n\n### Context for Next Call\n{context}\n"
    )


def call_document(**fields):
    return NewDocument(
        title="Voice Call Summary — 2026-02-06 11:15 PM",
        content=call_text(**fields),
        source="voice-call",
        tags=TAGS,
        created_at=datetime(2026, 2, 6, 23, 15, tzinfo=UTC),
        source_id=SESSION,
    )


@pytest.fixture
async def remem():
    async with FakeRemem() as remem:
        yield remem


@pytest.fixture
async def client(remem):
    async with httpx.AsyncClient() as http:
        yield RememClient(remem.url, Secret(remem.api_key), http)


async def ids_of(client, **options):
    return [document.id for document in await client.past_calls("maya", ANA, 3, **options)]


# Writing


async def test_create_speaks_the_plan(remem, client):
    document_id = await client.store(call_document())
    (request,) = remem.requests
    assert (request.method, request.path) == ("POST", "/v1/documents")
    assert request.headers["x-api-key"] == "vlt_demo"
    assert request.headers["idempotency-key"] == SESSION
    assert request.body["tags"] == f"voice-session, agent:maya, caller:{ANA}"
    assert request.body["source"] == "voice-call"
    assert request.body["created_at"] == "2026-02-06T23:15:00+00:00"
    assert list(remem.documents) == [document_id]


async def test_base_url_may_end_anyhow(remem):
    async with httpx.AsyncClient() as http:
        await RememClient(f"{remem.url}/v1/", Secret("vlt_demo"), http).store(call_document())
    assert remem.paths() == ["POST /v1/documents"]


async def test_current_server_gets_ingestion(remem, client):
    remem.face = "current"
    document_id = await client.store(call_document())
    assert remem.paths() == ["POST /v1/documents", "POST /v1/documents/ingest"]
    assert remem.requests[-1].body["metadata"]["tags"] == list(TAGS)
    assert remem.requests[-1].body["return_id"] is True
    assert list(remem.documents) == [document_id]


async def test_current_server_is_remembered(remem, client):
    remem.face = "current"
    await client.store(call_document())
    await client.store(call_document())
    assert remem.paths()[2:] == ["POST /v1/documents/ingest"]
    assert remem.documents_of(SESSION) == 1


async def test_wrong_address_is_not_remembered(remem, client):
    remem.face = "none"
    with pytest.raises(StoreRefused):
        await client.store(call_document())
    remem.face = "plan"
    await client.store(call_document())
    assert remem.paths()[-1] == "POST /v1/documents"


@pytest.mark.parametrize("face", ["plan", "current"])
async def test_unknown_source_goes_into_metadata(remem, client, face):
    remem.face, remem.sources_must_be_known, remem.tags_must_be_text = face, True, True
    stored = remem.documents[await client.store(call_document())]
    assert (stored.source, stored.metadata["source"]) == ("api", "voice-call")
    assert stored.tags == list(TAGS)


async def test_lost_answer_is_found_again(remem, client):
    remem.honours_idempotency = False
    remem.fails(Fault.ANSWER_LOST)
    with pytest.raises(StoreUnavailable) as raised:
        await client.store(call_document())
    assert raised.value.answer_lost
    assert await client.find_by_session(SESSION) == next(iter(remem.documents))


async def test_repeated_create_makes_no_second(remem, client):
    remem.fails(Fault.ANSWER_LOST)
    with pytest.raises(StoreUnavailable):
        await client.store(call_document())
    assert await client.store(call_document()) == next(iter(remem.documents))
    assert remem.documents_of(SESSION) == 1


async def test_replace_updates_in_place(remem, client):
    document_id = await client.store(call_document())
    assert await client.replace(document_id, call_document(context="All done.")) == document_id
    assert remem.requests[-1].method == "PUT"
    assert remem.documents[document_id].content == call_text(context="All done.")


async def test_store_without_updates_keeps_the_old_text(remem, client):
    remem.face = "current"
    document_id = remem.keeps(call_text(), tags=TAGS)
    assert await client.replace(document_id, call_document(context="All done.")) == document_id
    assert remem.paths() == [f"PUT /v1/documents/{document_id}"]
    assert len(remem.documents) == 1


async def test_refused_replace_is_raised(remem, client):
    remem.api_key = "changed"
    with pytest.raises(StoreRefused) as raised:
        await client.replace("d1", call_document())
    assert (str(raised.value), raised.value.status) == ("remem answered 401", 401)


async def test_delete_says_whether_it_did():
    async with FakeRemem(deletes=True) as remem, httpx.AsyncClient() as http:
        client = RememClient(remem.url, Secret(remem.api_key), http)
        document_id = await client.store(call_document())
        assert await client.delete(document_id) is True
        assert remem.documents == {}
        assert await client.delete(document_id) is False
        remem.deletes = False
        assert await client.delete(document_id) is False


async def test_delete_with_a_wrong_key_is_refused(remem):
    async with httpx.AsyncClient() as http:
        with pytest.raises(StoreRefused):
            await RememClient(remem.url, Secret("wrong"), http).delete("some-id")


# Failing


@pytest.mark.parametrize(
    "fault, message, answer_lost",
    [
        (Fault.TOO_MANY_REQUESTS, "remem answered 429", False),
        (Fault.OVERLOADED, "remem answered 503", False),
        (Fault.BROKEN, "remem answered 500", True),
        (Fault.HTML_ERROR, "remem answered 502", True),
        (Fault.HTML, "remem answered with something other than JSON", True),
        (Fault.HUGE, "remem answered with more than 1 MB", True),
        (Fault.ANSWER_LOST, "remem was lost: RemoteProtocolError", True),
    ],
)
async def test_failures_say_what_to_do(remem, client, fault, message, answer_lost):
    remem.fails(fault)
    with pytest.raises(StoreUnavailable) as raised:
        await client.store(call_document())
    assert (str(raised.value), raised.value.answer_lost) == (message, answer_lost)


async def test_lost_reading_is_no_lost_write(remem, client):
    remem.fails(Fault.BROKEN)
    with pytest.raises(StoreUnavailable) as raised:
        await client.past_calls("maya", ANA, 3)
    assert not raised.value.answer_lost


async def test_slow_store_is_given_up(remem, client):
    remem.always = Fault.SLOW
    for attempt in (client.store(call_document(), timeout=0.05), client.past_calls("maya", ANA, 3, timeout=0.05)):
        with pytest.raises(StoreUnavailable) as raised:
            await attempt
        assert str(raised.value) == "remem did not answer in time"


async def test_absent_store_lost_nothing(client, remem):
    remem._server.close()
    with pytest.raises(StoreUnavailable) as raised:
        await client.store(call_document())
    assert str(raised.value) == "remem can't be reached: connection refused"
    assert not raised.value.answer_lost


@pytest.mark.parametrize(
    "text, seconds", [("7", 7.0), ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0), ("soon", None), ("-1", None)]
)
async def test_retry_after_is_read(remem, client, text, seconds):
    remem.retry_after = text
    remem.fails(Fault.OVERLOADED)
    with pytest.raises(StoreUnavailable) as raised:
        await client.store(call_document())
    assert raised.value.retry_after == seconds


async def test_key_follows_no_redirect(remem):
    remem.fails(Fault.REDIRECT)
    async with httpx.AsyncClient(follow_redirects=True) as http:
        with pytest.raises(StoreRefused) as raised:
            await RememClient(remem.url, Secret("vlt_demo"), http).store(call_document())
    assert raised.value.status == 307
    assert remem.paths() == ["POST /v1/documents"]


async def test_unusable_key_is_not_quoted(remem):
    async with httpx.AsyncClient() as http:
        with pytest.raises(StoreUnavailable) as raised:
            await RememClient(remem.url, Secret("vlt_\nsecret"), http).store(call_document())
    assert str(raised.value) == "remem was lost: LocalProtocolError"
    assert raised.value.__cause__ is None


# Finding by session


@pytest.mark.parametrize("shape, named", [("both", True), ("current", True), ("plan", False)])
async def test_session_is_found_in_any_shape(remem, client, shape, named):
    remem.shape = shape
    remem.keeps(call_text(session="voice-session:other"))
    document_id = remem.keeps(call_text())
    assert await client.find_by_session(SESSION) == (document_id if named else "")


async def test_session_is_found_beyond_the_snippet(remem, client):
    document_id = remem.keeps("x" * 600 + SESSION)
    assert await client.find_by_session(SESSION) == document_id


@pytest.mark.parametrize("fault", [Fault.NO_RESULTS_KEY, Fault.ODD_RESULTS])
async def test_answer_without_results_says_nothing_of_a_session(remem, client, fault):
    """Taken for a no, it would have the document sent a second time."""
    await client.store(call_document())
    remem.fails(fault)
    with pytest.raises(StoreUnavailable, match="remem answered a query without results"):
        await client.find_by_session("voice-session:1")


async def test_other_sessions_are_not_taken(remem, client):
    remem.keeps(call_text(session="voice-session:other"))
    assert await client.find_by_session(SESSION) is None


# Past calls


@pytest.mark.parametrize("face", ["plan", "current", "both"])
@pytest.mark.parametrize("shape", ["current", "both"])
async def test_only_calls_of_this_pair(remem, client, face, shape):
    remem.face, remem.shape = face, shape
    ours = remem.keeps(call_text(), tags=TAGS)
    remem.keeps(call_text(caller=BEN), tags=("voice-session", "agent:maya", f"caller:{BEN}"))
    remem.keeps(call_text(agent="sam"), tags=("voice-session", "agent:sam", f"caller:{ANA}"))
    remem.keeps("nobody's note")
    assert await ids_of(client) == [ours]


async def test_strangers_are_returned_but_dropped(remem, client):
    remem.face, remem.shape = "current", "plan"
    remem.keeps(call_text(caller=BEN), tags=("voice-session", "agent:maya", f"caller:{BEN}"))
    remem.keeps(call_text(), title="Ana", tags=TAGS)
    assert [document.title for document in await client.past_calls("maya", ANA, 3)] == ["Ana"]
    assert remem.strangers_returned == 1


async def test_query_asks_in_all_dialects(remem, client):
    await client.past_calls("maya", ANA, 3)
    body = remem.requests[0].body
    assert body["text"] == body["query"] == f"voice call summary caller {ANA} agent maya"
    assert body["limit"] == body["max_results"] == body["maxResults"] == 30
    assert body["minScore"] == 0
    assert body["tags"] == ["voice-session", "agent:maya", f"caller:{ANA}"]


async def test_past_calls_come_newest_first(remem, client):
    for day in (5, 7, 6, 4):
        remem.keeps(call_text(), title=f"Day {day}", tags=TAGS, created_at=f"2026-02-0{day}T10:00:00Z")
    assert [document.title for document in await client.past_calls("maya", ANA, 3)] == ["Day 7", "Day 6", "Day 5"]


async def test_title_dates_an_undated_call(remem, client):
    remem.shape = "current"
    remem.keeps(call_text(), title="Voice Call Summary — 2026-02-06 11:15 PM", tags=TAGS)
    (document,) = await client.past_calls("maya", ANA, 3)
    assert document.created_at == datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


async def test_full_text_replaces_the_snippet(remem, client):
    remem.keeps(call_text(context="kettle " * 200), tags=TAGS)
    (document,) = await client.past_calls("maya", ANA, 3)
    assert document.content == call_text(context="kettle " * 200)


async def test_snippet_serves_when_reading_fails(remem, client):
    remem.keeps(call_text(context="kettle " * 200), tags=TAGS)
    remem.fails(Fault.NONE, Fault.BROKEN)
    (document,) = await client.past_calls("maya", ANA, 3)
    assert document.content == call_text(context="kettle " * 200)[:500]


@pytest.mark.parametrize("fault", [Fault.NO_RESULTS_KEY, Fault.ODD_RESULTS, Fault.EMPTY_CHUNKS, Fault.NULL_TITLE])
async def test_odd_answers_are_survived(remem, client, fault):
    remem.keeps(call_text(), tags=TAGS)
    remem.fails(fault)
    found = await client.past_calls("maya", ANA, 3)
    assert len(found) == (0 if fault in (Fault.NO_RESULTS_KEY, Fault.ODD_RESULTS) else 1)


async def test_unindexed_document_is_not_found(remem, client):
    remem.indexing_delay = 3600.0
    await client.store(call_document())
    assert await ids_of(client) == []
