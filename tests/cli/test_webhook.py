import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.cli.main import main
from gateway.history.stores import open_stores
from tests.fakes.webhook_receiver import WebhookReceiver
from tests.stage import make_carrier, staged
from tests.test_webhooks import QUICK, furnish

TIME = "2026-02-06T23:15:00+00:00"


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with WebhookReceiver().running() as made:
        yield made


def _gateway(folder: Path, *arguments: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("DATA_DIR", str(folder / "data"))
        return main(list(arguments))


async def test_webhook_command(tmp_path: Path, receiver: WebhookReceiver, capsys: pytest.CaptureFixture[str]) -> None:
    environ = furnish(tmp_path, receiver.url)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environ.items():
            patch.setenv(name, value)
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test") == 0
        assert capsys.readouterr().out == f"{receiver.url} accepted the message: status 200\n"
        receiver.answers = [503]
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test", "--json") == 1
        assert json.loads(capsys.readouterr().out) == {"url": receiver.url, "status": 503, "accepted": False}
        patch.setenv("WEBHOOK_URL", "http://127.0.0.1:9/away")
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test") == 2
        assert capsys.readouterr().err == "gateway: http://127.0.0.1:9/away can't be reached: connection refused\n"
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test", "--agent", "otto") == 2
        assert capsys.readouterr().err == "gateway: no agent is named otto; the agents are maya\n"
        patch.delenv("WEBHOOK_SECRET")
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test") == 2
        assert "make one with: gateway webhook secret" in capsys.readouterr().err
        patch.delenv("WEBHOOK_URL")
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "test") == 2
        assert "no webhook is set" in capsys.readouterr().err
    assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "secret") == 0
    assert capsys.readouterr().out.startswith("whsec_")


async def test_waiting_messages_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    environ = furnish(tmp_path, "http://127.0.0.1:9/away")
    assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "list") == 2
    async with staged(tmp_path, make_carrier("twilio"), timeouts=QUICK, **environ) as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("I ride a red bike.")
        await call.hang_up()
        await stage.document()
        await stage.idle()
        assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "list") == 0
        shown = capsys.readouterr().out
    assert "call.ended" in shown and "pending" in shown and "red bike" not in shown


async def test_failed_message_has_no_next_attempt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stores = await open_stores(tmp_path / "data", None)
    row = ("id", "voice-session:3f2a91c0", "maya", "", "call.ended", "{}", "failed", 9, TIME, "status 410", TIME)
    await stores.memory.change(f"INSERT INTO webhook_messages VALUES ({', '.join('?' * len(row))})", *row)
    await stores.close()
    assert await asyncio.to_thread(_gateway, tmp_path, "webhook", "list") == 0
    shown = capsys.readouterr().out.splitlines()[1].split()
    assert shown == ["3f2a91c0", "maya", "call.ended", "failed", "9", "status", "410"]
