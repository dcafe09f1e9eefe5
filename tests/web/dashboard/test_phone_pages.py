"""The browser phone's pages without a browser: who may call, how often, and what they may follow."""

import asyncio
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from websockets.asyncio.client import connect

from gateway.settings import Secret
from gateway.web.auth import MAX_GUESSES
from gateway.web.softphone import GuestLink, TokenCodec
from tests.fakes.deepgram import FakeDeepgram
from tests.stage import ADMIN, CALLER, patient_client, running_gateway, until, until_it

OTHER = "+12025550199"


@dataclass
class Booth:
    """A gateway, and an operator who is logged in to its dashboard."""

    http: httpx.AsyncClient
    engine: FakeDeepgram
    form_token: str = ""
    followers: list[asyncio.Task[None]] = field(default_factory=list)

    async def log_in(self) -> None:
        await self.http.post("/login", data={"token": ADMIN})
        page = (await self.http.get("/phone")).text
        [self.form_token, *_] = re.findall(r'name="form_token" value="([^"]*)"', page)

    async def call(self, **form: str) -> httpx.Response:
        return await self.http.post("/phone/call", data={"form_token": self.form_token, **form})

    async def link(self, **form: str) -> str:
        answer = await self.http.post("/phone/link", data={"form_token": self.form_token, **form})
        assert answer.status_code == 201, answer.text
        return answer.text

    async def call_once(self, sealed: str, **headers: str) -> httpx.Response:
        return await self.http.post("/phone/guest/call", data={"pass": sealed}, headers=headers)

    async def talk(self, placed: dict[str, Any], *said: str, function: str = "") -> None:
        """The whole call, on its media socket. The agent calls the function last."""
        url = str(self.http.base_url).replace("http", "ws")
        async with connect(f"{url.rstrip('/')}{placed['media_path']}", compression=None, proxy=None) as socket:
            content = {
                "accountSid": placed["account_id"],
                "callSid": placed["call_id"],
                "streamSid": "stream",
                "tracks": ["inbound"],
                "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
                "customParameters": {"token": placed["token"]},
            }
            await socket.send(orjson.dumps({"event": "start", "streamSid": "stream", "start": content}).decode())
            conversation = await self.engine.next_conversation()
            await conversation.configured()
            for text in said:
                await conversation.user_says(text)
            if function:
                await conversation.call_functions([function])
            await socket.send('{"event": "stop", "streamSid": "stream", "stop": {}}')
            await socket.wait_closed()

    async def follow(self, placed: dict[str, Any]) -> list[dict[str, Any]]:
        """What happens in the call, growing."""
        events: list[dict[str, Any]] = []
        begun = asyncio.Event()

        async def read() -> None:
            async with self.http.stream("GET", "/phone/events", headers=bearer(placed), timeout=None) as answer:
                assert answer.status_code == 200
                async for line in answer.aiter_lines():
                    begun.set()
                    if line.startswith("data: "):
                        events.append(orjson.loads(line.removeprefix("data: ")))

        self.followers.append(asyncio.create_task(read()))
        await begun.wait()
        return events

    async def memory(self, placed: dict[str, Any]) -> dict[str, Any]:
        return (await self.http.get("/phone/memory", headers=bearer(placed))).json()


def bearer(placed: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {placed['watch']}"}


def pass_of(link: str) -> str:
    return link.partition("#")[2]


@pytest.fixture
def level() -> str:
    """The trust level of attested calls, which those of the browser phone are."""
    return "everything"


@pytest.fixture
async def booth(tmp_path, level):
    (tmp_path / "gateway.toml").write_text(f'[agents.maya.memory.trust]\nattested = "{level}"\n')
    async with FakeDeepgram() as engine:
        environ = {
            "DATA_DIR": str(tmp_path / "data"),
            "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
            "GATEWAY_ADMIN_TOKEN": ADMIN,
            "DEEPGRAM_API_KEY": "dg-test-key",
            "DEEPGRAM_AGENT_URL": engine.url,
            "MEMORY_VECTORS": "false",
        }
        async with (
            running_gateway(environ, tmp_path) as url,
            patient_client(url) as http,
        ):
            booth = Booth(http, engine)
            await booth.log_in()
            yield booth
            for follower in booth.followers:
                follower.cancel()
            await asyncio.gather(*booth.followers, return_exceptions=True)


async def test_page_may_use_the_microphone_and_no_other_may(booth: Booth):
    allowed = {path: (await booth.http.get(path)).headers["permissions-policy"] for path in ("/phone", "/calls")}
    assert "microphone=(self)" in allowed["/phone"]
    assert "microphone=()" in allowed["/calls"]
    assert "microphone=(self)" in (await booth.http.get("/phone/guest")).headers["permissions-policy"]


async def test_call_is_followed_and_remembered(booth: Booth):
    placed = (await booth.call(caller=CALLER, called="maya")).json()
    assert await booth.memory(placed) == {"facts": [], "calls": []}
    events = await booth.follow(placed)
    await booth.talk(placed, "My name is Anna. I prefer a text message.")
    await until(lambda: {"answered", "turn", "hangup", "finished"} <= {event["event"] for event in events})
    known = await until_it(lambda: _facts(booth, placed))
    assert any("Anna" in fact for fact in known["facts"])
    assert len(known["calls"]) == 1


async def _facts(booth: Booth, placed: dict[str, Any]) -> dict[str, Any]:
    known = await booth.memory(placed)
    return known if known["facts"] else {}


async def test_pass_follows_its_own_call_alone(booth: Booth):
    mine, other = [(await booth.call(caller=caller)).json() for caller in (CALLER, OTHER)]
    events = await booth.follow(mine)
    await booth.talk(other, "My secret is red.")
    await booth.talk(mine, "My name is Anna.")
    await until(lambda: "finished" in {event["event"] for event in events})
    assert [event["text"] for event in events if event.get("speaker") == "caller"] == ["My name is Anna."]
    assert len({event["session"] for event in events}) == 1


async def test_number_to_call_as_is_named(booth: Booth):
    placed = (await booth.call(caller=OTHER)).json()
    await booth.talk(placed, "My name is Anna.")

    async def named(caller: str) -> str:
        form = {"form_token": booth.form_token, "caller": caller}
        return (await booth.http.post("/phone/name", data=form)).text

    assert await until_it(lambda: named("+1 202 555 0199")) == "Anna"
    assert [await named(caller) for caller in (CALLER, "Anna", "")] == ["", "", ""]


async def test_pass_shows_no_words_of_functions(booth: Booth):
    """They are for operators: a function may return more than the agent says."""
    placed = (await booth.call(caller=CALLER)).json()
    events = await booth.follow(placed)
    await booth.talk(placed, "Goodbye.", function="end_call")
    await until(lambda: "function_finished" in {event["event"] for event in events})
    [finished] = [event for event in events if event["event"] == "function_finished"]
    assert finished["ok"] and not {"arguments", "result"} & finished.keys()


async def test_withheld_number_is_told_nothing(booth: Booth):
    placed = (await booth.call(caller=CALLER, withheld="1")).json()
    await booth.talk(placed, "My name is Anna.")
    assert await booth.memory(placed) == {"facts": [], "calls": []}


WRONG = {"Authorization": "Bearer wrong"}


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer x", f"Bearer {ADMIN}", f"Basic {ADMIN}"])
@pytest.mark.parametrize("path", ["/phone/events", "/phone/memory"])
async def test_nothing_is_followed_without_a_pass(booth: Booth, path: str, header: str):
    assert (await booth.http.get(path, headers={"Authorization": header})).status_code == 401


async def test_guesses_are_limited_and_the_right_link_works(booth: Booth):
    sealed = pass_of(await booth.link(caller=CALLER))
    answers = [await booth.call_once(f"guess-{number}") for number in range(MAX_GUESSES + 1)]
    answers += [await booth.http.get(path, headers=WRONG) for path in ("/phone/events", "/phone/memory")]
    assert [answer.status_code for answer in answers] == [403] * MAX_GUESSES + [429] * 3
    assert all(answer.headers["retry-after"] for answer in answers[MAX_GUESSES:])
    assert (await booth.call_once(sealed)).status_code == 201


async def test_wrong_number_is_explained(booth: Booth):
    answer = await booth.call(caller="Anna")
    assert (answer.status_code, answer.text) == (400, "caller must be a phone number like +12025550143, or omitted")


async def test_link_is_for_one_call(booth: Booth):
    link = await booth.link(caller=CALLER)
    assert "/phone/guest#" in link and "2025550143" not in link
    booth.http.cookies.clear()
    placed = (await booth.call_once(pass_of(link))).json()
    again = await booth.call_once(pass_of(link))
    assert (again.status_code, again.text) == (403, "This link has already been used. Ask for a new one.")
    await booth.talk(placed, "My name is Anna.")
    assert "unverified" not in str((await until_it(lambda: _facts(booth, placed)))["facts"])


@pytest.mark.parametrize(("level", "calls"), [("none", 0), ("name", 0), ("summaries", 1)])
async def test_guest_sees_what_the_level_of_the_call_allows(booth: Booth, calls: int):
    placed = (await booth.call_once(pass_of(await booth.link(caller=CALLER)))).json()
    await booth.talk(placed, "My name is Anna.", "I always want tea.")

    async def is_idle() -> bool:
        state = (await booth.http.get("/health")).json()
        return state["calls"] == state["endings"] == 0

    await until_it(is_idle)
    shown = await booth.memory(placed)
    assert (shown["facts"], len(shown["calls"])) == ([], calls)
    assert all(text.endswith(" (unverified)") for call in shown["calls"] for text in call["about"])


async def test_of_many_who_use_a_link_at_once_one_is_let_in(booth: Booth):
    sealed = pass_of(await booth.link(caller=CALLER))
    answers = await asyncio.gather(*(booth.call_once(sealed) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] + [403] * 7


async def test_link_from_the_interface(booth: Booth):
    answer = await booth.http.post("/v1/phone/links", json={"caller": CALLER}, headers={"X-API-Key": ADMIN})
    assert (answer.status_code, answer.json()["seconds"]) == (201, 86400)
    assert (await booth.call_once(pass_of(answer.json()["url"]))).status_code == 201
    assert (await booth.http.post("/v1/phone/links", json={})).status_code == 401


@pytest.mark.parametrize("sealed", ["", "x", TokenCodec(Secret(ADMIN)).seal(GuestLink(CALLER, "", 1))])
async def test_link_that_is_not_ours_or_too_old(booth: Booth, sealed: str):
    answer = await booth.call_once(sealed)
    assert (answer.status_code, answer.text) == (403, "This link has expired or is incomplete. Ask for a new one.")


async def test_no_other_site_spends_a_link(booth: Booth):
    sealed = pass_of(await booth.link(caller=CALLER))
    assert (await booth.call_once(sealed, Origin="https://evil.example")).status_code == 403
    assert (await booth.call_once(sealed)).status_code == 201


async def test_link_is_not_spent_when_nobody_can_answer(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    environ = {"DATA_DIR": str(tmp_path / "data"), "GATEWAY_ADMIN_TOKEN": ADMIN, "MEMORY_VECTORS": "false"}
    async with (
        running_gateway(environ, tmp_path) as url,
        patient_client(url) as http,
    ):
        answer = await http.post("/v1/phone/links", json={}, headers={"X-API-Key": ADMIN})
        sealed = pass_of(answer.json()["url"])
        refusals = [await http.post("/phone/guest/call", data={"pass": sealed}) for _ in range(2)]
    assert [refusal.status_code for refusal in refusals] == [503, 503]
