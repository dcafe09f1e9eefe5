import asyncio
import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Timeouts
from gateway.cli.main import main
from gateway.finalization.worker import FinalizationTimeouts
from gateway.history.stores import open_local_store
from tests.fakes.remem import FakeRemem
from tests.stage import ADMIN, CALLER, GREETING_SOUND, Stage, make_carrier, staged, until, until_it


async def gateway(folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("DATA_DIR", str(folder / "data"))
    monkeypatch.chdir(folder)
    return await asyncio.to_thread(main, ["sessions", *arguments])


async def test_refused_document_is_listed_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with FakeRemem() as remem:
        environ = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": "wrong"}
        timeouts = Timeouts(finalization=FinalizationTimeouts(retries=(0.1,), sweep=0.1))
        async with staged(tmp_path, make_carrier("twilio"), timeouts=timeouts, **environ) as stage:
            call, conversation = await stage.dial()
            await conversation.user_says("I ride a red bike.")
            await call.hang_up()
            await stage.document()
            await stage.idle()
            assert await gateway(tmp_path, monkeypatch, "--json") == 0
            [row] = json.loads(capsys.readouterr().out)
            assert row["problem"] == "remote document: remem answered 401"
            assert (row["archived"], row["remote"], row["caller"]) == (True, False, CALLER)
            remem.api_key = "wrong"  # the operator has corrected it, at the other end
            assert await gateway(tmp_path, monkeypatch, "retry") == 0
            assert capsys.readouterr().out.startswith("1 job queued again; ")
            await until(lambda: remem.documents, timeout=60)
            await stage.idle()

            async def listed() -> bool:
                await gateway(tmp_path, monkeypatch)
                return capsys.readouterr().out.endswith("all of these calls are archived, summarised and stored\n")

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
    assert "no failed job for voice-session:nobody" in capsys.readouterr().err


async def two_calls(stage: Stage) -> None:
    """One with an answer that was cut off, and another caller's."""
    call, conversation = await stage.dial()
    await call.wait_queued(len(GREETING_SOUND))
    call.play()
    await stage.played(call, conversation)
    await conversation.user_says("When can I come?")
    await conversation.agent_says("You can come on Monday.", audio=b"\x11" * 8000)
    await call.wait_queued(8000)
    await conversation.barge_in(late_text="", late_audio=[])
    await conversation.end_turn("Never mind.")
    await call.hang_up()
    other, conversation = await stage.dial("+12025550144")
    await conversation.user_says("Hello.")
    await other.hang_up()
    await until(lambda: len(stage.archives()) == 2)
    await stage.idle()


async def test_calls_are_listed_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    async with staged(tmp_path, make_carrier("twilio", hold_playback=True)) as stage:
        await two_calls(stage)

        async def said(*arguments: str) -> Any:
            """The same from the files and from the running gateway."""
            assert await gateway(tmp_path, monkeypatch, *arguments, "--json") == 0
            here = json.loads(capsys.readouterr().out)
            assert await gateway(tmp_path, monkeypatch, *arguments, "--json", "--url", stage.url) == 0
            assert json.loads(capsys.readouterr().out) == here
            return here

        assert [row["caller"] for row in await said()] == ["+12025550144", CALLER]
        [row] = await said("--caller", CALLER, "--day", "today", "--outcome", "caller", "--agent", "maya")
        assert (row["outcome"], row["ending"], row["turns"]) == ("caller hung up", "done", 4)
        assert await said("--day", "yesterday") == []
        assert await said("--outcome", "unfinished") == []
        assert await said("--agent", "nobody") == []
        whole = await said("show", row["session"][14:22])
        assert [(turn["speaker"], turn["text"], turn["unheard"]) for turn in whole["transcript"][1:]] == [
            ("caller", "When can I come?", ""),
            ("agent", "", "You can come on Monday."),
            ("caller", "Never mind.", ""),
        ]
        assert whole["steps"]["document"]["state"] == "done"
        assert [whole["steps"][name]["ran"] for name in ("document", "webhook", "remote document")] == [
            True,
            False,
            False,
        ]
        assert len(whole["timings"]) == 2
        assert whole["receipt"]["tier"]
        assert [event["event"] for event in whole["timeline"]][:3] == ["ringing", "answered", "memory"]
        assert await gateway(tmp_path, monkeypatch, "show", row["session"]) == 0
        text = capsys.readouterr().out
        assert "agent   [not heard: You can come on Monday.]" in text
        responses = "Response times, from the caller's last voiced frame"
        for section in ("Transcript", responses, "Post-call processing", "Events"):
            assert f"\n{section}\n" in text


async def test_latency_tells_percentiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    monkeypatch.chdir(tmp_path)
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await stage.spoken(call, conversation)
        await conversation.user_says("Is my bike ready?")
        await stage.answer(call, conversation, "It is.")
        await call.hang_up()
        await stage.document()
        await stage.idle()
        for where in ([], ["--url", stage.url]):
            assert await asyncio.to_thread(main, ["latency", "--since", "1h", "--json", *where]) == 0
            figures = json.loads(capsys.readouterr().out)
            assert (figures["calls"], figures["turns"]) == (1, 1)
            assert figures["stages"]["first_frame"]["p50"] == figures["stages"]["first_frame"]["max"] is not None
        assert await asyncio.to_thread(main, ["latency"]) == 0
        assert "first frame" in capsys.readouterr().out
        assert await asyncio.to_thread(main, ["latency", "--since", "999999d"]) == 2
        assert "'999999d' is not a valid time" in capsys.readouterr().err


async def test_moments_of_any_zone_are_understood(stage: Stage) -> None:
    """A zone of another offset, a plus sign that became a space, none at all; and what is no moment."""
    call, conversation = await stage.dial()
    await conversation.user_says("Hello.")
    await call.hang_up()
    await stage.document()
    await stage.idle()
    now = datetime.now(UTC)
    here = [now.astimezone(timezone(timedelta(hours=hours))).isoformat() for hours in (-11, 13)]
    for moment in (*here, now.isoformat().replace("+", " "), now.astimezone().replace(tzinfo=None).isoformat()):
        assert (await stage.http.get("/v1/latency", params={"before": moment})).json()["calls"] == 1
        assert (await stage.http.get("/v1/sessions", params={"since": moment})).json() == []
    for wrong in ("yesterday", "0001-01-01T00:00+14:00", "2026-02-30"):
        assert (await stage.http.get("/v1/latency", params={"since": wrong})).status_code == 422
        assert (await stage.http.get("/v1/sessions", params={"before": wrong})).status_code == 422


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--day", "someday"], "is not a valid day"),
        (["--day", "9999-12-31"], "is not a valid day"),
        (["--limit", "0"], "--limit is 0"),
        (["--outcome", "boredom"], "no outcome starts with 'boredom'"),
        (["--caller", "+12"], "is not a phone number"),
        (["show"], "name a session"),
        (["show", "ffffffff"], "no single call matches ffffffff"),
        (["retry", "--url", "http://127.0.0.1:1"], "retry needs the gateway's DATA_DIR"),
    ],
)
async def test_mistakes_are_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = await open_local_store(tmp_path / "data")
    await store.close()
    assert await gateway(tmp_path, monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
