import asyncio
import os
from pathlib import Path

import pytest

from gateway import settings
from gateway.app import create_app
from gateway.cli.main import main
from gateway.errors import SettingsError
from tests.diagnostics.conftest import NO_MODELS, Doctor, doctor
from tests.fakes.accounts import FakeTelnyxAccount, FakeTwilioAccount
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.remem import FakeRemem
from tests.redis_server import running_redis

__all__ = ["doctor"]  # the fixture


async def test_good_set_up_is_well(doctor: Doctor, tmp_path: Path) -> None:
    async with (
        FakeTwilioAccount("+12025550100").running() as twilio,
        FakeTelnyxAccount("+12025550100").running() as telnyx,
        FakeDeepgram(api_key="dg-test-key") as engine,
        FakeRemem(api_key="a-remem-key") as remem,
        running_redis(tmp_path / "redis") as redis,
    ):
        code, found = await doctor(
            DEEPGRAM_API_KEY="dg-test-key",
            DEEPGRAM_AGENT_URL=engine.url,
            ALLOWED_CALLERS="*",
            SUMMARY_PROVIDER="extractive",
            REMEM_API_URL=remem.url,
            REMEM_API_KEY="a-remem-key",
            REDIS_URL=redis.url,
            **twilio.settings(),
            **telnyx.settings(),
        )
    unsure = {check for check, (state, _) in found.items() if state not in ("ok", "off")}
    assert (code, unsure) == (0, {"PUBLIC_URL", "telnyx numbers", "twilio numbers"})
    assert {"engine", "twilio", "telnyx", "summaries", "remem", "redis", "store", "clock", "DATA_DIR"} <= set(found)
    assert not (tmp_path / "data").exists()


async def test_wrong_keys_are_named_and_not_shown(doctor: Doctor) -> None:
    async with (
        FakeTwilioAccount("+12025550100").running() as twilio,
        FakeTelnyxAccount("+12025550100").running() as telnyx,
        FakeDeepgram(api_key="another") as engine,
        FakeRemem(api_key="another") as remem,
    ):
        code, found = await doctor(
            DEEPGRAM_API_KEY="dg-test-key",
            DEEPGRAM_AGENT_URL=engine.url,
            REMEM_API_URL=remem.url,
            REMEM_API_KEY="a-remem-key",
            **twilio.settings() | {"TWILIO_AUTH_TOKEN": "problem"},
            **telnyx.settings() | {"TELNYX_API_KEY": "problem"},
        )
    assert code == 1
    for check, name in {
        "engine": "DEEPGRAM_API_KEY",
        "twilio": "TWILIO_AUTH_TOKEN",
        "telnyx": "TELNYX_API_KEY",
        "remem": "REMEM_API_KEY",
    }.items():
        assert found[check][0] == "problem"
        assert name in found[check][1]
    assert found["callers"] == (
        "problem",
        "all callers are rejected set ALLOWED_CALLERS to your number, or to * for anyone",
    )


async def test_nothing_there_is_told_in_seconds(doctor: Doctor) -> None:
    code, found = await doctor(
        DEEPGRAM_API_KEY="dg-test-key",
        DEEPGRAM_AGENT_URL="ws://127.0.0.1:1/",
        REDIS_URL="redis://127.0.0.1:1/0",
        DATABASE_URL="postgresql://me:a-password@127.0.0.1:1/voice",
        REMEM_API_URL="http://127.0.0.1:1",
        PUBLIC_URL="https://127.0.0.1:1",
        ANTHROPIC_API_KEY="k",
        ANTHROPIC_BASE_URL="http://127.0.0.1:1",
        XAI_API_KEY="k",
        XAI_API_URL="http://127.0.0.1:1",
        OPENCLAW_GATEWAY_URL="http://127.0.0.1:1",
        OPENCLAW_GATEWAY_TOKEN="k",
    )
    assert code == 1
    unreachable = ("engine", "redis", "postgres", "remem", "PUBLIC_URL", "anthropic", "xai", "openclaw")
    assert {found[check][0] for check in unreachable} == {"problem"}
    assert found["summaries"] == ("ok", "written by anthropic")
    assert "a-password" not in str(found)


async def test_fresh_start_without_keys_is_well(doctor: Doctor, tmp_path: Path) -> None:
    """As README begins: the local engine, and the gateway's own phone. What is optional is off."""
    code, found = await doctor()
    assert found["engine"] == ("ok", "local, models intact")
    assert (code, {state for state, _ in found.values()}) == (0, {"ok", "off"})
    optional = ("carriers", "callers", "PUBLIC_URL", "clock", ".env", "brain of maya", "summaries")
    assert {found[check][0] for check in optional} == {"off"}
    assert os.listdir(tmp_path) == []


async def test_mistake_in_settings_is_a_finding(doctor: Doctor) -> None:
    code, found = await doctor(PORT="eighty")
    assert (code, found["settings"][0]) == (2, "problem")


MISTAKES = {
    "ALLOWED_CALLERS": ({"ALLOWED_CALLERS": "anna"}, ""),
    "TELNYX_PUBLIC_KEY": ({"TELNYX_API_KEY": "k", "TELNYX_PUBLIC_KEY": "k"}, ""),
    "REDIS_URL": ({"REDIS_URL": "redis://:a-password@localhost:99999/0"}, ""),
    "DATABASE_URL": ({"DATABASE_URL": "postgresql://me:a-password@localhost:999999/x"}, ""),
    "OUTBOUND_ALLOWED": ({"OUTBOUND_ALLOWED": "GB"}, ""),
    "VOICE_ENGINE": ({"VOICE_ENGINE": "openai"}, ""),
    "WEBHOOK_SECRET": ({"WEBHOOK_URL": "https://crm.example.com"}, ""),
    "admin-token": ({}, ""),
    "PORT": ({"PORT": "99999"}, ""),
    "prompt": ({}, '[agents.maya]\nprompt = "gone.md"\n'),
    "functions": ({}, '[agents.maya]\nfunctions = "tools.py"\n'),
    "brain": ({}, '[agents.maya]\nbrain = "openclaw/main"\n'),
    "premium": ({}, '[agents.maya]\ntransfer_to = { desk = "+19005550100" }\n'),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_what_serve_refuses_is_found(doctor: Doctor, tmp_path: Path, mistake: str) -> None:
    """In the same words."""
    environ, toml = MISTAKES[mistake]
    (tmp_path / "gateway.toml").write_text(toml)
    (tmp_path / "tools.py").write_text("def book(when) -> str:\n    return ''\n")
    if mistake == "admin-token":
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "admin-token").write_text("short\n")
    code, found = await doctor(TELNYX_API_URL="http://127.0.0.1:1", **NO_MODELS, **environ)
    with pytest.raises(SettingsError) as raised:
        create_app(settings.load(os.environ, tmp_path))
    assert (code, found["settings"]) == (2, ("problem", str(raised.value)))
    assert "a-password" not in str(found)


async def test_every_mistake_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALLOWED_CALLERS", "anna")
    agents = """
[agents.maya]
prompt = "gone.md"
[agents.tom]
prompt = "p.md"
brain = "gpt"
[agents.ana]
greting = "Hi"
"""
    (tmp_path / "gateway.toml").write_text(agents)
    (tmp_path / "p.md").write_text("You are Tom.")
    assert await asyncio.to_thread(main, ["doctor"]) == 2
    text = capsys.readouterr().out
    for words in (
        "ALLOWED_CALLERS: 'anna'",
        "[agents.maya]: prompt",
        "[agents.tom]: brain",
        "[agents.ana]: unknown key",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("env", "toml", "named"),
    [
        ("PORT=abc\nMAX_CALLS=x\nLOG_LEVEL=loud\n", "", ["PORT is 'abc'", "MAX_CALLS is 'x'", "LOG_LEVEL is 'loud'"]),
        ("PORT=99999\nTWILIO_ACCOUNT_SID=AC1\n", "", ["PORT is 99999", "set TWILIO_ACCOUNT_SID and"]),
        ("", "prot = 1\nhots = 'x'\n", ["unknown setting hots; did you mean host?", "unknown setting prot; did"]),
    ],
)
def test_every_value_that_serve_refuses_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    env: str,
    toml: str,
    named: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".env").write_text(env)
    (tmp_path / "gateway.toml").write_text(toml)
    assert main(["doctor"]) == 2
    *problems, blank, counts = capsys.readouterr().out.splitlines()[1:]
    assert len(problems) == len(named) and all(one in line for one, line in zip(named, problems, strict=True))
    assert (blank, counts) == ("", f"{len(named)} problems")


def test_text_is_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"PUBLIC_URL": "http://127.0.0.1:1", "PORT": "0", **NO_MODELS}.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "\nPublic address\n  problem  PUBLIC_URL" in text
    assert "  to do: start the gateway and the tunnel\n" in text
    assert "  optional: set ALLOWED_CALLERS to your number, or to * for anyone\n" in text
    assert "\x1b" not in text
