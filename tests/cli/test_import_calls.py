"""`gateway import elevenlabs`, beside a running gateway, against a simulated account."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from tests.fakes.elevenlabs import AGENT_ID, API_KEY, FakeElevenLabs, conversation
from tests.stage import CALLER, Stage, make_carrier, staged

DAY = 86_400
AGENTS = f"""
[agents.maya]
prompt = "p.md"
elevenlabs_agent = "{AGENT_ID}"

[agents.other]
prompt = "p.md"
"""


@pytest.fixture
async def elevenlabs() -> AsyncIterator[FakeElevenLabs]:
    async with FakeElevenLabs().running() as made:
        yield made


@pytest.fixture
async def stage(tmp_path: Path, elevenlabs: FakeElevenLabs) -> AsyncIterator[Stage]:
    (tmp_path / "p.md").write_text("{{memory}}")
    (tmp_path / "gateway.toml").write_text(AGENTS)
    given = {"ALLOWED_CALLERS": f"{CALLER},*", **elevenlabs.settings()}
    async with staged(tmp_path, make_carrier("twilio"), **given) as made:
        elevenlabs.gateway_url = made.url
        yield made


@pytest.fixture
def gateway(
    tmp_path: Path, elevenlabs: FakeElevenLabs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    async def run(*arguments: str, **environ: str) -> Any:
        monkeypatch.chdir(tmp_path)
        given = {"DATA_DIR": str(tmp_path / "data"), "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive")}
        given |= {"ALLOWED_CALLERS": f"{CALLER},*", "MEMORY_VECTORS": "false", **elevenlabs.settings(), **environ}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        assert await asyncio.to_thread(main, ["import", "elevenlabs", "--json", *arguments]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def had(
    elevenlabs: FakeElevenLabs, name: str, *said: str, days_ago: float, number: str = CALLER, **fields: Any
) -> None:
    made = conversation(name, *(("user", words) for words in said), number=number, **fields)
    made["metadata"]["start_time_unix_secs"] = int(time.time() - days_ago * DAY)
    elevenlabs.account.conversations[name] = made


async def test_past_calls_are_remembered_once(stage: Stage, elevenlabs: FakeElevenLabs, gateway: Any) -> None:
    account = elevenlabs.account
    account.page_size = 2
    had(elevenlabs, "conv_new", "I live in Miami now.", days_ago=2)
    had(elevenlabs, "conv_old", "I live in Orlando. My dog is called Rex.", days_ago=30)
    had(elevenlabs, "conv_before", "My cat is called Tom.", days_ago=100)
    had(elevenlabs, "conv_web", "Who am I?", days_ago=3, number="")
    had(elevenlabs, "conv_empty", days_ago=3)
    had(elevenlabs, "conv_live", "Not over yet.", days_ago=0, status="in-progress")
    assert await gateway("--dry-run") | {"seconds": 0} == {
        **{"found": 4, "new": 3, "imported": 0, "skipped": 0, "malformed": 0, "seconds": 0}
    }
    assert await stage.documents() == []
    account.failures = [429, 0, 503]
    result = await gateway()
    assert (result["imported"], result["skipped"]) == (2, 1)
    assert len(await stage.documents()) == 2
    fetched = [request for request in account.requests if "/conversations/" in request]
    assert [request.rpartition("/")[2] for request in fetched] == ["conv_old", "conv_web", "conv_new"]
    # What was said last holds, and the running gateway knows it.
    prompt = await elevenlabs.rings(CALLER)
    assert "Rex" in prompt and "Miami" in prompt and "Tom" not in prompt
    # Done calls are not even fetched again.
    assert (await gateway())["imported"] == 0
    assert account.requests.count("GET /v1/convai/conversations/conv_old") == 1
    # Nor does a late report of the same call change anything.
    await elevenlabs.report(account.conversations["conv_new"])
    await stage.idle()
    assert len(await stage.documents()) == 2


async def test_reported_call_is_not_imported(stage: Stage, elevenlabs: FakeElevenLabs, gateway: Any) -> None:
    had(elevenlabs, "conv_1", "My dog is called Rex.", days_ago=1)
    await elevenlabs.report(elevenlabs.account.conversations["conv_1"])
    await stage.idle()
    assert (await gateway())["new"] == 0
    assert len(await stage.documents()) == 1


async def test_import_works_without_a_running_gateway(tmp_path: Path, elevenlabs: FakeElevenLabs, gateway: Any) -> None:
    (tmp_path / "p.md").write_text("{{memory}}")
    (tmp_path / "gateway.toml").write_text(AGENTS)
    async with staged(tmp_path, make_carrier("twilio")):
        pass
    for number in range(5):
        had(elevenlabs, f"conv_{number}", f"My order is A{number}.", days_ago=number + 1)
    assert (await gateway("--limit", "2"))["imported"] == 2
    assert sorted(path.name for path in (tmp_path / "archive").iterdir()) == [
        "voice-session-conv_3.txt",
        "voice-session-conv_4.txt",
    ]
    assert (await gateway("--since", "36h"))["imported"] == 1
    assert (await gateway())["imported"] == 2


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ([], {"ELEVENLABS_API_KEY": ""}, "set ELEVENLABS_API_KEY"),
        ([], {"ELEVENLABS_API_KEY": "wrong"}, "elevenlabs refused to list conversations: status 401"),
        ([], {"VOICE_SESSION_ENABLED": "false"}, "VOICE_SESSION_ENABLED is false"),
        (["--agent", "other"], {}, "agent other has no elevenlabs_agent"),
        (["--since", "ever"], {}, "ever"),
        (["--limit", "-1"], {}, "--limit is -1"),
        ([], {"DATA_DIR": "/nonexistent"}, "run `gateway serve` once"),
    ],
)
async def test_mistakes_are_one_line(
    stage: Stage,
    elevenlabs: FakeElevenLabs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environ: dict[str, str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"DATA_DIR": str(tmp_path / "data"), "ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url}
    for name, value in {**given, "MEMORY_VECTORS": "false", **environ}.items():
        monkeypatch.setenv(name, value)
    assert await asyncio.to_thread(main, ["import", "elevenlabs", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
