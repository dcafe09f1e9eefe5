import httpx
import pytest
from starlette.applications import Starlette

from gateway.history import api_tokens
from gateway.history.api_tokens import TokenTable
from gateway.memory.entities import EntityReader
from gateway.memory.memory_log import SCHEMA, Retention
from gateway.memory.remem_client import RememClient
from gateway.memory.stores.documents import NewDocument
from gateway.memory.visible_documents import VisibleDocuments
from gateway.settings import Secret
from gateway.web.auth import Authenticator
from gateway.web.documents import routes

KEY = "vlt_demo"
ANA = "caller:+12025550101"
PLAN = {
    "title": "Voice Call Summary — 2026-02-06 11:15 PM",
    "content": "## Voice Call\nShe ordered a blue kettle",
    "source": "voice-call",
    "tags": f"voice-session, phone-call, {ANA}",
}


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=(*SCHEMA, *api_tokens.SCHEMA)) as store:
        yield store


def document_routes(store, admin_token, key):
    visible = VisibleDocuments(store, Retention())
    auth = Authenticator(Secret(admin_token), Secret(key), TokenTable(store))
    return routes(visible, EntityReader(visible), auth)


def client_of(store, *, key=KEY):
    app = Starlette(routes=document_routes(store, "admin", KEY))
    headers = {"X-API-Key": key} if key else {}
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway", headers=headers)


@pytest.fixture
async def client(store):
    async with client_of(store) as client:
        yield client


async def create(client, **fields):
    return (await client.post("/v1/documents", json=PLAN | fields)).json()


# Keys


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 401),
        ({"X-API-Key": ""}, 401),
        ({"X-API-Key": "vlt_dem"}, 401),
        ({"X-API-Key": "vlt_démo".encode()}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"X-API-Key": KEY}, 200),
        ({"X-API-Key": "admin"}, 200),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer {KEY}", "X-API-Key": "other"}, 200),
    ],
)
async def test_key_opens_the_store(store, headers, status):
    async with client_of(store, key="") as client:
        response = await client.post("/v1/query", json={"text": "x"}, headers=headers)
    assert response.status_code == status
    if status == 401:
        assert response.json() == {"detail": "missing or wrong token"}


@pytest.mark.parametrize(
    "method, path",
    [
        ("POST", "/v1/documents"),
        ("POST", "/v1/documents/ingest"),
        ("GET", "/v1/documents/x"),
        ("PUT", "/v1/documents/x"),
        ("DELETE", "/v1/documents/x"),
        ("POST", "/v1/query"),
        ("GET", "/v1/documents/x/chunks"),
        ("POST", "/v1/documents/x/extract-facts"),
        ("GET", "/v1/entities"),
        ("GET", "/v1/entities/x/facts"),
    ],
)
async def test_every_path_asks_for_the_key(store, method, path):
    async with client_of(store, key="") as client:
        assert (await client.request(method, path)).status_code == 401


async def test_without_keys_nobody_enters(store):
    app = Starlette(routes=document_routes(store, "", ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as client:
        response = await client.post("/v1/query", json={"text": "x"}, headers={"X-API-Key": ""})
    assert response.status_code == 401


# Writing


async def test_create_answers_the_document(client):
    response = await client.post("/v1/documents", json=PLAN | {"created_at": "2026-02-06T23:15:00+01:00"})
    document = response.json()
    assert response.status_code == 201
    assert document["id"] == document["document_id"]
    assert document["tags"] == ["voice-session", "phone-call", ANA]
    assert document["created_at"] == "2026-02-06T22:15:00Z"
    assert (await client.get(f"/v1/documents/{document['id']}")).json() == document


async def test_ingest_is_another_create(client):
    body = {"content": "blue kettle", "metadata": {"tags": [ANA]}, "return_id": True, "mime_type": "text/plain"}
    response = await client.post("/v1/documents/ingest", json=body)
    document_id = response.json()["document_id"]
    assert (response.status_code, response.json()["message"]) == (200, "stored")
    document = (await client.get(f"/v1/documents/{document_id}")).json()
    assert (document["tags"], document["source"]) == ([ANA], "api")


async def test_ingest_gives_no_id_unasked(client):
    response = await client.post("/v1/documents/ingest", json={"content": "blue kettle"})
    assert sorted(response.json()) == ["job_id", "message"]


@pytest.mark.parametrize("path", ["/v1/documents", "/v1/documents/ingest"])
@pytest.mark.parametrize("by_header", [True, False])
async def test_same_key_same_answer(client, store, path, by_header):
    headers = {"Idempotency-Key": "voice-session:1"} if by_header else {}
    body = PLAN if by_header else PLAN | {"source_id": "voice-session:1"}
    answers = [(await client.post(path, json=body, headers=headers)).json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(await store.newest(tags=(), limit=9)) == 1


@pytest.mark.parametrize(
    "body, detail",
    [
        ({}, "content is missing"),
        ({"content": None}, "content is missing"),
        ({"content": 7}, "content must be a string"),
        ({"content": "x", "title": []}, "title must be a string"),
        ({"content": "x", "tags": 7}, "tags must be a string or a list of strings"),
        ({"content": "x", "tags": [7]}, "tags must be a string or a list of strings"),
        ({"content": "x", "tags": [str(n) for n in range(101)]}, "more than 100 tags"),
        ({"content": "x", "metadata": [1]}, "metadata must be an object"),
        ({"content": "x", "created_at": "yesterday"}, "created_at is not an ISO 8601 time"),
        ({"content": "x", "created_at": 7}, "created_at must be a string"),
        ([1], "the body must be a JSON object"),
    ],
)
async def test_bad_document_is_refused(client, body, detail):
    response = await client.post("/v1/documents", json=body)
    assert (response.status_code, response.json()) == (422, {"detail": detail})


@pytest.mark.parametrize("content", [b"", b"{", b"<html>", b'{"content": "\xff"}', b'{"content": "\\ud800"}'])
async def test_body_must_be_json(client, content):
    response = await client.post("/v1/documents", content=content)
    assert (response.status_code, response.json()) == (422, {"detail": "the body is not JSON"})


async def test_large_body_is_refused(client):
    response = await client.post("/v1/documents", json={"content": "x" * 1_000_000})
    assert (response.status_code, response.json()) == (413, {"detail": "the body is larger than 1 MB"})


@pytest.mark.parametrize(
    "body, content",
    [({"content": "b"}, "b"), ({"content": "b", "mode": "replace"}, "b"), ({"content": "b", "mode": "append"}, "a\nb")],
)
async def test_update_replaces_or_appends(client, body, content):
    document = await create(client, content="a")
    response = await client.put(f"/v1/documents/{document['id']}", json=body)
    assert response.status_code == 200
    assert response.json()["content"] == content
    assert (response.json()["title"], response.json()["tags"]) == (document["title"], document["tags"])


async def test_unknown_mode_is_refused(client):
    document = await create(client)
    response = await client.put(f"/v1/documents/{document['id']}", json={"content": "b", "mode": "prepend"})
    assert (response.status_code, response.json()) == (422, {"detail": "mode must be replace or append"})


async def test_second_delete_finds_nothing(client):
    path = f"/v1/documents/{(await create(client))['id']}"
    assert [(await client.delete(path)).status_code for _ in range(2)] == [204, 404]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_unknown_document_is_404(client, method):
    response = await client.request(method, "/v1/documents/nowhere", json={"content": "x"})
    assert (response.status_code, response.json()) == (404, {"detail": "no document nowhere"})


async def test_ingest_replaces_its_source(client):
    first = {"content": "The kettle is blue", "title": "Kettle", "source_id": "note:1", "return_id": True}
    second = first | {"content": "The kettle is red", "metadata": {"tags": [ANA]}}
    ids = [(await client.post("/v1/documents/ingest", json=body)).json()["document_id"] for body in (first, second)]
    assert ids[0] == ids[1]
    document = (await client.get(f"/v1/documents/{ids[0]}")).json()
    assert (document["content"], document["tags"], document["source_id"]) == ("The kettle is red", [ANA], "note:1")
    assert await found(client, text="blue") == []
    assert await found(client, text="red", tags=[ANA]) == ["The kettle is red"]


# Namespaces and filters


async def found(client, **query):
    answer = (await client.post("/v1/query", json={"text": "kettle"} | query)).json()
    return [result["snippet"] for result in answer["results"]]


async def test_namespaces_are_apart(client):
    for namespace in ("", "work", "home"):
        await client.post(
            "/v1/documents/ingest", json={"content": f"kettle {namespace}".strip(), "namespace": namespace}
        )
    assert await found(client) == await found(client, namespaces=["default"]) == ["kettle"]
    assert await found(client, namespaces=["work"]) == ["kettle work"]
    assert sorted(await found(client, namespaces=["work", "default"])) == ["kettle", "kettle work"]
    assert len(await found(client, namespaces=["*"])) == 3
    assert await found(client, namespaces=["other"]) == []


async def test_namespaces_do_not_share_source_ids(client):
    for namespace in ("work", "home"):
        body = {"content": f"kettle {namespace}", "namespace": namespace, "source_id": "note:1"}
        await client.post("/v1/documents/ingest", json=body)
    assert await found(client, namespaces=["work"]) == ["kettle work"]
    assert await found(client, namespaces=["home"]) == ["kettle home"]


async def test_document_is_read_in_its_namespaces(client):
    body = {"content": "kettle", "namespace": "work", "return_id": True}
    path = f"/v1/documents/{(await client.post('/v1/documents/ingest', json=body)).json()['document_id']}"
    for suffix in ("", "/chunks"):
        assert (await client.get(path + suffix, params={"namespaces": "home,work"})).status_code == 200
        assert (await client.get(path + suffix, params={"namespaces": "home"})).status_code == 404
    document = (await client.get(path)).json()
    assert (document["namespace"], document["tags"]) == ("work", [])


async def test_results_in_other_namespaces_do_not_crowd_out(client):
    for n in range(30):
        body = {"content": "kettle kettle kettle", "namespace": "work", "source_id": str(n)}
        await client.post("/v1/documents/ingest", json=body)
    await create(client, content="one kettle among other things")
    assert await found(client, limit=2) == ["one kettle among other things"]


@pytest.mark.parametrize(
    "filters, expected",
    [
        ({"checkpoint_project": ["Remem"]}, ["kettle 1", "kettle 2"]),
        ({"checkpoint_project": "remem", "checkpoint_kinds": ["final"]}, ["kettle 2"]),
        ({"checkpoint_session": ["s1", "s9"]}, ["kettle 1"]),
        ({"tags": ["blue"]}, ["kettle 2"]),
        ({"source": ["quick_capture"]}, ["kettle 1"]),
        ({"unknown": ["x"]}, []),
        ({}, ["kettle 1", "kettle 2", "kettle 3"]),
    ],
)
async def test_filters_are_honoured(client, filters, expected):
    metadata = {"project": "remem", "session_id": "s1", "checkpoint_kind": "interval"}
    await create(client, content="kettle 1", tags="", metadata=metadata, source="quick_capture")
    await create(
        client, content="kettle 2", metadata={"project": "remem", "checkpoint_kind": "final", "tags": ["blue"]}, tags=""
    )
    await create(client, content="kettle 3", tags="")
    assert sorted(await found(client, filters=filters)) == expected


@pytest.mark.parametrize(
    "body, detail",
    [
        ({"namespaces": 7}, "namespaces must be a list of strings"),
        ({"filters": ["project"]}, "filters must be an object"),
    ],
)
async def test_bad_scope_is_refused(client, body, detail):
    response = await client.post("/v1/query", json={"text": "x"} | body)
    assert (response.status_code, response.json()) == (422, {"detail": detail})


# Chunks, facts, entities


async def test_chunks_are_the_parts_of_a_document(client):
    content = " ".join(f"Sentence {n} is about a kettle that is much too long to be read at once." for n in range(20))
    path = f"/v1/documents/{(await create(client, content=content))['id']}/chunks"
    whole = (await client.get(path)).json()["chunks"]
    assert " ".join(chunk["content"] for chunk in whole) == content
    assert (await client.get(path, params={"limit": 2, "include_content": "false"})).json()["chunks"] == [
        {"chunk_index": 0},
        {"chunk_index": 1},
    ]
    assert (await client.get(path, params={"limit": "many"})).status_code == 422


async def test_entities_have_facts(client):
    body = {"content": "Ana Weber prefers mornings. Acme Corp moved to Leeds.", "return_id": True}
    document_id = (await client.post("/v1/documents/ingest", json=body)).json()["document_id"]
    accepted = await client.post(f"/v1/documents/{document_id}/extract-facts")
    assert (accepted.status_code, accepted.json()["status"]) == (202, "accepted")
    listed = (await client.get("/v1/entities", params={"limit": 10})).json()
    assert sorted((one["name"], one["entity_type"]) for one in listed["entities"]) == [
        ("Acme Corp", "org"),
        ("Ana Weber", "person"),
    ]
    [ana] = (await client.get("/v1/entities", params={"type": "person"})).json()["entities"]
    answer = (await client.get(f"/v1/entities/{ana['id']}/facts")).json()
    [fact] = answer["facts"]
    assert (fact["fact_type"], fact["content"], answer["total"]) == ("preference", "Ana Weber prefers mornings.", 1)
    other = await client.get(f"/v1/entities/{ana['id']}/facts", params={"fact_type": "decision"})
    assert other.json()["facts"] == []
    assert (await client.get("/v1/entities/nowhere/facts")).status_code == 404


async def test_query_brings_facts(client):
    await create(client, content="Ana prefers mornings. Ben likes tea.", source="api")
    answer = (await client.post("/v1/query", json={"query": "mornings", "include_facts": True, "entity": "ana"})).json()
    assert [fact["content"] for fact in answer["facts"]] == ["Ana prefers mornings."]


async def test_rich_query_answers_in_words_of_the_results(client):
    document = await create(client, content="The shop opens at nine. Ana ordered a blue kettle.", title="Kettle")
    body = {"query": "what did Ana order", "mode": "rich", "synthesize": True}
    answer = (await client.post("/v1/query", json=body)).json()
    assert answer["synthesis"].startswith("Ana ordered a blue kettle.")
    assert answer["sources"] == [f"Kettle ({document['id']})"]


# Asking


@pytest.mark.parametrize(
    "body",
    [
        {"text": "kettle", "limit": 1, "tags": [ANA]},
        {"text": "kettle", "limit": 1, "tags": f"{ANA}, voice-session"},
        {"query": "kettle", "maxResults": 1, "minScore": 0, "mode": "fast"},
        {"query": "kettle", "max_results": 1, "include_facts": True, "namespaces": ["*"], "filters": {}},
    ],
)
async def test_query_speaks_every_dialect(client, body):
    for n in range(2):
        await create(client, content=f"kettle {n}", created_at=f"2026-02-0{n + 1}")
    answer = (await client.post("/v1/query", json=body)).json()
    (result,) = answer["results"]
    assert result["id"] == result["document_id"]
    assert result["snippet"] == result["summary"] == result["chunks"][0]["content"] == "kettle 1"
    assert 0 < result["score"] == result["chunks"][0]["score"] < 0.1
    assert (result["source"], result["created_at"]) == ("voice-call", "2026-02-02T00:00:00Z")
    assert (answer["query"], answer["total_chunks"]) == ("kettle", 1)


async def test_facts_only_when_asked(client):
    answers = [
        (await client.post("/v1/query", json={"text": "x", "include_facts": yes})).json() for yes in (True, False)
    ]
    assert answers[0]["facts"] == []
    assert "facts" not in answers[1]


@pytest.mark.parametrize("limit, found", [(0, 1), (-5, 1), (None, 10), (1000, 12)])
async def test_limit_is_kept_in_bounds(client, limit, found):
    for _ in range(12):
        await create(client)
    answer = (await client.post("/v1/query", json={"text": "kettle", "limit": limit})).json()
    assert len(answer["results"]) == found


@pytest.mark.parametrize(
    "body, detail",
    [
        ({}, "text or query is missing"),
        ({"text": ["x"]}, "text must be a string"),
        ({"query": 7}, "query must be a string"),
        ({"text": "x", "limit": "3"}, "limit must be a whole number"),
        ({"text": "x", "max_results": True}, "limit must be a whole number"),
        ({"text": "x", "tags": {"a": 1}}, "tags must be a string or a list of strings"),
    ],
)
async def test_bad_query_is_refused(client, body, detail):
    response = await client.post("/v1/query", json=body)
    assert (response.status_code, response.json()) == (422, {"detail": detail})


async def test_query_stays_with_its_tags(client):
    await create(client, content="kettle of Ana")
    await create(client, content="kettle of Ben", tags="voice-session, caller:+12025550102")
    body = {"text": "kettle of Ben", "tags": ["voice-session", ANA]}
    answer = (await client.post("/v1/query", json=body)).json()
    assert [result["snippet"] for result in answer["results"]] == ["kettle of Ana"]


async def test_broken_store_is_503(store, client):
    await store.close()
    response = await client.post("/v1/query", json={"text": "x"})
    assert (response.status_code, response.json()) == (503, {"detail": "the store is unavailable"})


async def test_our_own_client_understands_us(store):
    """A second gateway can use this one as its Remem."""
    tags = ("voice-session", "agent:maya", ANA)
    async with client_of(store, key="") as http:
        remem = RememClient("http://gateway", Secret(KEY), http)
        document_id = await remem.store(NewDocument("Call", "kettle", "voice-call", tags, source_id="voice-session:1"))
        assert await remem.replace(document_id, NewDocument("Call", "pan")) == document_id
        (document,) = await remem.past_calls("maya", "+12025550101", 3)
    assert (document.id, document.content, document.source_id) == (document_id, "pan", "voice-session:1")


async def test_metadata_nested_too_deeply_is_refused(client):
    deep = '{"a":' * 300 + "1" + "}" * 300
    answer = await client.post("/v1/documents", content=f'{{"content": "x", "metadata": {deep}}}')
    assert (answer.status_code, answer.json()) == (422, {"detail": "metadata is nested too deeply"})


async def test_character_that_no_database_takes_is_left_out(client):
    answer = await client.post("/v1/documents", json={"content": "Red\0 bike", "title": "\0"})
    assert (answer.status_code, answer.json()["content"], answer.json()["title"]) == (201, "Red bike", "")
