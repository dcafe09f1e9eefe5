"""Credentials of API requests: who is admitted where, and how guesses are limited."""

import logging

import orjson
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.history import api_tokens
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.logs import BURST_SECONDS
from gateway.settings import Secret
from gateway.web.auth import GUESS_SECONDS, MAX_GUESSES, Authenticator, GuessThrottle, bearer_token
from gateway.web.request import json_endpoint

ADMIN, KEY = "the-admin-token", "the-store-key"
STORE, READ = TokenScope.STORE, TokenScope.READ


def request(address="192.0.2.1", path="/v1/sessions/some-id", **headers):
    named = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "GET", "path": path, "headers": named, "client": (address, 4711)})


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=api_tokens.SCHEMA) as store:
        yield store


@pytest.fixture
def auth(store):
    return Authenticator(Secret(ADMIN), Secret(KEY), TokenTable(store))


async def refused(auth, asked, *scopes):
    with pytest.raises(HTTPException) as refusal:
        await auth.admit(asked, *scopes)
    return refusal.value


@pytest.mark.parametrize(
    "headers, actor",
    [
        ({"X-API-Key": ADMIN}, "admin"),
        ({"Authorization": f"Bearer {ADMIN}"}, "admin"),
        ({"Authorization": f"bearer  {KEY} "}, "store-key"),
        ({"X-API-Key": "wrong", "Authorization": f"Bearer {ADMIN}"}, "admin"),
    ],
)
async def test_key_in_either_header_names_the_actor(auth, headers, actor):
    asked = request(**{name.replace("-", "_"): value for name, value in headers.items()})
    assert (await auth.admit(asked, STORE)).actor == asked.state.actor == actor


@pytest.mark.parametrize("headers", [{}, {"Authorization": f"Basic {ADMIN}"}, {"X_API_Key": ""}, {"X_API_Key": "x"}])
async def test_anything_else_is_401(auth, headers):
    refusal = await refused(auth, request(**headers), STORE)
    assert (refusal.status_code, refusal.headers) == (401, {"WWW-Authenticate": "Bearer"})


async def test_store_key_opens_document_paths_alone(auth):
    assert (await refused(auth, request(x_api_key=KEY), READ)).status_code == 401
    assert (await refused(auth, request(x_api_key=KEY))).status_code == 401


async def test_unset_keys_open_nothing(store):
    auth = Authenticator(Secret(""), None, TokenTable(store))
    assert (await refused(auth, request(x_api_key="", authorization="Bearer "), STORE)).status_code == 401


@pytest.mark.parametrize("scope", TokenScope)
@pytest.mark.parametrize(
    "needed", [(), (READ,), (STORE, READ), (TokenScope.MCP,), (TokenScope.OUTBOUND,), (TokenScope.LLM,)]
)
async def test_scope_decides(auth, store, scope, needed):
    token, text = await TokenTable(store).create(scope, agent="maya" if scope is TokenScope.LLM else "")
    asked = request(authorization=f"Bearer {text}")
    if scope in (TokenScope.ADMIN, *needed):
        assert (await auth.admit(asked, *needed)).actor == asked.state.actor == token.id
    else:
        refusal = await refused(auth, asked, *needed)
        text = f"this token has the scope {scope}; the scope {' or '.join([*needed, 'admin'])} is needed"
        assert (refusal.status_code, refusal.detail) == (403, text)


async def test_bound_token_carries_its_agent_and_caller(auth, store):
    _, text = await TokenTable(store).create(TokenScope.MCP, agent="maya", caller="+12025550101")
    access = await auth.admit(request(x_api_key=text), TokenScope.MCP)
    assert (access.agent, access.caller) == ("maya", "+12025550101")


async def test_revoked_token_says_so_and_is_no_guess(auth, store):
    table = TokenTable(store)
    token, text = await table.create(READ)
    await table.revoke(token.id)
    for _ in range(MAX_GUESSES + 1):
        refusal = await refused(auth, request(x_api_key=text), READ)
        assert (refusal.status_code, refusal.detail) == (401, "this token is revoked; create another one")


async def test_right_token_passes_after_many_guesses(auth, store):
    _, text = await TokenTable(store).create(READ)
    statuses = [(await refused(auth, request(x_api_key="wrong"), READ)).status_code for _ in range(MAX_GUESSES + 2)]
    assert statuses == [401] * MAX_GUESSES + [429] * 2
    assert (await auth.admit(request(x_api_key=ADMIN), READ)).actor == "admin"
    assert (await auth.admit(request(x_api_key=text), READ)).scope == READ
    assert (await refused(auth, request(x_api_key="wrong", address="192.0.2.2"), READ)).status_code == 401


async def test_request_without_a_credential_is_no_guess(auth):
    assert {(await refused(auth, request(), READ)).status_code for _ in range(MAX_GUESSES + 1)} == {401}


async def test_endpoint_gets_the_actor_and_answers_refusals_as_json(auth):
    async def show(asked: Request) -> Response:
        return JSONResponse({"actor": asked.state.actor})

    endpoint = json_endpoint(show, auth, READ)
    assert orjson.loads((await endpoint(request(x_api_key=ADMIN))).body) == {"actor": "admin"}
    for _ in range(MAX_GUESSES):
        refusal = await endpoint(request(x_api_key="wrong"))
        assert (refusal.status_code, orjson.loads(refusal.body)) == (401, {"detail": "missing or wrong token"})
    assert (await endpoint(request(x_api_key="wrong"))).headers["Retry-After"] == str(int(GUESS_SECONDS))


# Guesses


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def throttle(clock):
    return GuessThrottle(now=clock)


def test_guesses_are_limited_for_a_minute(throttle, clock):
    for _ in range(MAX_GUESSES):
        assert throttle.refusal(request(), "wrong").status_code == 401
        clock.now += 1
    limited = throttle.refusal(request(), "wrong")
    assert (limited.status_code, limited.headers) == (429, {"Retry-After": str(int(GUESS_SECONDS) - MAX_GUESSES)})
    clock.now += GUESS_SECONDS - MAX_GUESSES
    assert throttle.refusal(request(), "wrong").status_code == 401


def test_one_subscriber_is_one_address(throttle):
    for number in range(MAX_GUESSES):
        throttle.refusal(request(f"2001:db8::{number}"), "wrong")
    assert throttle.refusal(request("2001:db8::ffff"), "wrong").status_code == 429
    assert throttle.refusal(request("2001:db8:0:1::1"), "wrong").status_code == 401


def test_addresses_are_bounded(throttle):
    for number in range(3000):
        throttle.refusal(request(f"10.0.{number // 256}.{number % 256}"), "wrong")
    assert len(throttle._guesses) == 1000


def test_refusals_are_logged_once_per_burst(throttle, clock, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(20):
        throttle.refusal(request(x_api_key="guessed-token"), "wrong")
    clock.now += BURST_SECONDS
    throttle.refusal(request(), "wrong")
    lines = [(record.getMessage(), record.peer, record.path) for record in caplog.records]
    assert lines == [("credential refused", "192.0.2.1", "/v1/sessions")] * 2
    assert caplog.records[1].left_out == 19 and "guessed-token" not in caplog.text


def test_other_statuses_have_no_challenge(throttle):
    refusal = throttle.refusal(request(), "used", status=403)
    assert (refusal.status_code, refusal.headers) == (403, None)


@pytest.mark.parametrize("header, token", [("Bearer x", "x"), ("bearer  x ", "x"), ("Basic x", ""), ("", "")])
def test_bearer_token_is_read(header, token):
    assert bearer_token(request(authorization=header).headers) == token
