"""Promises of docs/security.md that no other test shows. tests/test_docs.py checks that the page names each of them."""

from pathlib import Path

import pytest

from gateway.settings import Settings
from gateway.telephony.phone_numbers import AllowList
from tests.stage import CALLER, Stage, make_carrier, staged

WORDS = ("periwinkle", "marmalade")
"""Said by the caller and by the agent."""


async def call_with_secrets(stage: Stage) -> list[str]:
    """A call, and what it must not show: words, prompt, pressed keys, tokens, keys, the whole number."""
    call, conversation = await stage.dial()
    await conversation.user_says(f"I like {WORDS[0]}.")
    await conversation.agent_says(f"I prefer {WORDS[1]}.")
    await call.press("5557391")
    secrets = [*WORDS, "5557391", CALLER, CALLER.removeprefix("+"), call.token, conversation.prompt[:40]]
    return [*secrets, *(value for name, value in stage.carrier.settings().items() if "TOKEN" in name or "KEY" in name)]


def test_listens_on_loopback_by_default():
    assert Settings().host == "127.0.0.1"


def test_no_caller_is_admitted_by_default():
    allowed = AllowList(Settings().allowed_callers)
    assert not any(allowed.admits(number) for number in (CALLER, "", "anonymous"))


@pytest.mark.parametrize("carrier_name", ["twilio", "telnyx"])
async def test_words_keys_and_tokens_are_never_logged(carrier_name, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("DEBUG", "gateway")
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        secrets = await call_with_secrets(stage)
    logged = "\n".join(str(vars(record)) for record in caplog.records)
    assert "call ended" in logged
    assert [secret for secret in secrets if secret in logged] == []


async def test_health_and_metrics_name_no_caller(tmp_path: Path):
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        secrets = await call_with_secrets(stage)
        shown = "".join([(await stage.http.get(path)).text for path in ("/health", "/ready", "/metrics")])
    assert "voice_gateway_live_calls 1.0" in shown
    assert [secret for secret in secrets if secret in shown] == []
