import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from importlib import metadata

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette

from gateway.errors import DocumentNotFound
from gateway.history import api_tokens
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.memory import memory_log, personas
from gateway.memory.personas import PersonaStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.stores.documents import NewDocument
from gateway.settings import Secret
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.web.auth import Authenticator
from gateway.web.mcp import McpEndpoint
from tests.stage import PATIENCE, patient_client

TOKEN = "admin-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
START = datetime(2026, 3, 14, 12, 0, tzinfo=UTC)
ANA, BEN = "+12025550101", "+12025550102"
LIST_TOOLS = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}


class NoteMemory:
    """Notes about callers as documents of a store, under the tags that calls use."""

    def __init__(self, store):
        self._store = store

    async def search(self, query, *, caller, agent, limit):
        return await self._store.query(query, limit=limit, tags=tags_of(caller, agent))

    async def remember(self, content, *, caller, agent):
        return (await self._store.create(NewDocument("Note", content, "mcp", tags_of(caller, agent)))).id

    async def forget(self, document_id, *, caller, agent):
        if not set(tags_of(caller, agent)) <= set((await self._store.get(document_id)).tags):
            raise DocumentNotFound(document_id)
        await self._store.delete(document_id)

    async def forget_caller(self, *, caller, agent):
        documents = await self._store.newest(tags=tags_of(caller, agent), limit=1000)
        for document in documents:
            await self._store.delete(document.id)
        return len(documents)


class NoCalls:
    """No call has a token."""

    async def with_token(self, token):
        return None


def tags_of(caller, agent):
    return tuple(f"{kind}:{name}" for kind, name in (("agent", agent), ("caller", caller)) if name)


def auth_of(store, token=TOKEN):
    return Authenticator(Secret(token), None, TokenTable(store))


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=(*personas.SCHEMA, *memory_log.SCHEMA, *api_tokens.SCHEMA)) as store:
        yield store


@pytest.fixture
async def url(store):
    moments = (START + timedelta(days=day) for day in range(100))
    personas_then = PersonaStore(store, now=lambda: next(moments))
    door = McpEndpoint(personas_then, NoteMemory(store), PinnedTopicStore(store), auth_of(store), NoCalls())
    async with serve_on_loopback(Starlette(routes=door.routes())) as address:
        yield f"{address}/mcp"


@asynccontextmanager
async def connected(url, mode="auto", headers=BEARER):
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    answer = json.loads(result.content[0].text)
    assert (result.is_error, result.structured_content) == (False, answer)
    return answer


async def refusal(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


# The door


@pytest.mark.parametrize(
    "headers, status",
    [
        ({}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
        ({"Authorization": "Bearer admin-toke"}, 401),
        ({"X-API-Key": "admin-tokén".encode()}, 401),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
        ({"X-API-Key": TOKEN, "Authorization": "Bearer other"}, 200),
    ],
)
async def test_token_opens_the_door(url, headers, status):
    async with patient_client(headers=headers) as http:
        response = await http.post(url, json=LIST_TOOLS)
    assert response.status_code == status
    if status == 401:
        assert response.json() == {"detail": "missing or wrong token"}
        assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS", "POST"])
async def test_stranger_learns_nothing(url, method):
    async with patient_client() as http:
        response = await http.request(method, url, content=b"{ no JSON")
    assert response.status_code == 401


async def test_no_token_opens_to_nobody(store):
    door = McpEndpoint(PersonaStore(store), NoteMemory(store), PinnedTopicStore(store), auth_of(store, ""), NoCalls())
    transport = httpx.ASGITransport(Starlette(routes=door.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        response = await http.post("/mcp", json=LIST_TOOLS, headers={"X-API-Key": "", "Authorization": "Bearer "})
    assert response.status_code == 401


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_there_are_no_sessions(url, method):
    async with patient_client(headers=BEARER) as http:
        response = await http.request(method, url, headers={"Accept": "text/event-stream"})
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")


async def test_host_of_a_reverse_proxy_is_taken(url):
    headers = {"Host": "voice.example.com", "Origin": "https://voice.example.com"}
    async with patient_client(headers=BEARER | headers) as http:
        response = await http.post(url, json=LIST_TOOLS)
    assert response.status_code == 200


async def test_large_body_is_refused(url):
    async with patient_client(headers=BEARER) as http:
        response = await http.post(url, json=LIST_TOOLS | {"params": {"cursor": "x" * 1_000_000}})
    assert response.status_code == 413


def test_sdk_is_not_loaded_at_start():
    check = "import sys, gateway.web.mcp; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


# The protocol


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_tools_are_listed_and_called(url, mode):
    """Clients of the old protocol, which opens with a handshake, and of the one of 2026."""
    async with connected(url, mode) as client:
        tools = (await client.list_tools()).tools
        names = "persona memory_search memory_remember memory_forget memory_pins memory_pin memory_unpin"
        assert [tool.name for tool in tools] == names.split()
        assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools)
        assert [tool.name for tool in tools if tool.annotations.read_only_hint] == ["memory_search", "memory_pins"]
        assert [tool.name for tool in tools if tool.annotations.destructive_hint] == ["memory_forget", "memory_unpin"]
        assert all(tool.title and tool.annotations.open_world_hint is False for tool in tools)
        assert client.server_info.version == metadata.version("voice-gateway")
        assert await call(client, "persona", action="list") == {"personas": []}


async def test_key_header_does_for_a_client(url):
    async with connected(url, headers={"X-API-Key": TOKEN}) as client:
        assert await call(client, "persona", action="list") == {"personas": []}


async def test_clients_do_not_disturb_each_other(url):
    async with connected(url) as one, connected(url, "legacy") as other:
        named = [call(client, "persona", action="load", names=[name]) for name in "abcd" for client in (one, other)]
        answers = await asyncio.gather(*named)
    assert [answer["personas"] for answer in answers] == [[name] for name in "aabbccdd"]


async def test_unknown_tool_is_refused_with_the_names_of_all(url):
    async with connected(url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert await refusal(client, "recall", query="x") == f"unknown tool; the tools are {', '.join(names)}"


async def test_broken_store_is_told_in_a_sentence(store, url):
    async with connected(url) as client:
        await store.close()
        assert await refusal(client, "persona", action="list") == "the store is unavailable; try again later"


# Personas


async def create(client, persona, memory_type, content):
    return await call(
        client, "persona", action="create", persona_name=persona, memory_type=memory_type, content=content
    )


async def test_create_answers_what_was_kept(url):
    async with connected(url) as client:
        answer = await create(client, "jordan", "preference", "Likes short answers.")
    assert answer.pop("memory_id").startswith("mem_")
    assert answer == {
        "success": True,
        "persona": "jordan",
        "memory_type": "preference",
        "domain": "persona:jordan",
        "has_facts": False,
        "fact_count": 0,
    }


async def test_batch_of_facts_is_one_memory(url):
    facts = [
        {"subj": "Acme Corp", "pred": "industry", "val": "SaaS"},
        {"subj": "Acme Corp", "pred": "founded", "val": "2019", "conf": 0.9, "src": "website"},
    ]
    given = {"persona_name": "acme-corp", "memory_type": "context", "content": "Acme Corp company profile"}
    async with connected(url) as client:
        answer = await call(client, "persona", action="create", **given, facts=facts)
        prose = await call(client, "persona", action="load", persona_name="acme-corp", format="prose")
        compact = await call(client, "persona", action="load", persona_name="acme-corp")
    assert (answer["memory_type"], answer["has_facts"], answer["fact_count"]) == ("context", True, 2)
    (memory,) = prose["memories"]
    assert (memory["id"], memory["facts"]) == (answer["memory_id"], facts)
    assert memory["observation"] == "Acme Corp company profile"
    assert compact["memories"] == [
        "[context] Acme Corp company profile (Acme Corp industry: SaaS; Acme Corp founded: 2019)"
        " | persona:acme-corp | 2026-03-14"
    ]


async def test_tags_are_added_to_the_type(url):
    given = {"persona_name": "jordan", "memory_type": "preference", "content": "Prefers concise responses"}
    async with connected(url) as client:
        await call(client, "persona", action="create", **given, tags=["communication", "preference", " "])
        prose = await call(client, "persona", action="load", persona_name="jordan", format="prose")
    assert prose["memories"][0]["tags"] == ["preference", "communication"]


async def test_limit_is_per_persona(url):
    async with connected(url) as client:
        for persona, content in [("acme", "one"), ("jordan", "two"), ("acme", "three"), ("jordan", "four")]:
            await create(client, persona, "context", content)
        answer = await call(client, "persona", action="load", names=["acme", "jordan"], limit=1)
    assert [line.partition(" | ")[0] for line in answer["memories"]] == ["[context] three", "[context] four"]


async def test_load_is_compact(url):
    async with connected(url) as client:
        await create(client, "jordan", "identity", "Full name is\nJordan Example.")
        await create(client, "acme", "context", "Sells kettles.")
        await create(client, "jordan", "constraint", "Never called before nine.")
        answer = await call(client, "persona", action="load", names=["acme", "jordan"])
    estimate = answer.pop("token_estimate")
    assert answer == {
        "personas": ["acme", "jordan"],
        "memory_count": 3,
        "memories": [
            "[context] Sells kettles. | persona:acme | 2026-03-15",
            "[constraint] Never called before nine. | persona:jordan | 2026-03-16",
            "[identity] Full name is Jordan Example. | persona:jordan | 2026-03-14",
        ],
    }
    assert estimate["compact"] == 48  # 190 characters
    saved = (estimate["prose"] - estimate["compact"]) * 100 // estimate["prose"]
    assert saved > 50
    assert estimate["savings"] == f"{saved}%"


async def test_load_as_prose_or_both(url):
    async with connected(url) as client:
        memory_id = (await create(client, "jordan", "identity", "Full name is Jordan Example."))["memory_id"]
        prose = await call(client, "persona", action="load", persona_name="jordan", format="prose")
        both = await call(client, "persona", action="load", persona_name="jordan", format="both")
    whole = {
        "id": memory_id,
        "timestamp": "2026-03-14T12:00:00.000Z",
        "observation": "Full name is Jordan Example.",
        "domain": "persona:jordan",
        "task_type": "identity",
        "outcome": "success",
        "tags": ["identity"],
    }
    compact = "[identity] Full name is Jordan Example. | persona:jordan | 2026-03-14"
    assert prose["memories"] == [whole]
    assert both["memories"] == [whole | {"compact": compact}]
    assert prose["token_estimate"] == {"prose": both["token_estimate"]["prose"]}
    assert sorted(both["token_estimate"]) == ["compact", "prose", "savings"]


async def test_unknown_persona_is_empty(url):
    async with connected(url) as client:
        assert await call(client, "persona", action="load", persona_name="nobody") == {
            "personas": ["nobody"],
            "memory_count": 0,
            "token_estimate": {"prose": 0, "compact": 0, "savings": "0%"},
            "memories": [],
        }


async def test_personas_are_listed(url):
    async with connected(url) as client:
        for persona in ("maya", "acme", "maya"):
            await create(client, persona, "context", "x")
        answer = await call(client, "persona", action="list")
    assert answer["personas"] == [
        {"name": "maya", "domain": "persona:maya", "memory_count": 2, "last_updated": "2026-03-16T12:00:00.000Z"},
        {"name": "acme", "domain": "persona:acme", "memory_count": 1, "last_updated": "2026-03-15T12:00:00.000Z"},
    ]


NAME = "a persona's name is up to 64 lower case letters a to z, digits, hyphens and underscores"


@pytest.mark.parametrize(
    "arguments, problem",
    [
        ({}, "action: Field required"),
        ({"action": "drop"}, "action: Input should be 'list', 'load' or 'create'"),
        ({"action": "load"}, "name the personas to load, as persona_name or as names"),
        ({"action": "load", "names": ["maya", "Otto"]}, NAME),
        ({"action": "load", "names": ["maya"], "limit": 0}, "limit: Input should be greater than or equal to 1"),
        ({"action": "load", "name": "maya"}, "name: Extra inputs are not permitted"),
        ({"action": "create", "content": "x"}, "persona_name is missing; the memory belongs to a persona"),
        ({"action": "create", "persona_name": "no body", "memory_type": "context", "content": "x"}, NAME),
        ({"action": "create", "persona_name": "maya", "memory_type": "context"}, "a memory needs content"),
        (
            {"action": "create", "persona_name": "maya", "content": "x"},
            "memory_type is missing; it is one of identity, preference, philosophy, constraint, context, interest",
        ),
        (
            {"action": "create", "persona_name": "maya", "facts": [{"subj": "a", "pred": "b", "val": 1, "conf": 2}]},
            "facts.0.conf: Input should be less than or equal to 1",
        ),
    ],
)
async def test_mistake_is_told_in_a_sentence(url, arguments, problem):
    async with connected(url) as client:
        assert await refusal(client, "persona", **arguments) == problem


# Memory


async def test_what_is_remembered_is_found(url):
    async with connected(url) as client:
        for caller, agent, content in [(ANA, "maya", "Ana wants tea."), (BEN, "maya", "tea"), (ANA, "otto", "tea")]:
            await call(client, "memory_remember", content=content, caller=caller, agent=agent)
        (found,) = (await call(client, "memory_search", query="tea", caller="+1 202-555-0101", agent="maya"))["results"]
        everything = await call(client, "memory_search", query="tea")
        first = await call(client, "memory_search", query="tea", limit=1)
    assert (found["title"], found["snippet"]) == ("Note", "Ana wants tea.")
    assert found["tags"] == ["agent:maya", f"caller:{ANA}"]
    assert (len(everything["results"]), len(first["results"])) == (3, 1)


async def test_one_document_is_forgotten(url):
    async with connected(url) as client:
        ids = [
            (await call(client, "memory_remember", content="tea", caller=ANA, agent="maya"))["document_id"]
            for _ in range(2)
        ]
        assert await call(client, "memory_forget", document_id=ids[0]) == {"success": True, "forgotten": 1}
        assert await refusal(client, "memory_forget", document_id=ids[0]) == f"no document {ids[0]}"
        left = (await call(client, "memory_search", query="tea"))["results"]
    assert [result["document_id"] for result in left] == ids[1:]


async def test_one_agent_forgets_a_caller(url):
    async with connected(url) as client:
        for caller, agent in [(ANA, "maya"), (ANA, "maya"), (ANA, "otto"), (BEN, "maya")]:
            await call(client, "memory_remember", content="tea", caller=caller, agent=agent)
        assert await call(client, "memory_forget", caller=ANA, agent="maya") == {"success": True, "forgotten": 2}
        left = (await call(client, "memory_search", query="tea"))["results"]
    assert sorted(result["tags"] for result in left) == [
        ["agent:maya", f"caller:{BEN}"],
        ["agent:otto", f"caller:{ANA}"],
    ]


NUMBER = "caller must be a phone number with country code, like +12025550100"
WHAT = "give document_id, or caller and agent"


@pytest.mark.parametrize(
    "tool, arguments, problem",
    [
        ("search", {"query": "tea", "caller": "Ana"}, NUMBER),
        ("search", {"query": "tea", "limit": 101}, "limit: Input should be less than or equal to 100"),
        ("remember", {"content": "tea", "caller": "2025550101", "agent": "maya"}, NUMBER),
        (
            "remember",
            {"content": "", "caller": ANA, "agent": "maya"},
            "content: String should have at least 1 character",
        ),
        ("remember", {"content": "tea", "caller": ANA}, "agent: Field required"),
        ("forget", {}, WHAT),
        ("forget", {"caller": ANA}, WHAT),
        ("forget", {"document_id": "x", "caller": ANA}, WHAT),
        ("forget", {"document_id": "x", "caller": ANA, "agent": "maya"}, "no document x"),
    ],
)
async def test_memory_says_what_it_needs(url, tool, arguments, problem):
    async with connected(url) as client:
        assert await refusal(client, f"memory_{tool}", **arguments) == problem


# Tokens bound to one agent and caller


@pytest.fixture
async def bound(url, store):
    """A token bound to maya and Ana, the id of a note about her, and ids of notes about others."""
    _, text = await TokenTable(store).create(TokenScope.MCP, agent="maya", caller=ANA)
    notes = NoteMemory(store)
    ids = [await notes.remember("tea", caller=who, agent=agent) for who, agent in ((BEN, "maya"), (ANA, "otto"))]
    own = await notes.remember("tea with milk", caller=ANA, agent="maya")
    for name in ("maya", "otto"):
        await PersonaStore(store).create(name, "preference", "Speaks slowly", [], [])
    return {"Authorization": f"Bearer {text}"}, own, ids


async def test_bound_token_finds_its_caller_alone(url, bound):
    headers, own, _ = bound
    async with connected(url, headers=headers) as client:
        for arguments in ({}, {"caller": BEN, "agent": "otto"}, {"caller": "not a number"}):
            found = (await call(client, "memory_search", query="tea", **arguments))["results"]
            assert [result["document_id"] for result in found] == [own]


async def test_bound_token_writes_for_its_caller_alone(url, bound, store):
    headers, own, _ = bound
    async with connected(url, headers=headers) as client:
        made = await call(client, "memory_remember", content="coffee", caller=BEN, agent="otto")
        assert (await store.get(made["document_id"])).tags == tags_of(ANA, "maya")
        await call(client, "memory_pin", title="Milk", caller=BEN, agent="otto")
        assert [pin["title"] for pin in (await call(client, "memory_pins"))["pins"]] == ["Milk"]
        assert await PinnedTopicStore(store).pinned("otto", BEN) == []


async def test_bound_token_deletes_only_what_is_of_its_caller(url, bound, store):
    headers, own, others = bound
    async with connected(url, headers=headers) as client:
        for other in others:
            assert await refusal(client, "memory_forget", document_id=other) == f"no document {other}"
        for arguments in ({}, {"document_id": ""}):  # not everything by accident
            assert await refusal(client, "memory_forget", **arguments) == WHAT
        await call(client, "memory_forget", document_id=own)
        await call(client, "memory_remember", content="coffee")
        refused = "this token may only forget what its agent remembers of its caller"
        for arguments in ({"caller": BEN, "agent": "otto"}, {"caller": BEN}, {"caller": ANA, "agent": "otto"}):
            assert await refusal(client, "memory_forget", **arguments) == refused
        assert (await call(client, "memory_forget", caller=ANA, agent="maya"))["forgotten"] == 1
        assert [(await store.get(other)).id for other in others] == others


async def test_bound_token_reads_the_persona_of_its_agent(url, bound):
    headers, _, _ = bound
    async with connected(url, headers=headers) as client:
        assert (await call(client, "persona", action="load", persona_name="maya"))["memory_count"] == 1
        for arguments in (
            {"action": "list"},
            {"action": "load", "persona_name": "otto"},
            {"action": "load", "persona_name": "maya", "names": ["otto"]},
            {"action": "create", "persona_name": "maya", "memory_type": "preference", "content": "Shouts"},
        ):
            assert await refusal(client, "persona", **arguments) == "this token may only load the persona maya"


async def test_bound_token_is_not_asked_for_agent_and_caller(url, bound):
    headers, _, _ = bound
    async with connected(url, headers=headers) as client:
        listed = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
        assert not any(
            {"agent", "caller"} & {*schema["properties"], *schema.get("required", ())} for schema in listed.values()
        )
        async with connected(url) as admin:
            whole = {tool.name: tool.input_schema for tool in (await admin.list_tools()).tools}
        assert {"agent", "caller"} < set(whole["memory_remember"]["required"])


# Pinned topics


@pytest.fixture
def pins(store):
    return PinnedTopicStore(store)


@pytest.fixture
async def pin_url(store, pins):
    door = McpEndpoint(PersonaStore(store), NoteMemory(store), pins, auth_of(store), NoCalls())
    async with serve_on_loopback(Starlette(routes=door.routes())) as address:
        yield f"{address}/mcp"


async def test_topic_is_pinned_listed_and_unpinned(pin_url, pins):
    whose = {"caller": "+1 202-555-0101", "agent": "maya"}
    async with connected(pin_url) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        given = {"about": "A house", "status": "Listed", "open_items": ["Find a buyer"]}
        pinned = (await call(client, "memory_pin", title="Orlando sale", **given, **whose))["pin"]
        assert await call(client, "memory_pins", **whose) == {"pins": [pinned]}
        assert await call(client, "memory_pins", caller=BEN, agent="maya") == {"pins": []}
        await call(client, "memory_pin", title="Orlando sale", status="Sold", closed=True, **whose)
        assert await call(client, "memory_pins", **whose) == {"pins": []}
        [closed] = (await call(client, "memory_pins", closed=True, **whose))["pins"]
        assert await call(client, "memory_unpin", topic=closed["id"], **whose) == {"success": True}
    assert names[-3:] == ["memory_pins", "memory_pin", "memory_unpin"]
    assert {name: pinned[name] for name in given} == given and pinned["state"] == "open" and pinned["calls"] == 0
    assert [event["text"] for event in closed["history"]] == ["Listed", "Sold"]
    assert await pins.topics("maya", ANA) == []


@pytest.mark.parametrize(
    "tool, arguments, problem",
    [
        ("pins", {"caller": "Ana", "agent": "maya"}, NUMBER),
        ("pins", {"caller": ANA}, "agent: Field required"),
        ("pin", {"title": "x" * 81, "caller": ANA, "agent": "maya"}, "a title may have at most 80 characters"),
        (
            "unpin",
            {"topic": "Orlando sale", "caller": ANA, "agent": "maya"},
            "no pinned topic with this title for this caller and agent",
        ),
    ],
)
async def test_pin_tools_say_what_they_need(pin_url, tool, arguments, problem):
    async with connected(pin_url) as client:
        assert await refusal(client, f"memory_{tool}", **arguments) == problem
