"""Finished calls are posted to the operator's server, in whole calls through the gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.app import Timeouts
from gateway.cli.main import main
from gateway.errors import SettingsError
from gateway.finalization.webhooks import WebhookTimeouts
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver
from tests.stage import CALLER, make_carrier, running_gateway, staged, until

AGENTS = """
[agents.maya]
prompt = "p.md"
greeting = ""
webhook_events = ["call.ended", "call.started"]
[agents.maya.fields]
order = "The order number"
urgent = { type = "bool", description = "Whether it can't wait" }
"""
QUICK = Timeouts(webhooks=WebhookTimeouts(retries=(0.05,), poll=0.1))


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver().running() as made:
        yield made


def furnish(folder: Path, url: str) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "p.md").write_text("You answer the phone.\n{{memory}}")
    (folder / "gateway.toml").write_text(AGENTS)
    return {"WEBHOOK_URL": url, "WEBHOOK_SECRET": SECRET}


async def test_finished_call_is_posted_once(tmp_path: Path, receiver: WebhookReceiver) -> None:
    receiver.answers = [500, 503]
    environ = furnish(tmp_path, receiver.url)
    async with staged(tmp_path, make_carrier("twilio"), timeouts=QUICK, **environ) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Hello, my name is Ana Lopez. I ride a red bike.")
        await call.hang_up()
        [message] = await until(receiver.messages)
        [started] = await until(lambda: receiver.messages("call.started"))
        document = await stage.document()
    assert (message["caller"], message["agent"], message["engine"]) == (CALLER, "maya", "deepgram")
    assert message["carrier"] == "twilio" and message["end_reason"] == "caller hung up"
    assert any("red bike" in turn["text"] for turn in message["turns"])
    assert message["session"] in document["content"] and message["session"] == started["session"]
    assert message["summary"]["written_by"] == "extractive"
    assert message["fields"] == {"order": None, "urgent": None}
    assert message["ended_at"] > message["started_at"] and message["seconds"] >= 0
    assert len(receiver.accepted) == 2 and not receiver.repeated and "turns" not in started


@pytest.mark.parametrize("carrier_name", ["twilio", "telnyx"])
async def test_call_without_a_word_is_posted(carrier_name: str, tmp_path: Path, receiver: WebhookReceiver) -> None:
    async with staged(tmp_path, make_carrier(carrier_name), timeouts=QUICK, **furnish(tmp_path, receiver.url)) as stage:
        call, _ = await stage.dial()
        await call.hang_up()
        [message] = await until(receiver.messages)
        assert await stage.documents() == []
    assert (message["summary"], message["turns"], message["facts"]) == (None, [], [])
    assert message["fields"] == {"order": None, "urgent": None}


async def test_message_survives_a_restart_and_goes_with_an_erasure(tmp_path: Path) -> None:
    environ = furnish(tmp_path, "http://127.0.0.1:9/away")
    async with staged(tmp_path, make_carrier("twilio"), timeouts=QUICK, **environ) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("I ride a red bike.")
        await call.hang_up()
        await stage.document()
        await stage.idle()
    assert b"red bike" in _stored(tmp_path)
    environ |= {"DATA_DIR": str(tmp_path / "data")}
    # The caller is erased while the message still waits.
    assert await asyncio.to_thread(gateway_command, tmp_path, "memory", "forget", CALLER, "--yes") == 0
    assert b"red bike" not in _stored(tmp_path)


def _stored(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in (folder / "data").glob("gateway.db*"))


def gateway_command(folder: Path, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DATA_DIR", str(folder / "data"))
        patch.setenv("VOICE_SESSION_ARCHIVE_DIR", str(folder / "archive"))
        return main(list(arguments))


async def test_webhook_without_secret_is_refused_at_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="a webhook needs WEBHOOK_SECRET"):
        async with running_gateway({"WEBHOOK_URL": "https://example.com/hook", "DATA_DIR": str(tmp_path)}, tmp_path):
            pass
