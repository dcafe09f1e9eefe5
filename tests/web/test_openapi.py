"""The description of the HTTP API against the routes, and against what the gateway really answers."""

import json
import re
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from starlette.applications import Starlette
from starlette.routing import Route

from gateway.app import create_app
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.stores import open_local_store
from gateway.settings import Settings
from gateway.web.health import api_description
from tests.stage import CALLER, Stage, make_carrier, patient_client, staged

ROOT = Path(__file__).parents[2]
DESCRIPTION = api_description()
WRONG = {"Authorization": "Bearer wrong", "X-API-Key": "wrong"}
DESCRIBED = {(method.upper(), path) for path, operations in DESCRIPTION["paths"].items() for method in operations}


class CheckedClient:
    """Checks each response against the description. `seen` are the operations with their statuses."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.seen: set[tuple[str, int]] = set()

    async def send(self, method: str, path: str, template: str = "", **options: Any) -> httpx.Response:
        answer = await self._http.request(method, path, **options)
        operation = DESCRIPTION["paths"][template or path][method.lower()]
        self.seen.add((operation["operationId"], answer.status_code))
        described = operation["responses"][str(answer.status_code)]
        if reference := described.get("$ref"):
            described = DESCRIPTION["components"]["responses"][reference.rpartition("/")[2]]
        if not answer.content:
            assert "content" not in described
            return answer
        media_type = answer.headers["content-type"].partition(";")[0]
        schema = described["content"][media_type]["schema"]
        if media_type == "application/json":
            whole = {**schema, "components": DESCRIPTION["components"]}
            problems = [error.message for error in Draft202012Validator(whole).iter_errors(answer.json())]
            assert problems == [], (operation["operationId"], answer.json())
        return answer


@pytest.fixture
def carrier_name() -> str:
    return "twilio"


async def routes_of(app: Starlette) -> set[tuple[str, str]]:
    async with app.router.lifespan_context(app):
        routes = [route for route in app.routes if isinstance(route, Route) and route.path.startswith("/v1/")]
    # A route to an ASGI application has no methods; the only one serves GET.
    return {(method, route.path) for route in routes for method in (route.methods or {"GET"}) - {"HEAD"}}


def test_description_is_valid_openapi() -> None:
    validate(DESCRIPTION)


async def test_every_route_is_described_and_no_other(tmp_path: Path) -> None:
    app = create_app(Settings(data_dir=tmp_path, folder=ROOT, voice_session_archive_dir=tmp_path))
    assert await routes_of(app) == DESCRIBED


def test_docs_list_the_same_routes() -> None:
    table = re.findall(r"^\| `([A-Z]+)` \| `(/v1/[^`]+)` \|", (ROOT / "docs/http-api.md").read_text(), re.MULTILINE)
    assert set(table) == DESCRIBED


@pytest.mark.parametrize("kind", ["schemas", "parameters", "responses"])
def test_every_component_is_used(kind: str) -> None:
    used = set(re.findall(rf'"#/components/{kind}/(\w+)"', json.dumps(DESCRIPTION)))
    assert used == set(DESCRIPTION["components"][kind])


async def test_description_is_served_to_anyone(stage: Stage) -> None:
    async with patient_client(stage.url) as http:
        answer = await http.get("/openapi.json")
    assert (answer.status_code, answer.json()) == (200, DESCRIPTION)
    assert DESCRIPTION["info"]["version"] == metadata.version("voice-gateway")


async def test_scopes_are_as_described(tmp_path: Path) -> None:
    """Each operation, asked with a token of each scope, accepts those that the description lists, and admin."""
    app = create_app(Settings(data_dir=tmp_path, folder=ROOT, voice_session_archive_dir=tmp_path, memory_vectors=False))
    store = await open_local_store(tmp_path)
    scopes = [scope for scope in TokenScope if scope is not TokenScope.LLM]  # bound to an agent
    tokens = {scope: (await TokenTable(store).create(scope))[1] for scope in scopes}
    await store.close()
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
            for path, operations in DESCRIPTION["paths"].items():
                for method, operation in operations.items():
                    asked = [
                        # Wrong in all else, so that an accepted request is over at once and changes nothing.
                        (
                            scope,
                            await http.request(method, f"{path}?limit=x&since=x", headers=bearer(text), content=b"["),
                        )
                        for scope, text in tokens.items()
                    ]
                    accepted = {str(scope) for scope, answer in asked if answer.status_code not in (401, 403, 429)}
                    assert (path, method, accepted) == (path, method, described_scopes(operation))


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def described_scopes(operation: dict[str, Any]) -> set[str]:
    listed = {scope for option in operation["security"] for scope in option.get("bearer", ())}
    return {*listed, "admin"} if listed else set()


async def test_documents_are_as_described(stage: Stage) -> None:
    client, new = CheckedClient(stage.http), {"content": "A blue saddle.", "tags": "shop, saddle", "title": "Saddle"}
    document_id = (await client.send("POST", "/v1/documents", json=new)).json()["id"]
    path, template = f"/v1/documents/{document_id}", "/v1/documents/{id}"
    await client.send("POST", "/v1/documents/ingest", json={**new, "return_id": True})
    await client.send("POST", "/v1/documents", json={"title": "empty"})
    await client.send("POST", "/v1/documents", content=b"x" * 1_100_000)
    await client.send("GET", path, template)
    await client.send("PUT", path, template, json={"content": "And a bell.", "mode": "append"})
    await client.send("PUT", path, template, json={"content": "x", "mode": "burn"})
    known = {"content": "Ana prefers a blue saddle.", "title": "Ana"}
    await client.send("POST", "/v1/documents/ingest", json=known)
    rich = {"mode": "rich", "synthesize": True, "include_facts": True}
    await client.send("POST", "/v1/query", json={"query": "saddle", "limit": 2, **rich})
    await client.send("GET", f"{path}/chunks", f"{template}/chunks")
    await client.send("POST", f"{path}/extract-facts", f"{template}/extract-facts")
    [entity] = (await client.send("GET", "/v1/entities")).json()["entities"]
    await client.send("GET", f"/v1/entities/{entity['id']}/facts", "/v1/entities/{id}/facts")
    await client.send("DELETE", path, template)
    await client.send("GET", path, template)
    await client.send("GET", path, template, headers=WRONG)
    statuses = {status for _, status in client.seen}
    assert statuses == {200, 201, 202, 204, 401, 404, 413, 422}


async def test_calls_are_as_described(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    await conversation.user_says("Is my bike ready?")
    await stage.answer(call, conversation, "It is.")
    await call.hang_up()
    await stage.document()
    await stage.idle()
    client = CheckedClient(stage.http)
    [row] = (await client.send("GET", "/v1/sessions", params={"caller": CALLER})).json()
    await client.send("GET", f"/v1/sessions/{row['session']}", "/v1/sessions/{id}")
    await client.send("GET", "/v1/sessions/ffffffff", "/v1/sessions/{id}")
    await client.send("GET", "/v1/sessions", params={"limit": "0"})
    await client.send("GET", "/v1/latency")
    await client.send("GET", "/v1/latency", params={"since": "yesterday"})
    await client.send("GET", "/v1/live", params={"since": "Tuesday"})
    assert {status for _, status in client.seen} == {200, 404, 422}


async def test_softphone_is_as_described(stage: Stage) -> None:
    client = CheckedClient(stage.http)
    await client.send("POST", "/v1/phone", json={"caller": CALLER})
    await client.send("POST", "/v1/phone", json={"caller": "Anna"})
    await client.send("POST", "/v1/phone", content=b"x" * 70_000)
    await client.send("POST", "/v1/phone/links", json={"called": "maya"})
    await client.send("POST", "/v1/phone/links", json={}, headers=WRONG)
    await client.send("POST", "/v1/widget/tokens", json={"origin": "https://shop.example"})
    await client.send("POST", "/v1/widget/tokens", json={})
    assert {status for _, status in client.seen} == {201, 400, 401, 413}


async def test_outbound_call_is_as_described(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nnumbers = ["+12025550100"]\n')
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        stage.carrier.callee = "busy"
        client = CheckedClient(stage.http)
        await client.send("POST", "/v1/outbound/call", json={"to": CALLER, "context": {"order": 17}})
        await client.send("POST", "/v1/outbound/call", json={"to": "Anna"})
        await client.send("POST", "/v1/outbound/call", json={"to": CALLER, "colour": "red"})
        await client.send("POST", "/v1/outbound/call", json={"to": CALLER}, headers=WRONG)
    assert {status for _, status in client.seen} == {202, 400, 401}


async def test_completions_refuse_as_described(stage: Stage) -> None:
    client = CheckedClient(stage.http)
    await client.send("POST", "/v1/chat/completions", json={"messages": []})
    assert client.seen == {("createChatCompletion", 401)}
