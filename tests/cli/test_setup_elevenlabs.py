"""`gateway setup elevenlabs` against a simulated account. tests/telephony/test_elevenlabs_setup.py has the details."""

import asyncio
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dotenv
import pytest

from gateway.cli.main import main
from tests.fakes.elevenlabs import AGENT_ID, API_KEY, FakeElevenLabs, conversation
from tests.fakes.elevenlabs_account import settings_of
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer
from tests.stage import CALLER, make_carrier, staged

PUBLIC = "https://voice.example.com"
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
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elevenlabs: FakeElevenLabs) -> Any:
    (tmp_path / "p.md").write_text("{{memory}}")
    (tmp_path / "gateway.toml").write_text(AGENTS)
    (tmp_path / ".env").write_text("# mine\nALLOWED_CALLERS=*\n")
    (tmp_path / ".env").chmod(0o644)

    async def run(*arguments: str, **environ: str) -> int:
        monkeypatch.chdir(tmp_path)
        given = {"PUBLIC_URL": PUBLIC, "ELEVENLABS_API_KEY": API_KEY, "ELEVENLABS_API_URL": elevenlabs.url}
        for name, value in {**given, **environ}.items():
            monkeypatch.setenv(name, value)
        return await asyncio.to_thread(main, ["setup", "elevenlabs", *arguments])

    return run


async def test_agent_is_connected(
    gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account = elevenlabs.account
    assert await gateway() == 0
    kept = dotenv.dotenv_values(tmp_path / ".env")
    [secret_id], [webhook_id] = account.secrets, account.webhooks
    assert capsys.readouterr().out.splitlines() == [
        "maya: connected",
        "  ELEVENLABS_INITIATION_SECRET in .env: (none) -> (new)",
        "  secret for the initiation webhook: (none) -> (new)",
        f"  post-call webhook: (none) -> {PUBLIC}/elevenlabs/post-call",
        "  ELEVENLABS_WEBHOOK_SECRET in .env: (none) -> (new)",
        "  post-call webhook retries: (none) -> on",
        "  maya: enable_conversation_initiation_client_data_from_webhook: off -> on",
        f"  maya: url: (none) -> {PUBLIC}/elevenlabs/initiation",
        "  maya: request_headers: (none) -> X-Gateway-Secret",
        f"  maya: post_call_webhook_id: (none) -> {webhook_id}",
        "  maya: events: (none) -> transcript",
        "  maya: transcript_format: (none) -> json",
        '  maya: memory: (none) -> ""',
        '  maya: caller_name: (none) -> ""',
        "restart the gateway now: it reads .env when it starts",
    ]
    assert account.secrets[secret_id]["value"] == kept["ELEVENLABS_INITIATION_SECRET"]
    webhook = account.webhooks[webhook_id]
    assert (webhook["secret"], webhook["retry_enabled"]) == (kept["ELEVENLABS_WEBHOOK_SECRET"], True)
    assert (tmp_path / ".env").read_text().startswith("# mine\nALLOWED_CALLERS=*\n")
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600


async def test_second_run_changes_nothing(
    gateway: Any, elevenlabs: FakeElevenLabs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await gateway() == 0
    changes = len(elevenlabs.account.changes)
    capsys.readouterr()
    assert await gateway("--agent", "maya") == 0
    assert capsys.readouterr().out == "maya: already connected\n"
    assert await gateway("--json") == 0
    assert json.loads(capsys.readouterr().out) == {"agents": ["maya"], "changed": False, "changes": []}
    assert len(elevenlabs.account.changes) == changes


async def test_dry_run_changes_nothing(
    gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, env = settings_of(elevenlabs.account.agents[AGENT_ID]), (tmp_path / ".env").read_text()
    assert await gateway("--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert not shown["changed"] and len(shown["changes"]) == 13
    assert elevenlabs.account.changes == []
    assert (settings_of(elevenlabs.account.agents[AGENT_ID]), (tmp_path / ".env").read_text()) == (before, env)


async def test_secrets_are_never_shown(
    gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await gateway() == 0
    assert await gateway("--json") == 0
    shown = "".join(capsys.readouterr())
    kept = dotenv.dotenv_values(tmp_path / ".env")
    for secret in (API_KEY, kept["ELEVENLABS_WEBHOOK_SECRET"], kept["ELEVENLABS_INITIATION_SECRET"]):
        assert secret and secret not in shown


async def test_connected_agent_uses_the_gateway(gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path) -> None:
    """What was set up works: the simulator calls with what it stored, the gateway accepts it with what is in .env."""
    assert await gateway() == 0
    account = elevenlabs.account
    overrides = account.agents[AGENT_ID]["platform_settings"]["workspace_overrides"]
    header = overrides["conversation_initiation_client_data_webhook"]["request_headers"]["X-Gateway-Secret"]
    webhook = account.webhooks[overrides["webhooks"]["post_call_webhook_id"]]
    environ = {name: os.environ[name] for name in ("ELEVENLABS_API_KEY", "ELEVENLABS_API_URL")}
    environ |= {name: value or "" for name, value in dotenv.dotenv_values(tmp_path / ".env").items()}
    async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
        elevenlabs.gateway_url = stage.url
        asked = {"caller_id": CALLER, "agent_id": AGENT_ID, "called_number": "+12025550100", "call_sid": "CA1"}
        answer = await elevenlabs.ask(account.secrets[header["secret_id"]]["value"], **asked)
        assert answer.status_code == 200
        data = conversation("conv_1", ("user", "My dog is called Rex."), number=CALLER)
        assert (await elevenlabs.report(data, secret=webhook["secret"])).status_code == 200
        await stage.idle()
        assert len(await stage.documents()) == 1


async def test_voice_there_has_our_language_model(
    gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was set up works: the simulator asks with the token that it stored."""
    async with FakeLlm() as llm:
        brain = f'brain = {{ url = "{llm.url}/v1", model = "llama3.2", api_key = "test-key" }}'
        (tmp_path / "gateway.toml").write_text(AGENTS.replace("\n\n", f"\n{brain}\n\n", 1))
        data = {"DATA_DIR": str(tmp_path / "data")}
        assert await gateway("--llm", **data) == 0
        shown, account = capsys.readouterr().out, elevenlabs.account
        custom = account.agents[AGENT_ID]["conversation_config"]["agent"]["prompt"]["custom_llm"]
        key = account.secrets[custom["api_key"]["secret_id"]]["value"]
        assert f"custom_llm: (none) -> {PUBLIC}/elevenlabs/llm" in shown and key not in shown
        assert f"API token with the scope llm: (none) -> {key[:11]}" in shown
        assert await gateway("--llm", **data) == 0
        assert capsys.readouterr().out == "maya: already connected\n"
        environ = {name: os.environ[name] for name in ("ELEVENLABS_API_KEY", "ELEVENLABS_API_URL")}
        environ |= {name: value or "" for name, value in dotenv.dotenv_values(tmp_path / ".env").items()}
        llm.answers(Answer("At five."))
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            elevenlabs.gateway_url = stage.url
            assert (await elevenlabs.thinks("When do you close?", key=key)).text == "At five."


async def test_agent_without_a_model_gets_none(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await gateway("--llm", DEEPGRAM_API_KEY="dg-test-key") == 2
    error = capsys.readouterr().err
    assert "maya has no language model of its own; set its brain" in error and error.count("\n") == 1


async def test_env_that_is_not_writable_is_found_first(
    gateway: Any, elevenlabs: FakeElevenLabs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ElevenLabs shows the webhook's secret once: it is made only if it can be kept."""
    (tmp_path / ".env").unlink()
    (tmp_path / ".env").symlink_to(tmp_path / "missing" / ".env")
    assert await gateway() == 2
    error = capsys.readouterr().err
    assert "/.env can't be written" in error and error.count("\n") == 1
    assert elevenlabs.account.changes == []


@pytest.mark.parametrize(
    ("arguments", "environ", "said"),
    [
        ([], {"PUBLIC_URL": "http://voice.example.com"}, "set PUBLIC_URL to the https address"),
        ([], {"ELEVENLABS_API_KEY": ""}, "set ELEVENLABS_API_KEY"),
        ([], {"ELEVENLABS_API_KEY": "wrong"}, "elevenlabs refused to show the agent: status 401, code invalid_api_key"),
        ([], {"ELEVENLABS_API_URL": "http://127.0.0.1:1"}, "ElevenLabs can't be reached"),
        (["--agent", "other"], {}, "agent other has no elevenlabs_agent in gateway.toml"),
        ([], {"ELEVENLABS_WEBHOOK_SECRET": "wsec_old"}, "ELEVENLABS_WEBHOOK_SECRET is set in the environment"),
    ],
)
async def test_mistakes_are_one_line(
    gateway: Any, arguments: list[str], environ: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await gateway(*arguments, **environ) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


async def test_unknown_agent_is_one_line(
    gateway: Any, elevenlabs: FakeElevenLabs, capsys: pytest.CaptureFixture[str]
) -> None:
    elevenlabs.account.agents.clear()
    assert await gateway() == 2
    assert f"ElevenLabs has no agent {AGENT_ID}" in capsys.readouterr().err
    assert elevenlabs.account.changes == []
