import asyncio
import json
from pathlib import Path

import pytest

from gateway.cli.main import main
from tests.fakes.remem import FakeRemem
from tests.stage import make_carrier, staged, until, until_it


async def gateway(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("DATA_DIR", str(folder / "data"))
    monkeypatch.chdir(folder)
    return await asyncio.to_thread(main, ["sessions", *arguments])


async def test_refused_document_is_listed_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeRemem() as remem:
        environ = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": "wrong"}
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            call, conversation = await stage.dial()
            await conversation.user_says("I ride a red bike.")
            await call.hang_up()
            await stage.document()
            await stage.idle()
            assert await gateway(tmp_path, monkeypatch, "--json") == 0
            [row] = json.loads(capsys.readouterr().out)
            assert row["problem"] == "send_remote: remem answered 401"
            assert (row["archived"], row["remote"], row["caller"]) == (True, False, "…0143")
            remem.api_key = "wrong"  # the operator has corrected it, at the other end
            assert await gateway(tmp_path, monkeypatch, "retry") == 0
            assert capsys.readouterr().out.startswith("1 to be tried again")
            await until(lambda: remem.documents, timeout=25)
            await stage.idle()

            async def listed() -> bool:
                await gateway(tmp_path, monkeypatch)
                return capsys.readouterr().out == "every call is archived, summarised and stored\n"

            await until_it(listed)


async def test_no_gateway_here_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await gateway(tmp_path, monkeypatch) == 2
    assert capsys.readouterr().err.count("\n") == 1


async def test_unknown_call_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with staged(tmp_path, make_carrier("twilio")):
        assert await gateway(tmp_path, monkeypatch, "retry", "voice-session:nobody") == 2
    assert "no call voice-session:nobody waits" in capsys.readouterr().err
