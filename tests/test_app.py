"""The application from outside: what it refuses to start with, and what it answers once it runs."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

from gateway.app import create_app
from gateway.errors import SettingsError
from gateway.extras import how_to_install
from gateway.settings import Secret, Settings
from gateway.text import sensitive
from tests.redis_server import running_redis
from tests.stage import patient_client, running_gateway, until_it


def problem(folder, **fields):
    with pytest.raises(SettingsError) as raised:
        create_app(Settings(data_dir=folder / "data", folder=folder, **fields))
    return str(raised.value)


@pytest.fixture
async def http(tmp_path):
    """A client of a gateway with default settings."""
    environ = {"DATA_DIR": str(tmp_path / "data"), "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive")}
    async with running_gateway(environ, tmp_path) as url, patient_client(url) as http:
        yield http


# Mistakes


@pytest.mark.parametrize("inside, reason", [("", "File exists"), ("deep", "Not a directory")])
def test_record_dir_that_is_a_file_is_refused(tmp_path, inside, reason):
    (tmp_path / "calls").write_text("")
    folder = tmp_path / "calls" / inside
    expected = f"RECORD_DIR {folder} can't be used: {reason}; set RECORD_DIR to a folder that you own"
    assert problem(tmp_path, record_dir=folder) == expected


@pytest.mark.parametrize(
    "fields, message",
    [
        (
            {"allowed_callers": frozenset({"+12025550143", "2025550101"})},
            "ALLOWED_CALLERS: '2025550101' is not an E.164 number; write it like +12025550143",
        ),
        (
            {"telnyx_public_key": "e30="},
            "TELNYX_PUBLIC_KEY is not a base64 Ed25519 key; copy it from the Telnyx portal, Keys & Credentials",
        ),
        (
            {"agents": {"maya": {"prompt": "none.md"}}},
            "gateway.toml, [agents.maya]: prompt: there is no file none.md; create it, or name another",
        ),
    ],
    ids=["allowed callers", "public key", "prompt"],
)
def test_mistake_says_what_to_do(tmp_path, fields, message):
    assert problem(tmp_path, **fields) == message


def test_folder_of_another_user_is_refused(tmp_path):
    """As /tmp/voice-sessions, made by a user who waits for transcripts."""
    planted = tmp_path / "planted"
    planted.mkdir()
    if os.geteuid() == 0:
        os.chown(planted, 65534, 65534)
    else:
        planted = Path("/")
    told = "can't be used: it belongs to another user; set VOICE_SESSION_ARCHIVE_DIR to a folder that you own"
    assert problem(tmp_path, voice_session_archive_dir=planted) == f"VOICE_SESSION_ARCHIVE_DIR {planted} {told}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_link_of_another_user_is_refused(tmp_path):
    (tmp_path / "mine").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "mine")
    assert "another user" not in problem(tmp_path, voice_session_archive_dir=link, telnyx_public_key="e30=")
    os.chown(link, 65534, 65534, follow_symlinks=False)
    assert "it belongs to another user" in problem(tmp_path, voice_session_archive_dir=link)


def test_data_dir_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "data").write_text("")
    assert problem(tmp_path).startswith(f"DATA_DIR {tmp_path / 'data'} can't be used: ")


# Answers


async def test_health_of_a_bare_gateway(http):
    answer = await http.get("/health")
    state = answer.json()
    assert (answer.status_code, state.pop("loop_lag_ms") >= 0) == (200, True)
    assert state.pop("engine_state") in ("loading", "ready") and len(state.pop("instance")) == 12
    assert state == {
        "status": "ok",
        "calls": 0,
        "endings": 0,
        "engine": "local",
        "carriers": [],
        "store": "embedded",
    }


async def test_health_names_what_is_set_up(stage, carrier_name):
    state = (await stage.http.get("/health")).json()
    assert (state["engine"], state["carriers"]) == ("deepgram", [carrier_name])


async def test_health_counts_live_calls(stage):
    await stage.dial()
    assert (await stage.http.get("/health")).json()["calls"] == 1


async def test_health_lists_every_node(tmp_path):
    async with contextlib.AsyncExitStack() as stack:
        redis = await stack.enter_async_context(running_redis(tmp_path / "redis"))
        archive = {"VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"), "REDIS_URL": redis.url}
        environs = [{"DATA_DIR": str(tmp_path / name), **archive} for name in ("a", "b")]
        urls = [await stack.enter_async_context(running_gateway(environ, tmp_path)) for environ in environs]
        http = await stack.enter_async_context(patient_client())

        async def nodes(url):
            return (await http.get(f"{url}/health")).json().get("nodes", [])

        first = await until_it(lambda: nodes(urls[0]))
        assert await until_it(lambda: nodes(urls[1])) == first
        assert [(node["calls"], node["endings"]) for node in first] == [(0, 0), (0, 0)]
        assert len({node["node"] for node in first}) == 2
        assert (await http.get(f"{urls[0]}/health")).json()["redis"] == "ok"
        await redis.kill()

        async def redis_is_away():
            state = (await http.get(f"{urls[0]}/health")).json()
            return state["redis"] == "away" and "nodes" not in state

        async def metrics_show_it():  # of the process, so of both nodes here
            return "voice_gateway_redis_away 1.0" in (await http.get(f"{urls[0]}/metrics")).text

        await until_it(redis_is_away)
        await until_it(metrics_show_it)


async def test_gateway_is_ready_when_its_models_are_loaded(http):
    async def ready():
        answer = await http.get("/ready")
        assert answer.json() == {"ready": answer.status_code == 200}
        return answer.is_success

    await until_it(ready)
    assert (await http.get("/health")).json()["engine_state"] == "ready"


async def test_gateway_with_another_engine_is_ready_at_once(stage):
    answer = await stage.http.get("/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True})
    answer = await stage.http.get("/health/ready")  # as clients of Remem ask
    assert (answer.status_code, answer.json()["status"]) == (200, "healthy")


async def test_memory_of_the_first_caller_waits_for_no_patterns(tmp_path):
    """They take longer to compile than the engine's settings wait for memory."""
    sensitive._vocabularies.cache_clear()
    async with running_gateway({"DATA_DIR": str(tmp_path / "data")}, tmp_path):
        before = sensitive._vocabularies.cache_info().misses
        sensitive.without_sensitive("Ana waits for the kettle.")
        assert sensitive._vocabularies.cache_info().misses == before


def test_local_engine_without_its_packages_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "moonshine_voice", None)  # as if it were not installed
    expected = f"VOICE_ENGINE is local but its packages are missing; run: {how_to_install('local')}"
    assert problem(tmp_path, voice_engine="local") == expected


@pytest.mark.parametrize("address", ["redis://:s3cret@127.0.0.1:port/0", "redis://host/0?db=z", "redis://", "6379"])
def test_address_that_is_none_of_redis_is_refused(tmp_path, address):
    expected = "REDIS_URL is not an address of Redis; write it like redis://127.0.0.1:6379/0"
    assert problem(tmp_path, redis_url=Secret(address)) == expected


@pytest.mark.parametrize("path", ["/healthy", "/v1/nothing", "/twilio", "/call"])
async def test_unknown_path_is_not_found(http, path):
    assert (await http.get(path)).status_code == 404
