"""The gateway's own phone: who may place a call, and that a call needs no carrier."""

import asyncio
import sys

import pytest

from gateway.errors import SettingsError
from gateway.settings import Secret
from gateway.simulate.softphone import phone_line
from gateway.web.softphone import GuestLink, TokenCodec, WatchToken
from tests.fakes.deepgram import FakeDeepgram
from tests.stage import ADMIN, CALLER, patient_client, running_gateway, until, until_it


@pytest.fixture
async def engine():
    async with FakeDeepgram() as engine:
        yield engine


@pytest.fixture
async def url(tmp_path, engine):
    """A gateway without carriers and allowed callers."""
    environ = {
        "DATA_DIR": str(tmp_path / "data"),
        "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "DEEPGRAM_API_KEY": "dg-test-key",
        "DEEPGRAM_AGENT_URL": engine.url,
        "MEMORY_VECTORS": "false",
    }
    async with running_gateway(environ, tmp_path) as url:
        yield url


async def place(url, body, **headers):
    async with patient_client(url) as http:
        return await http.post("/v1/phone", content=body, headers=headers)


@pytest.mark.parametrize("headers", [{}, {"X-API-Key": "guess"}, {"Authorization": "Bearer guess"}])
async def test_only_the_admin_may_call(url, headers):
    assert (await place(url, b"{}", **headers)).status_code == 401


@pytest.mark.parametrize("headers", [{"X-API-Key": ADMIN}, {"Authorization": f"Bearer {ADMIN}"}])
async def test_a_call_gets_a_token_of_its_own(url, headers):
    first, second = [(await place(url, b"", **headers)).json() for _ in range(2)]
    assert first["media_path"] == "/phone/media"
    assert len({first["token"], second["token"], first["call_id"], second["call_id"]}) == 4


@pytest.mark.parametrize(
    "body, problem",
    [
        (b"{", "the body must be JSON"),
        (b"[]", "the body must be an object"),
        (b'{"caller": 5}', "caller must be text"),
        (b'{"caller": "Anna"}', "caller must be a phone number like +12025550143, or omitted"),
        (b'{"called": "otto"}', "called must be a phone number or an agent's name: maya"),
    ],
)
async def test_a_wrong_wish_is_explained(url, body, problem):
    answer = await place(url, body, **{"X-API-Key": ADMIN})
    assert (answer.status_code, answer.json()) == (400, {"detail": problem})


async def test_a_call_goes_both_ways(url, engine, tmp_path):
    """The caller need not be allowed, is remembered under the number they chose, and hangs up."""
    heard = bytearray()
    async with phone_line(url, Secret(ADMIN), caller=CALLER) as line:
        frames = iter([b"\x05" * 160] * 60)
        talking = asyncio.create_task(line.talk(lambda: next(frames, None), heard.extend, speed=10))
        conversation = await engine.next_conversation()
        await conversation.configured()
        await conversation.user_says("My name is Anna.")
        await conversation.agent_says("Hello Anna.")
        await talking
    assert b"\x05" * 160 in conversation.heard
    assert heard.strip(b"\xff")
    [archive] = await until(lambda: list((tmp_path / "archive").glob("*.txt")))
    assert "CALLER: My name is Anna.\n" in archive.read_text()


async def test_a_lost_phone_is_a_finished_call(url, engine, tmp_path):
    async with phone_line(url, Secret(ADMIN), caller=CALLER):
        conversation = await engine.next_conversation()
        await conversation.configured()
        await conversation.user_says("My name is Anna.")
    assert await until(lambda: list((tmp_path / "archive").glob("*.txt")))


async def test_a_mistake_is_one_line(url):
    with pytest.raises(SettingsError, match="rejected the admin token; set GATEWAY_ADMIN_TOKEN"):
        async with phone_line(url, Secret("wrong")):
            pass
    with pytest.raises(
        SettingsError, match=r"no gateway answers at http://127.0.0.1:9 \(connection refused\); start it "
    ):
        async with phone_line("http://127.0.0.1:9", Secret(ADMIN)):
            pass


async def test_a_gateway_without_engine_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    environ = {"DATA_DIR": str(tmp_path / "data"), "GATEWAY_ADMIN_TOKEN": ADMIN, "MEMORY_VECTORS": "false"}
    async with running_gateway(environ, tmp_path) as url:
        answer = await place(url, b"{}", **{"X-API-Key": ADMIN})
        async with patient_client(url) as http:
            assert await until_it(lambda: _engine(http)) == "not set up"
    assert answer.status_code == 503
    assert "no voice engine; set DEEPGRAM_API_KEY" in answer.json()["detail"]


async def _engine(http):
    return (await http.get("/health")).json()["engine"]


# Guest links

NOW = 1_770_000_000.0
TOKENS = TokenCodec(Secret("token"))
LINK = GuestLink("+12025550143", "maya", int(NOW) + 60)


def test_link_can_be_read_back():
    assert TOKENS.read(GuestLink, TOKENS.seal(LINK), NOW) == LINK


def test_link_is_encrypted():
    assert "2025550143" not in TOKENS.seal(LINK)
    assert TokenCodec(Secret("another token")).read(GuestLink, TOKENS.seal(LINK), NOW) is None


def test_two_links_differ():
    assert TOKENS.seal(LINK) != TOKENS.seal(GuestLink(LINK.caller, LINK.called, LINK.expires))


def test_expired_link_is_rejected():
    assert TOKENS.read(GuestLink, TOKENS.seal(LINK), LINK.expires) is None


def test_link_is_no_watch_token():
    assert TOKENS.read(WatchToken, TOKENS.seal(LINK), NOW) is None


@pytest.mark.parametrize("token", ["", "x", "é", "=" * 9, TOKENS.seal(LINK)[:-2], TOKENS.seal(LINK)[::-1], "a" * 5000])
def test_damaged_link_is_rejected(token: str):
    assert TOKENS.read(GuestLink, token, NOW) is None
