"""Calls from other websites: who gets a token, what it opens, and whose memory the call has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from websockets.asyncio.client import connect

from gateway.cli.main import main
from gateway.settings import Secret
from gateway.web.auth import MAX_GUESSES
from gateway.web.softphone import TokenCodec, WidgetToken
from gateway.web.widget import TOKENS_PER_USER, site_origin
from tests.stage import ADMIN, CALLER, Stage, make_carrier, patient_client, staged

SITE = "https://shop.example"
TOKENS = TokenCodec(Secret(ADMIN))


@dataclass
class Site:
    """A website, its server and a visitor's browser."""

    stage: Stage
    http: httpx.AsyncClient

    async def token(self, **fields: Any) -> str:
        answer = await self.ask(**fields)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    async def ask(self, **fields: Any) -> httpx.Response:
        return await self.stage.http.post("/v1/widget/tokens", json={"origin": SITE, **fields})

    async def call(self, token: str, origin: str = SITE) -> httpx.Response:
        return await self.http.post("/widget/call", data={"token": token}, headers={"Origin": origin} if origin else {})

    @contextlib.asynccontextmanager
    async def talking(self, token: str, **parameters: str) -> AsyncIterator[tuple[dict[str, Any], Any]]:
        """What the script gets, and the engine's side of the call."""
        placed = (await self.call(token)).json()
        url = self.stage.url.replace("http", "ws") + placed["media_path"]
        async with connect(url, compression=None, proxy=None) as socket:
            start = {
                "accountSid": placed["account_id"],
                "callSid": placed["call_id"],
                "streamSid": "stream",
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": {"token": placed["token"], **parameters},
            }
            await socket.send(orjson.dumps({"event": "start", "streamSid": "stream", "start": start}).decode())
            conversation = await self.stage.engine.next_conversation()
            await conversation.configured()
            yield placed, conversation
            await socket.send('{"event": "stop", "streamSid": "stream", "stop": {}}')
            await socket.wait_closed()

    async def talk(self, *turns: str, parameters: dict[str, str] | None = None, **fields: Any) -> str:
        """One whole call; returns the agent's prompt."""
        async with self.talking(await self.token(**fields), **(parameters or {})) as (_, conversation):
            for text in turns:
                await conversation.user_says(text)
        await self.stage.idle()
        return str(conversation.prompt)


@pytest.fixture
def agent() -> str:
    return ""


@pytest.fixture
def environ() -> dict[str, str]:
    return {}


@pytest.fixture
async def site(tmp_path: Path, agent: str, environ: dict[str, str]) -> AsyncIterator[Site]:
    (tmp_path / "gateway.toml").write_text(agent)
    async with staged(tmp_path, make_carrier("twilio"), **environ) as stage, patient_client(stage.url) as http:
        yield Site(stage, http)


# Tokens


async def test_token_is_for_two_minutes(site: Site) -> None:
    assert (await site.ask()).json()["seconds"] == 120
    assert (await site.ask(seconds=5)).json()["seconds"] == 5


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"origin": "shop.example"}, "origin must be your website's origin, like https://www.example.com"),
        ({"origin": "https://shop.example/page"}, "origin must be your website's origin, like https://www.example.com"),
        ({"agent": "bob"}, "no agent is named bob; the agents are maya"),
        ({"number": "5"}, "number must be a phone number like +12025550143, or omitted"),
        (
            {"number": CALLER, "user_identity": "7"},
            "a caller is remembered by user_identity or by number; give one of them",
        ),
        (
            {"user_identity": "null"},
            "user_identity must identify one user, in 160 characters; omit it for a visitor",
        ),
        (
            {"user_identity": "x" * 200},
            "user_identity must identify one user, in 160 characters; omit it for a visitor",
        ),
        ({"name": "Anna. {{memory}}"}, "name must be a person's name of up to 80 letters"),
        ({"seconds": 3600}, "seconds must be a number from 1 to 600"),
        (
            {"colour": "red"},
            "unknown field colour; known fields are agent, name, number, origin, seconds, user_identity",
        ),
    ],
)
async def test_wrong_token_request_is_explained(site: Site, fields: dict[str, Any], problem: str) -> None:
    answer = await site.ask(**fields)
    assert (answer.status_code, answer.json()) == (400, {"detail": problem})


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("https://Shop.Example", "https://shop.example"),
        ("https://shop.example:443/", "https://shop.example"),
        ("http://localhost:8080", "http://localhost:8080"),
        ("https://[::1]:8443", "https://[::1]:8443"),
        ("https://shop.example?x", None),
        ("https://user@shop.example", None),
        ("null", None),
        ("", None),
    ],
)
def test_origin_is_as_browsers_send_it(given: str, origin: str | None) -> None:
    assert site_origin(given) == origin


async def test_user_gets_few_tokens_a_minute(site: Site) -> None:
    answers = [await site.ask(user_identity="7") for _ in range(TOKENS_PER_USER + 1)]
    assert [answer.status_code for answer in answers] == [201] * TOKENS_PER_USER + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert (await site.ask(user_identity="8")).status_code == 201


# Calls


async def test_widget_token_is_for_one_call(site: Site) -> None:
    token = await site.token()
    answers = await asyncio.gather(*(site.call(token) for _ in range(5)))
    assert sorted(answer.status_code for answer in answers) == [201, 403, 403, 403, 403]
    used = next(answer for answer in answers if answer.status_code == 403)
    assert used.json() == {"detail": "this token was used"}
    assert {answer.headers["access-control-allow-origin"] for answer in answers} == {SITE}


@pytest.mark.parametrize(
    "origin", ["", "null", "http://shop.example", "https://shop.example.evil", "https://evil.example"]
)
async def test_token_is_refused_on_another_website(site: Site, origin: str, caplog: pytest.LogCaptureFixture) -> None:
    token = await site.token()
    answer = await site.call(token, origin)
    assert (answer.status_code, answer.json()) == (403, {"detail": "this token is for another website"})
    assert "access-control-allow-origin" not in answer.headers
    assert "widget used on another site" in caplog.messages
    assert (await site.call(token)).status_code == 201


async def test_expired_widget_token_is_refused(site: Site) -> None:
    answer = await site.call(TOKENS.seal(WidgetToken(SITE, "", "maya", "", "", 1)))
    assert (answer.status_code, answer.json()) == (403, {"detail": "this token has expired"})
    assert answer.headers["access-control-allow-origin"] == SITE


async def test_wrong_widget_tokens_are_guesses(site: Site) -> None:
    answers = [await site.call(token) for token in ("", "x", ADMIN, *map(str, range(MAX_GUESSES - 2)))]
    assert [answer.status_code for answer in answers] == [403] * MAX_GUESSES + [429]
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)


@pytest.mark.parametrize("environ", [{"CALLS_PER_CALLER": "1", "MAX_CALLS": "2"}])
async def test_limits_of_calls_apply_to_websites(site: Site) -> None:
    async with site.talking(await site.token(user_identity="7")):
        again = await site.token(user_identity="7")
        busy = await site.call(again)
        assert (busy.status_code, busy.json()) == (429, {"detail": "busy"})
        async with site.talking(await site.token(user_identity="8")):
            assert (await site.call(await site.token())).status_code == 429
    await site.stage.idle()
    assert (await site.call(again)).status_code == 201  # a refused call does not use the token up


async def test_transcript_goes_to_the_website_alone(site: Site) -> None:
    async with site.talking(await site.token(user_identity="anna@42")) as (placed, conversation):
        form, own = {"watch": placed["watch"], "since": ""}, {"Origin": SITE}
        for headers in ({}, {"Origin": "https://evil.example"}):
            assert (await site.http.post("/widget/events", data=form, headers=headers)).status_code == 403
        async with site.http.stream("POST", "/widget/events", data=form, headers=own, timeout=None) as answer:
            assert answer.headers["access-control-allow-origin"] == SITE
            lines = answer.aiter_lines()
            await anext(line async for line in lines if line == ": you are here")
            await conversation.user_says("My bike is red.")
            data = await anext(line async for line in lines if line.startswith("data: ") and "bike" in line)
    event = orjson.loads(data.removeprefix("data: "))
    assert {**event, "id": ""} == {"id": "", "event": "turn", "speaker": "caller", "text": "My bike is red."}


async def test_files_are_for_every_website(site: Site) -> None:
    for path in ("/widget.js", "/widget/audio.js"):
        answer = await site.http.get(path)
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
        assert answer.headers["access-control-allow-origin"] == "*"


# Memory


async def test_user_of_a_website_is_remembered(site: Site) -> None:
    first = await site.talk("I prefer walnuts.", user_identity="anna@42", name="Anna Lopez")
    assert first.endswith("The caller is logged in to the website as Anna Lopez.")
    assert "walnuts" in await site.talk(user_identity="anna@42")
    assert "walnuts" not in await site.talk(user_identity="anna@43")
    documents = await site.stage.documents(caller="integration_attribute:user_identity:anna@42")
    assert any("walnuts" in document["content"] for document in documents)


async def test_anonymous_visitor_leaves_nothing(site: Site, tmp_path: Path) -> None:
    await site.talk("My name is Xanthippe.", name="Xanthippe")
    assert site.stage.archives() == []
    assert (await site.stage.http.get("/v1/sessions")).json() == []
    assert not await asyncio.to_thread(_files_with, tmp_path, b"anthippe")


async def test_user_identity_is_never_a_phone_number(site: Site) -> None:
    await site.talk("I prefer walnuts.", number=CALLER)
    assert "walnuts" not in await site.talk("I prefer pecans.", user_identity=CALLER)
    call, conversation = await site.stage.dial()
    assert "walnuts" in conversation.prompt and "pecans" not in conversation.prompt
    await call.hang_up()


async def test_number_of_a_website_is_the_caller_on_the_phone(site: Site) -> None:
    call, conversation = await site.stage.dial()
    await conversation.user_says("I prefer walnuts.")
    await call.hang_up()
    await site.stage.idle()
    assert "walnuts" in await site.talk(number=CALLER)


@pytest.mark.parametrize(
    "agent", ['[agents.maya.memory.repeat_caller]\nidentifier_source = "integration_attribute:user_identity"\n']
)
async def test_page_cannot_name_another_user(site: Site) -> None:
    await site.talk("I prefer walnuts.", user_identity="anna")
    assert "walnuts" not in await site.talk(user_identity="eve", parameters={"user_identity": "anna"})
    assert "walnuts" not in await site.talk(parameters={"user_identity": "anna"})


@pytest.mark.parametrize("agent", ['[agents.maya.memory.trust]\nattested = "none"\n'])
async def test_agent_decides_what_users_of_a_website_open(site: Site) -> None:
    await site.talk("I prefer walnuts.", user_identity="anna")
    assert "walnuts" not in await site.talk(user_identity="anna")


async def test_user_of_a_website_can_be_erased(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await site.talk("I prefer walnuts.", user_identity="anna")
    monkeypatch.chdir(tmp_path)
    for name, folder in (("DATA_DIR", "data"), ("VOICE_SESSION_ARCHIVE_DIR", "archive")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    user = "integration_attribute:user_identity:anna"
    assert await asyncio.to_thread(main, ["memory", "forget", user, "--yes", "--verify", "walnuts"]) == 0
    assert site.stage.archives() == []
    assert "walnuts" not in await site.talk(user_identity="anna")


def _files_with(folder: Path, word: bytes) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and word in path.read_bytes()]
