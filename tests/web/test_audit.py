"""Requests that change or export something leave an entry in the audit log, before they are answered."""

from typing import Any

import pytest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from gateway.app import create_app
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.audit_log import SCHEMA, AuditEntry, AuditFilter, AuditLog
from gateway.memory.stores.sqlite import SqliteStore
from gateway.settings import Secret, Settings
from gateway.web.audit import MAX_REFUSED_LOGINS, REPEAT_SECONDS, ROUTES, RequestAudit, audit_note
from tests.web.conftest import TOKEN, Visitor

BEARER = {"Authorization": f"Bearer {TOKEN}"}

NOT_LOGGED = {
    "POST /twilio/incoming": "carrier",
    "POST /twilio/resume": "carrier",
    "POST /twilio/status": "carrier",
    "POST /twilio/outbound": "carrier",
    "POST /telnyx/webhook": "carrier",
    "POST /elevenlabs/initiation": "voice engine",
    "POST /elevenlabs/post-call": "voice engine",
    "POST /elevenlabs/llm/chat/completions": "voice engine",
    "POST /vapi/server": "voice engine",
    "POST /retell/inbound": "voice engine",
    "POST /retell/events": "voice engine",
    "POST /v1/chat/completions": "voice engine",
    "POST /v1/documents": "adds a document",
    "POST /v1/documents/ingest": "adds a document",
    "POST /v1/documents/{id}/extract-facts": "changes nothing",
    "POST /v1/query": "search",
    "POST /agents/{name}/preview": "changes nothing",
    "POST /calls/find": "search",
    "POST /callers/find": "search",
    "POST /audit/find": "search",
    "POST /phone/name": "search",
    "POST /live/events": "answers only GET",
    "POST /v1/live": "answers only GET",
    "POST /phone/events": "answers only GET",
    "POST /v1/widget/tokens": "one for each call of a website's user",
    "POST /widget/call": "a call",
    "POST /widget/events": "changes nothing",
}


async def entries(visitor: Visitor, **chosen: str) -> list[AuditEntry]:
    """Oldest first."""
    return (await AuditLog(visitor.store, Secret(TOKEN)).page(AuditFilter(**chosen), limit=100))[::-1]


async def test_every_changing_route_is_logged_or_listed(tmp_path):
    settings = Settings(
        data_dir=tmp_path,
        deepgram_api_key=Secret("key"),
        memory_vectors=False,
        twilio_account_sid="AC1",
        twilio_auth_token=Secret("token"),
    )
    app = create_app(settings)
    async with app.router.lifespan_context(app):
        served = {
            f"{method} {route.path}"
            for route in app.router.routes
            if isinstance(route, Route)
            for method in route.methods or ("POST",)
        }
    assert set(ROUTES) <= served
    changing = {name for name in served if name.split()[0] in ("POST", "PUT", "PATCH", "DELETE")}
    assert changing - set(ROUTES) == set(NOT_LOGGED)


async def test_actions_of_the_dashboard(visitor: Visitor):
    caller, uuid = await visitor.caller_address(), visitor.session.uuid
    await visitor.get(f"{caller}/export.json")
    await visitor.post(f"{caller}/facts", agent="maya", fact="unknown", text="Likes tea.")
    await visitor.post(f"{caller}/facts", agent="maya", fact="unknown", do="forget")
    await visitor.post(f"{caller}/pins", agent="maya", title="The bike", do="pin")
    await visitor.post(f"{caller}/pins", agent="maya", title="The bike", do="unpin")
    await visitor.post(f"{caller}/state", agent="maya", key="seat", value="12A")
    await visitor.post(f"/calls/{uuid}/retry")
    await visitor.post(f"/calls/{uuid}/revert")
    await visitor.post(f"/live/{uuid}/say", words="Nobody must read this here.")
    await visitor.post(f"/live/{uuid}/end")
    await visitor.get(f"/live/{uuid}/listen.wav")
    await visitor.post("/phone/link", caller="+12025550143", called="maya")
    await visitor.post(f"{caller}/forget", sure="yes")
    await visitor.post("/logout")
    found = await entries(visitor)
    assert [(entry.action, entry.outcome) for entry in found] == [
        ("login", "done"),
        ("caller.export", "done"),
        ("fact.correct", "refused"),
        ("fact.erase", "refused"),
        ("topic.pin", "done"),
        ("topic.unpin", "done"),
        ("state.correct", "refused"),
        ("call.retry", "done"),
        ("call.revert", "refused"),
        ("call.say", "refused"),
        ("call.end", "refused"),
        ("call.listen", "refused"),
        ("link.create", "done"),
        ("caller.erase", "done"),
        ("logout", "done"),
    ]
    hashed = AuditLog(visitor.store, Secret(TOKEN)).hash_of(visitor.session.caller)
    assert {entry.caller_hash for entry in found if entry.action.startswith(("caller", "topic", "fact"))} == {hashed}
    assert {entry.session for entry in found if entry.action.startswith("call.")} == {f"voice-session:{uuid}"}
    assert {entry.address for entry in found} == {"127.0.0.1"}
    text = str(await visitor.store.fetch("SELECT * FROM audit_log"))
    assert not any(word in text for word in (visitor.session.caller[1:9], "2025550143", "bike", "tea", "Nobody", "12A"))
    assert (await AuditLog(visitor.store, Secret(TOKEN)).verify()).problem == ""


async def test_recording_is_one_entry_for_all_ranges(visitor: Visitor):
    for start in (0, 100, 200):
        answer = await visitor.http.get(
            f"/calls/{visitor.session.uuid}/sound.wav", headers={"Range": f"bytes={start}-{start + 99}"}
        )
        assert answer.status_code == 206
    [entry] = await entries(visitor, action="recording")
    assert (entry.action, entry.session) == ("recording.export", f"voice-session:{visitor.session.uuid}")


async def test_failed_logins_are_logged(stranger: Visitor):
    await stranger.http.get("/login")
    await stranger.http.get("/login", params={"token": "wrong"})
    await stranger.http.post("/login", data={"token": "wrong"})
    assert [(entry.actor, entry.outcome) for entry in await entries(stranger, action="login")] == [
        ("unknown", "refused")
    ] * 2


async def test_requests_without_credentials_leave_no_entry(stranger: Visitor):
    for method, path in (name.split() for name in ROUTES if "login" not in name):
        answer = await stranger.http.request(method, path.format(who="x", id="x", name="maya"), json={})
        assert answer.status_code in (401, 403), path
    assert await entries(stranger) == []


async def test_documents_and_the_phone(stranger: Visitor):
    created = await stranger.http.post("/v1/documents", json={"content": "A secret plan."}, headers=BEARER)
    path = f"/v1/documents/{created.json()['id']}"
    await stranger.http.put(path, json={"content": "A better plan."}, headers=BEARER)
    await stranger.http.delete(path, headers=BEARER)
    await stranger.http.delete(path, headers=BEARER)
    call = {"caller": "+12025550143", "called": "maya"}
    assert (await stranger.http.post("/v1/phone", json=call, headers=BEARER)).status_code == 201
    link = (await stranger.http.post("/v1/phone/links", json=call, headers=BEARER)).json()["url"]
    used = await stranger.http.post("/phone/guest/call", data={"pass": link.partition("#")[2]})
    assert used.status_code == 201, used.text
    found = await entries(stranger)
    assert [(entry.action, entry.outcome, entry.actor) for entry in found] == [
        ("document.change", "done", "admin"),
        ("document.delete", "done", "admin"),
        ("document.delete", "refused", "admin"),
        ("phone.call", "done", "admin"),
        ("link.create", "done", "admin"),
        ("link.use", "done", "guest"),
    ]
    assert {entry.item for entry in found[:3]} == {created.json()["id"]}
    assert {entry.caller for entry in found[3:]} == {"…0143"}
    assert found[3].session.startswith("voice-session:")


async def test_token_is_the_actor(stranger: Visitor):
    token, text = await TokenTable(stranger.store).create(TokenScope.READ)
    headers = {"Authorization": f"Bearer {text}"}
    assert (await stranger.http.get(f"/v1/sessions/{stranger.session.uuid[:8]}", headers=headers)).status_code == 200
    assert (await stranger.http.delete("/v1/documents/x", headers=headers)).status_code == 403
    found = await entries(stranger)
    assert [(entry.action, entry.outcome, entry.actor) for entry in found] == [
        ("call.export", "done", token.id),
        ("document.delete", "refused", token.id),
    ]
    assert found[0].session == stranger.session.id


async def test_refused_outbound_call_is_logged(stranger: Visitor):
    answer = await stranger.http.post("/v1/outbound/call", json={"to": "+12025550143"}, headers=BEARER)
    assert answer.status_code == 503  # no carrier is set up
    [entry] = await entries(stranger)
    assert (entry.action, entry.outcome) == ("call.dial", "failed")


async def test_mcp_tools_that_write_are_logged(stranger: Visitor):
    async def use(tool: str, **arguments: Any) -> Any:
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        headers = BEARER | {"Accept": "application/json, text/event-stream"}
        return (await stranger.http.post("/mcp", json=request, headers=headers)).json()["result"]

    ana = {"caller": "+12025550143", "agent": "maya"}
    await use("memory_search", query="tea", **ana)
    kept = await use("memory_remember", content="Likes tea.", **ana)
    await use("memory_pin", title="The bike", **ana)
    await use("memory_unpin", topic="The boat", **ana)
    await use("memory_forget", document_id=kept["structuredContent"]["document_id"])
    await use("memory_forget", **ana)
    await use("persona", action="create", persona_name="sandra", memory_type="preference", content="Likes tea.")
    found = await entries(stranger)
    assert [(entry.action, entry.outcome, entry.caller, entry.agent) for entry in found] == [
        ("memory.add", "done", "…0143", "maya"),
        ("topic.pin", "done", "…0143", "maya"),
        ("topic.unpin", "refused", "…0143", "maya"),
        ("document.delete", "done", "", ""),
        ("caller.erase", "done", "…0143", "maya"),
        ("persona.add", "done", "", ""),
    ]
    assert found[-1].item and "sandra" not in str(found)


# The wrapper by itself


class Clock:
    time = 0.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
async def store(tmp_path):
    opened = await SqliteStore.open(tmp_path / "gateway.db", schema=SCHEMA)
    yield opened
    await opened.close()


async def _ask(app: Any, path: str, path_params: dict[str, str], method: str = "POST", **state: str) -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": ("192.0.2.7", 1), "state": state}
    await app({**scope, "path_params": path_params}, None, send)
    return sent


async def test_entry_is_stored_before_the_answer_is_sent(store):
    audit = AuditLog(store, Secret(TOKEN))
    seen = []

    async def end(request: Any) -> Response:
        audit_note().agent = "maya"
        return PlainTextResponse("ended")

    [route] = RequestAudit(audit, str).wrap([Route("/live/{id}/end", end, methods=["POST"])])

    async def send(message: Any) -> None:
        seen.append((message["type"], await audit.count(AuditFilter())))

    scope = {"type": "http", "method": "POST", "path": "/live/x/end", "headers": [], "path_params": {"id": "x"}}
    await route.app({**scope, "state": {"actor": "tok_7"}}, None, send)
    assert seen[0] == ("http.response.start", 1)
    [entry] = await audit.page(AuditFilter(), limit=9)
    assert (entry.actor, entry.agent, entry.session) == ("tok_7", "maya", "voice-session:x")


async def test_handler_that_raises_is_logged_as_failed(store):
    async def end(request: Any) -> Response:
        request.state.actor = "admin"
        raise RuntimeError("broken")

    audit = AuditLog(store, Secret(TOKEN))
    [route] = RequestAudit(audit, str).wrap([Route("/live/{id}/end", end, methods=["POST"])])
    with pytest.raises(RuntimeError):
        await _ask(route.app, "/live/x/end", {"id": "x"})
    assert [entry.outcome for entry in await audit.page(AuditFilter(), limit=9)] == ["failed"]


async def test_strangers_cannot_fill_the_log(store):
    async def refuse(request: Any) -> Response:
        return PlainTextResponse("wrong", 401)

    audit, clock = AuditLog(store, Secret(TOKEN)), Clock()
    [route] = RequestAudit(audit, str, clock).wrap([Route("/login", refuse, methods=["POST"])])
    for _ in range(MAX_REFUSED_LOGINS + 5):
        await _ask(route.app, "/login", {})
    assert await audit.count(AuditFilter()) == MAX_REFUSED_LOGINS
    clock.time = 60.0
    await _ask(route.app, "/login", {})
    assert await audit.count(AuditFilter()) == MAX_REFUSED_LOGINS + 1


async def test_recording_is_logged_again_later_and_for_others(store):
    async def play(request: Any) -> Response:
        return PlainTextResponse("RIFF")

    audit, clock = AuditLog(store, Secret(TOKEN)), Clock()
    [route] = RequestAudit(audit, str, clock).wrap([Route("/calls/{id}/sound.wav", play)])
    for actor, time in (("ada", 0.0), ("ada", 1.0), ("ben", 1.0), ("ada", REPEAT_SECONDS)):
        clock.time = time
        await _ask(route.app, "/calls/x/sound.wav", {"id": "x"}, "GET", actor=actor)
    assert [entry.actor for entry in await audit.page(AuditFilter(), limit=9)] == ["ada", "ben", "ada"]
