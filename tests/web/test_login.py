"""What a security reviewer tries: every page without a login, forged forms, guessing, framing."""

import re

import pytest

from gateway.web.login import HEADERS
from tests.web.conftest import ORIGIN, TOKEN, Visitor

UUID = "7c67f6e4-be3e-4cb1-ab7f-8aa6094b65fd"
PAGES = ["/", "/calls", f"/calls/{UUID}", "/callers", "/callers/x", "/phone", "/vitals"]
FILES = [
    f"/calls/{UUID}/sound.wav",
    "/callers/x/export.json",
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
    "/phone/call",
    "/phone/link",
]
PUBLIC = {"/login", "/static/x", "/phone/guest", "/phone/guest/call"}
"""Shown to everybody, or guarded by something else than a login: tests of their own say by what."""


async def test_link_logs_in_and_leaves_no_token(stranger: Visitor):
    answer = await stranger.http.get("/login", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "Max-Age=604800",
        "Path=/",
        "SameSite=strict",
    }
    assert TOKEN not in cookie
    assert (await stranger.get("/calls")).status_code == 200


async def test_link_on_another_site_goes_on_by_a_page_of_ours(stranger: Visitor):
    """A browser would withhold the strict cookie along a redirect that another site began."""
    answer = await stranger.http.get("/login", params={"token": TOKEN}, headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200 and 'http-equiv="refresh" content="0;url=/"' in answer.text
    assert "set-cookie" in answer.headers and TOKEN not in answer.text


async def test_cookie_is_secure_behind_https(stranger: Visitor):
    answer = await stranger.http.get("/login", params={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
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


async def test_every_route_is_guarded(stranger: Visitor):
    """A new page that nobody guards is found here."""
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


async def test_wrong_tokens_are_limited(stranger: Visitor):
    statuses = [(await stranger.http.get("/login", params={"token": "wrong"})).status_code for _ in range(7)]
    assert statuses == [401] * 5 + [429] * 2
    refused = await stranger.http.get("/login", params={"token": TOKEN})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")


@pytest.mark.parametrize("path", ["/login", "/calls", "/static/style.css", "/nothing-here", "/calls/unknown"])
async def test_answers_carry_the_headers(visitor: Visitor, path: str):
    headers = (await visitor.get(path)).headers
    if path != "/nothing-here":
        assert {name: headers[name] for name in HEADERS} == HEADERS
        assert "unsafe-inline" not in headers["content-security-policy"]


async def test_logout_ends_the_visit(visitor: Visitor):
    assert (await visitor.post("/logout")).headers["location"] == "/login"
    assert (await visitor.get("/calls")).status_code == 303


async def test_unknown_things_are_pages_too(visitor: Visitor):
    answer = await visitor.get("/calls/5b0c1f0e-6d0f-4c55-9a54-2f7e3f0c8d11")
    assert answer.status_code == 404 and "Call not found" in answer.text
    assert (await visitor.get("/callers/forged-address")).status_code == 404


async def test_numbers_and_searches_stay_out_of_addresses(visitor: Visitor):
    pages = [await visitor.page(path) for path in ("/calls", "/callers", f"/calls/{visitor.session.uuid}")]
    addresses = re.findall(r'(?:href|action)="([^"]+)"', "".join(pages))
    assert not any("2025550" in address for address in addresses)
    found = await visitor.post("/calls/find", find="brake pads +12025550143")
    assert found.headers["location"].startswith("/calls?find=") and "brake" not in found.headers["location"]
