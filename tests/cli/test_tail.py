import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from gateway.cli.main import main
from gateway.cli.tail import live_filter
from gateway.errors import SettingsError
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests import test_stream_recovery
from tests.stage import ADMIN, make_carrier, staged, until

scene = test_stream_recovery.scene
SERVE = "import sys; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Tail:
    """`gateway tail` as a process, and what it has printed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.lines: list[str] = []
        self.errors: list[str] = []

    async def read(self, stream: asyncio.StreamReader | None, into: list[str]) -> None:
        assert stream is not None
        async for text in stream:
            into.append(text.decode().rstrip("\n"))

    async def shows(self, text: str) -> str:
        found: list[str] = await until(lambda: [one for one in self.lines if text in one], timeout=60)
        return found[0]

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, folder: Path, *arguments: str, **environ: str) -> AsyncIterator["Tail"]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE, "tail", *arguments),
            env={"GATEWAY_ADMIN_TOKEN": ADMIN, **environ},
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        tail = cls(process)
        reading = [
            asyncio.create_task(tail.read(process.stdout, tail.lines)),
            asyncio.create_task(tail.read(process.stderr, tail.errors)),
        ]
        try:
            yield tail
        finally:
            process.kill()
            await process.wait()
            await asyncio.gather(*reading)


def test_filter_is_a_caller_a_session_or_an_agent() -> None:
    assert live_filter("") == {}
    assert live_filter("+1 202 555 0143") == {"caller": "+12025550143"}
    assert live_filter("3f2a91c0") == {"session": "3f2a91c0"}
    assert live_filter("voice-session:3f") == {"session": "voice-session:3f"}
    assert live_filter("maya") == {"agent": "maya"}
    with pytest.raises(SettingsError):
        live_filter("+12")


@pytest.mark.parametrize("carrier_name", ["telnyx"])
async def test_tail_survives_a_killed_gateway(scene: test_stream_recovery.Scene, tmp_path: Path) -> None:
    """The next gateway reports the rest of a call whose gateway was killed; no event is missing or repeated."""
    (tmp_path / "tail").mkdir()
    async with Tail.running(tmp_path / "tail", "--json", "--since", "1h", "--url", scene.gateway.url) as tail:
        call, conversation = await scene.dial()
        await conversation.user_says("Is my bike ready?")
        await tail.shows("Is my bike ready?")
        await scene.gateway.kill()
        await until(lambda: tail.errors)
        hanging_up = asyncio.create_task(call.hang_up())
        await scene.gateway.start()
        await hanging_up
        await tail.shows('"finished"')
    assert tail.errors == ["gateway: connection to the gateway lost; retrying", "gateway: reconnected"]
    events = [json.loads(text) for text in tail.lines]
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["ringing", "answered"]
    assert kinds.count("hangup") == kinds.count("summary") == 1
    assert len({event["id"] for event in events}) == len(events)
    assert len({event["session"] for event in events}) == 1


async def test_terminal_shows_what_is_followed(tmp_path: Path) -> None:
    app = Starlette(routes=[Route("/v1/live", lambda request: Response(media_type="text/event-stream"))])
    async with serve_on_loopback(app, lifespan="off") as url:
        async with Tail.running(tmp_path, "otto", "--url", url, FORCE_COLOR="1") as tail:
            await until(lambda: tail.errors)
    assert tail.errors[0] == "gateway: following calls of otto; Ctrl-C stops"


async def test_no_gateway_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    assert await asyncio.to_thread(main, ["tail", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == (
        "gateway: no gateway answers at http://127.0.0.1:1 "
        "(connection refused); start it with `gateway serve`, or give its address with --url\n"
    )


@pytest.mark.parametrize("answer", [HTMLResponse("<h1>It works!</h1>"), RedirectResponse("/login")])
async def test_another_server_is_one_line(
    answer: Response, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    app = Starlette(routes=[Route("/v1/live", lambda request: answer)])
    async with serve_on_loopback(app, lifespan="off") as url, asyncio.timeout(30):
        assert await asyncio.to_thread(main, ["tail", "--url", url]) == 2
    said = f"gateway: what answers at {url} is not a gateway; give the gateway's address with --url\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("url", ["http://[::1", "voice.example.com", "http://"])
def test_wrong_address_is_one_line(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    assert main(["tail", "--url", url]) == 2
    assert capsys.readouterr().err == f"gateway: --url is {url!r}; write it like https://voice.example.com\n"


async def test_wrong_token_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "a-wrong-admin-token")
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        assert await asyncio.to_thread(main, ["tail", "--url", stage.url]) == 2
    assert "rejected the admin token" in capsys.readouterr().err
