import httpx
import pytest

from tests.fakes.remem import FakeRemem

KEY = {"X-API-Key": "vlt_demo"}


@pytest.fixture
async def remem():
    async with FakeRemem() as remem:
        yield remem


@pytest.fixture
async def http(remem):
    async with httpx.AsyncClient(base_url=remem.url, headers=KEY) as http:
        yield http


@pytest.mark.parametrize(
    "face, statuses",
    [("plan", [201, 404, 200]), ("current", [405, 202, 405]), ("both", [201, 202, 200]), ("none", [404, 404, 404])],
)
async def test_faces_offer_their_paths(remem, http, face, statuses):
    remem.face = face
    body = {"content": "kettle"}
    path = f"/v1/documents/{remem.keeps('pan')}"
    answers = [await http.post(path, json=body) for path in ("/v1/documents", "/v1/documents/ingest")]
    assert [answer.status_code for answer in [*answers, await http.put(path, json=body)]] == statuses


async def test_bearer_alone_can_be_refused(remem):
    async with httpx.AsyncClient(base_url=remem.url, headers={"Authorization": "Bearer vlt_demo"}) as http:
        assert (await http.post("/v1/query", json={"text": "x"})).status_code == 200
        remem.takes_bearer_alone = False
        assert (await http.post("/v1/query", json={"text": "x"})).status_code == 401


async def test_foreign_namespace_is_403(http):
    assert (await http.post("/v1/query", json={"text": "x", "namespaces": ["theirs"]})).status_code == 403
    ingest = {"content": "x", "namespace": "theirs"}
    assert (await http.post("/v1/documents/ingest", json=ingest)).status_code == 403


async def test_queued_document_is_read_at_once(remem, http):
    remem.indexing_delay = 3600.0
    document_id = (await http.post("/v1/documents", json={"content": "kettle"})).json()["id"]
    assert (await http.post("/v1/query", json={"text": "kettle"})).json() == {"results": []}
    assert (await http.get(f"/v1/documents/{document_id}")).json()["content"] == "kettle"


@pytest.mark.parametrize("honours, documents", [(True, 1), (False, 2)])
async def test_idempotency_can_be_ignored(remem, http, honours, documents):
    remem.honours_idempotency = honours
    for _ in range(2):
        await http.post("/v1/documents", json={"content": "kettle s:1"}, headers={"Idempotency-Key": "s:1"})
    assert remem.documents_of("s:1") == documents


async def test_strict_server_wants_text_tags(remem, http):
    remem.tags_must_be_text = True
    statuses = [
        (await http.post("/v1/documents", json={"content": "x", "tags": tags})).status_code for tags in (["a"], "a")
    ]
    assert statuses == [422, 201]


async def test_scores_are_tiny_and_ordered(remem, http):
    for content in ("tea", "blue kettle", "red kettle"):
        remem.keeps(content)
    results = (await http.post("/v1/query", json={"text": "blue kettle"})).json()["results"]
    assert [result["snippet"] for result in results] == ["blue kettle", "red kettle", "tea"]
    assert [result["chunks"][0]["score"] for result in results] == [0.03, 0.02, 0.01]
