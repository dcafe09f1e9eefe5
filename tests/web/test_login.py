"""What a security reviewer tries: every page without a login, forged forms, guessing, framing."""

import re

import httpx
import pytest

from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.settings import Secret
from gateway.web.auth import MAX_GUESSES
from gateway.web.login import HEADERS, SealedParam
from gateway.web.login_sessions import LoginLinks
from tests.web.conftest import ORIGIN, TOKEN, Visitor

UUID = "7c67f6e4-be3e-4cb1-ab7f-8aa6094b65fd"
PAGES = [
    *("/", "/calls", f"/calls/{UUID}", "/callers", "/callers/x", "/agents", "/agents/maya", "/agents/maya/versions/x"),
    *("/phone", "/setup", "/audit", "/tokens", "/vitals"),
]
FILES = [
    f"/calls/{UUID}/sound.wav",
    "/callers/x/export.json",
    "/calls/export.csv",
    "/calls/export.json",
    f"/live/{UUID}/name",
    "/setup/steps",
    "/setup/docs/twilio.md",
    "/static/page.js",
    "/static/live.js",
    "/live/events",
    f"/live/{UUID}/listen.wav",
    "/static/player.js",
]
ACTIONS = [
    f"/live/{UUID}/say",
    f"/live/{UUID}/end",
    "/logout",
    "/calls/find",
    f"/calls/{UUID}/revert",
    f"/calls/{UUID}/retry",
    "/callers/find",
    "/callers/x/facts",
    "/callers/x/pins",
    "/callers/x/state",
    "/callers/x/forget",
    "/agents/maya/preview",
    "/agents/maya/save",
    "/agents/maya/restore",
    "/audit/find",
    "/tokens/create",
    "/tokens/x/revoke",
    "/phone/call",
    "/phone/link",
]
PUBLIC = {"/login", "/static/x", "/phone/guest", "/phone/guest/call"}
"""Shown to everybody, or guarded by something else than a login: tests of their own say by what."""


def link() -> dict[str, str]:
    return {"code": LoginLinks(Secret(TOKEN)).make()}


async def test_link_logs_in_once(stranger: Visitor):
    code = link()
    answer = await stranger.http.get("/login", params=code)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "Max-Age=604800",
        "Path=/",
        "SameSite=strict",
    }
    assert (await stranger.get("/calls")).status_code == 200
    stranger.http.cookies.clear()
    again = await stranger.get("/login", params=code)
    assert again.status_code == 401 and "This login link has been used or has expired." in again.text
    assert "gateway login-link" in again.text and "set-cookie" not in again.headers


async def test_used_link_says_what_to_do_after_many_guesses(stranger: Visitor):
    answers = [await stranger.get("/login", params={"code": f"guess-{number}"}) for number in range(MAX_GUESSES + 2)]
    assert [answer.status_code for answer in answers] == [401] * MAX_GUESSES + [429] * 2
    assert all("gateway login-link" in answer.text and "used or has expired" in answer.text for answer in answers)


async def test_used_link_of_a_logged_in_browser_leads_to_the_dashboard(stranger: Visitor):
    code = link()
    await stranger.http.get("/login", params=code)
    assert (await stranger.http.get("/login", params=code)).headers["location"] == "/"


async def test_preview_of_a_link_does_not_use_it(stranger: Visitor):
    code = link()
    assert (await stranger.http.head("/login", params=code)).status_code == 200
    assert (await stranger.http.get("/login", params=code)).status_code == 303


async def test_link_with_the_token_itself_is_refused(stranger: Visitor):
    answer = await stranger.get("/login", params={"token": TOKEN})
    assert answer.status_code == 401 and "gateway login-link" in answer.text and TOKEN not in answer.text


async def test_link_on_another_site_goes_on_by_a_page_of_ours(stranger: Visitor):
    """A browser would withhold the strict cookie along a redirect that another site began."""
    answer = await stranger.http.get("/login", params=link(), headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200 and 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert "set-cookie" in answer.headers


async def test_cookie_is_secure_behind_https(stranger: Visitor):
    answer = await stranger.http.get("/login", params=link(), headers={"X-Forwarded-Proto": "https"})
    assert answer.headers["set-cookie"].startswith("__Host-gateway_visit=")
    assert "; Secure" in answer.headers["set-cookie"]


async def test_token_can_be_pasted(stranger: Visitor):
    answer = await stranger.http.post("/login", data={"token": f" {TOKEN}\n"}, headers={"Origin": ORIGIN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", PAGES)
async def test_no_page_without_login(stranger: Visitor, path: str):
    answer = await stranger.get(path)
    assert (answer.status_code, answer.headers["location"], answer.text) == (303, "/login", "")


@pytest.mark.parametrize("path", FILES)
async def test_no_file_without_login(stranger: Visitor, path: str):
    assert (await stranger.http.get(path)).status_code == 401


@pytest.mark.parametrize("path", ACTIONS)
async def test_no_action_without_login(stranger: Visitor, path: str):
    assert (await stranger.http.post(path, data={"form_token": "x", "sure": "yes"})).status_code == 401


@pytest.mark.parametrize("path", ACTIONS)
async def test_no_action_without_a_form_of_ours(visitor: Visitor, path: str):
    assert (await visitor.post(path, form_token="forged", sure="yes")).status_code == 403


@pytest.mark.parametrize("path", ACTIONS)
async def test_no_action_from_another_site(visitor: Visitor, path: str):
    answer = await visitor.post(path, origin="https://evil.example", sure="yes")
    assert answer.status_code == 403 and "another site" in answer.text


@pytest.mark.parametrize("headers", [{"Origin": "http://["}, {"Host": "["}, {"X-Forwarded-Host": "["}], ids=str)
async def test_malformed_address_fails_no_page(stranger: Visitor, headers: dict[str, str]):
    for path in ("/login", "/phone/guest/call"):
        answer = await stranger.http.post(path, data={"token": "guess"}, headers=headers)
        assert answer.status_code in (401, 403)


async def test_every_route_is_guarded(stranger: Visitor):
    """Finds a new page that has no guard."""
    routes = [
        route
        for route in stranger.http._transport.app.routes
        if any(part in _file_of(route) for part in ("/web/dashboard/", "/web/login.py"))
    ]
    paths = {re.sub(r"{\w+}", "x", route.path) for route in routes} - PUBLIC
    assert len(paths) >= 15
    for path in paths:
        methods = next(route.methods for route in routes if re.sub(r"{\w+}", "x", route.path) == path)
        answer = await stranger.http.request("POST" if "POST" in (methods or ()) else "GET", path)
        assert (path, answer.status_code) in ((path, 401), (path, 303))


def _file_of(route) -> str:
    endpoint = getattr(route, "endpoint", None)
    code = getattr(endpoint, "__code__", None) or getattr(type(endpoint).__call__, "__code__", None)
    return code.co_filename if code else ""


@pytest.mark.parametrize("value", ["", "1", "zz.zz.zz", "ffffffffff.abc.deadbeef", "ffffffffff.é"])
async def test_forged_cookie_opens_nothing(stranger: Visitor, value: str):
    answer = await stranger.http.get("/calls", headers={"Cookie": f"gateway_visit={value}".encode()})
    assert answer.status_code == 303


async def test_wrong_tokens_are_limited_and_the_right_one_passes(stranger: Visitor):
    answers = [await stranger.http.post("/login", data={"token": "wrong"}) for _ in range(MAX_GUESSES + 2)]
    assert [answer.status_code for answer in answers] == [401] * MAX_GUESSES + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert "Too many wrong tokens" in answers[-1].text and "Missing or wrong token." in answers[0].text
    assert (await stranger.http.post("/login", data={"token": TOKEN})).status_code == 303


async def test_admin_token_of_the_table_logs_in_until_it_is_revoked(stranger: Visitor):
    table = TokenTable(stranger.store)
    token, text = await table.create(TokenScope.ADMIN)
    assert (await stranger.http.post("/login", data={"token": text})).status_code == 303
    assert (await stranger.get("/calls")).status_code == 200
    await stranger.post(f"/tokens/{token.id}/revoke", sure="yes")
    assert (await stranger.get("/calls")).status_code == 303


async def test_tokens_of_other_scopes_do_not_open_the_dashboard(stranger: Visitor):
    _, text = await TokenTable(stranger.store).create(TokenScope.READ)
    answer = await stranger.http.post("/login", data={"token": text})
    assert answer.status_code == 403 and "This token has the scope read; the scope admin is needed." in answer.text


@pytest.mark.parametrize("path", ["/login", "/calls", "/static/style.css", "/nothing-here", "/calls/unknown"])
async def test_answers_carry_the_headers(visitor: Visitor, path: str):
    headers = (await visitor.get(path)).headers
    if path != "/nothing-here":
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "unsafe-inline" not in headers["content-security-policy"]


async def test_stolen_cookie_is_dead_after_logout(visitor: Visitor):
    cookies = dict(visitor.http.cookies)
    assert (await visitor.post("/logout")).headers["location"] == "/login"
    visitor.http.cookies.update(cookies)
    assert (await visitor.get("/calls")).status_code == 303


async def test_log_out_everywhere_ends_other_browsers(visitor: Visitor):
    transport = visitor.http._transport
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as other:
        await other.post("/login", data={"token": TOKEN})
        assert (await other.get("/calls")).status_code == 200
        await visitor.post("/logout", everywhere="yes")
        assert (await other.get("/calls")).status_code == 303


async def test_unknown_address_is_a_page_of_the_site(visitor: Visitor):
    answer = await visitor.get("/nonsense/of/mine")
    assert answer.status_code == 404 and "<h1>Page not found</h1>" in answer.text
    assert 'aria-label="Pages"' in answer.text and "Content-Security-Policy" in answer.headers
    answer = await visitor.http.get("/nonsense", headers={"Accept": "*/*"})
    assert answer.text == "Page not found. The address may be mistyped, or the page has moved."


async def test_wrong_method_is_a_page_of_the_site(visitor: Visitor):
    answer = await visitor.get(f"/calls/{visitor.session.uuid}/revert")
    assert answer.status_code == 405 and "<h1>Method not allowed</h1>" in answer.text
    assert 'aria-label="Pages"' in answer.text and "All calls" in answer.text
    assert answer.headers["allow"] == "POST" and "Content-Security-Policy" in answer.headers
    answer = await visitor.http.delete("/calls")
    assert (answer.status_code, answer.headers["content-type"]) == (405, "text/plain; charset=utf-8")
    assert answer.text == "Method not allowed. This address does not accept DELETE requests."


async def break_receipts(visitor: Visitor) -> None:
    """So that no code can read them."""
    await visitor.store.run(lambda connection: connection.execute("UPDATE call_receipts SET receipt = '{'"))


async def test_failed_page_is_a_page_of_the_site(visitor: Visitor):
    await break_receipts(visitor)
    answer = await visitor.get(f"/calls/{visitor.session.uuid}")
    assert answer.status_code == 500 and "<h1>This page failed</h1>" in answer.text
    assert 'aria-label="Pages"' in answer.text and "Traceback" not in answer.text and "JSON" not in answer.text


async def test_failure_outside_of_the_pages_shows_no_traceback(visitor: Visitor):
    await break_receipts(visitor)
    transport = httpx.ASGITransport(visitor.http._transport.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        answer = await http.get(f"/v1/sessions/{visitor.session.uuid}", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (answer.status_code, answer.text) == (500, "This page failed. See the log for details.")


@pytest.mark.parametrize(
    "path, page",
    [("/agents/maya/preview", "/agents/maya"), ("/agents/maya/save", "/agents/maya"), ("/tokens/create", "/tokens")],
)
async def test_answer_to_a_form_can_be_opened_again(visitor: Visitor, path: str, page: str):
    answer = await visitor.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, page)


async def test_unknown_address_shows_strangers_no_menu(stranger: Visitor):
    answer = await stranger.get("/nonsense")
    assert answer.status_code == 404 and 'aria-label="Pages"' not in answer.text and 'href="/login"' in answer.text


@pytest.mark.parametrize(
    "path, title, back",
    [("/calls/5b0c1f0e-6d0f-4c55-9a54-2f7e3f0c8d11", "Call", "All calls"), ("/callers/x", "Caller", "All callers")],
)
async def test_missing_thing_leads_back_to_its_list(visitor: Visitor, path: str, title: str, back: str):
    answer = await visitor.get(path)
    assert answer.status_code == 404 and f"<h1>{title} not found</h1>" in answer.text and back in answer.text


async def test_numbers_and_searches_stay_out_of_addresses(visitor: Visitor):
    pages = [await visitor.page(path) for path in ("/calls", "/callers", f"/calls/{visitor.session.uuid}")]
    addresses = re.findall(r'(?:href|action)="([^"]+)"', "".join(pages))
    assert not any("2025550" in address for address in addresses)
    found = await visitor.post("/calls/find", find="brake pads +12025550143")
    assert found.headers["location"].startswith("/calls?find=") and "brake" not in found.headers["location"]


# Sealed values


@pytest.mark.parametrize("text", ["+12025550143", "Bremsbeläge \N{BICYCLE}", "x" * 200])
def test_sealed_text_comes_back(text):
    params = SealedParam(Secret("token"))
    assert params.unseal(params.seal(text)) == text
    assert params.seal(text) == params.seal(text) and text not in params.seal(text)


@pytest.mark.parametrize("param", ["", "x", "äöü", "a" * 40, "../../etc/passwd"])
def test_forged_params_are_not_unsealed(param):
    assert SealedParam(Secret("token")).unseal(param) is None
    assert SealedParam(Secret("other")).unseal(SealedParam(Secret("token")).seal("text")) is None
