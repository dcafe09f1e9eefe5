import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.fakes.accounts import FakeTelnyxAccount, FakeTwilioAccount

NUMBER, OTHER = "+12025550100", "+12025550101"
PUBLIC = "https://voice.example.com"


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    async def run(account: Any, *arguments: str, **environ: str) -> int:
        monkeypatch.chdir(tmp_path)
        for name, value in {"PUBLIC_URL": PUBLIC, **account.settings(), **environ}.items():
            monkeypatch.setenv(name, value)
        return await asyncio.to_thread(main, ["setup", *arguments])

    return run


async def test_twilio_number_points_here(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeTwilioAccount(NUMBER, OTHER, voice_application_sid="AP" + "2" * 32).running() as account:
        assert await gateway(account, "twilio", "--number", NUMBER) == 0
        assert capsys.readouterr().out == (
            f"{NUMBER} now points here\n"
            f"  voice_url: https://demo.twilio.com/welcome/voice/ -> {PUBLIC}/twilio/incoming\n"
            f"  status_callback: (none) -> {PUBLIC}/twilio/status\n"
            f"  voice_application_sid: AP{'2' * 32} -> (none)\n"
        )
        assert await gateway(account, "twilio", "--number", NUMBER) == 0
        assert capsys.readouterr().out == f"{NUMBER} already points here\n"
    first, second = account.numbers.values()
    assert (first["voice_url"], first["status_callback"]) == (f"{PUBLIC}/twilio/incoming", f"{PUBLIC}/twilio/status")
    assert second["voice_url"] == "https://demo.twilio.com/welcome/voice/"


async def test_telnyx_application_points_here(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeTelnyxAccount(NUMBER, connection_id="2000").running() as account:
        account.applications["2000"] = {
            "id": "2000",
            "application_name": "Mine",
            "webhook_event_url": "https://old.example.com/",
            "webhook_api_version": "2",
        }
        assert await gateway(account, "telnyx", "--json") == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {
            "number": NUMBER,
            "changed": True,
            "changes": [
                {
                    "what": "webhook_event_url",
                    "before": "https://old.example.com/",
                    "after": f"{PUBLIC}/telnyx/webhook",
                }
            ],
        }
    assert account.applications["2000"]["webhook_event_url"] == f"{PUBLIC}/telnyx/webhook"
    assert account.applications["2000"]["application_name"] == "Mine"


async def test_telnyx_number_without_application_gets_one(gateway: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeTelnyxAccount(NUMBER, connection_id="a-sip-trunk").running() as account:
        assert await gateway(account, "telnyx") == 0
        [made] = account.applications.values()
        assert account.numbers["1"]["connection_id"] == made["id"]
        assert (made["application_name"], made["webhook_api_version"]) == ("Voice Gateway", "2")
        capsys.readouterr()
        assert await gateway(account, "telnyx", "--json") == 0
        assert json.loads(capsys.readouterr().out) == {"number": NUMBER, "changed": False, "changes": []}
        assert len(account.applications) == 1


@pytest.mark.parametrize("carrier", ["twilio", "telnyx"])
async def test_another_service_is_one_line(gateway: Any, carrier: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def website(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>Welcome</h1>"})

    kind = FakeTwilioAccount if carrier == "twilio" else FakeTelnyxAccount
    async with serve_on_loopback(website, lifespan="off") as url:
        assert await gateway(kind(NUMBER), carrier, **{f"{carrier.upper()}_API_URL": url}) == 2
    assert capsys.readouterr().err == (
        f"gateway: what answers is not {carrier.capitalize()}; check {carrier.upper()}_API_URL\n"
    )


@pytest.mark.parametrize("carrier", ["twilio", "telnyx"])
async def test_dry_run_changes_nothing(gateway: Any, carrier: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = FakeTwilioAccount if carrier == "twilio" else FakeTelnyxAccount
    async with kind(NUMBER).running() as account:
        before = json.dumps(account.numbers)
        assert await gateway(account, carrier, "--dry-run") == 0
        assert "would point here" in capsys.readouterr().out
        assert json.dumps(account.numbers) == before


@pytest.mark.parametrize(
    ("carrier", "arguments", "environ", "said"),
    [
        ("twilio", [], {}, "has several numbers (+12025550100, +12025550101); say which with --number"),
        ("telnyx", ["--number", "+12025550199"], {}, "has no number +12025550199"),
        ("twilio", ["--number", "nine"], {}, "'nine' is not a phone number"),
        ("twilio", [], {"TWILIO_AUTH_TOKEN": "wrong"}, "twilio refused to list numbers: status 401"),
        ("telnyx", [], {"TELNYX_API_KEY": "wrong"}, "telnyx refused GET phone_numbers: status 401, code 10009"),
        ("twilio", [], {"PUBLIC_URL": ""}, "set PUBLIC_URL to the https address"),
        ("telnyx", [], {"TELNYX_API_URL": "http://127.0.0.1:1"}, "Telnyx can't be reached"),
        ("twilio", ["--number", NUMBER], {"TWILIO_API_URL": "http://127.0.0.1:1"}, "Twilio can't be reached"),
    ],
)
async def test_mistakes_are_one_line(
    gateway: Any,
    carrier: str,
    arguments: list[str],
    environ: dict[str, str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kind = FakeTwilioAccount if carrier == "twilio" else FakeTelnyxAccount
    async with kind(NUMBER, OTHER).running() as account:
        assert await gateway(account, carrier, *arguments, **environ) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
