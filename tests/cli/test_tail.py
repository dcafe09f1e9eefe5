import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.main import main
from gateway.cli.remote import Paint
from gateway.cli.tail import choice
from gateway.cli.tail_text import line
from gateway.errors import SettingsError
from gateway.history.live_events import EVENTS
from tests import test_stream_recovery
from tests.stage import ADMIN, CALLER, make_carrier, staged, until

scene = test_stream_recovery.scene
SERVE = "import sys; from gateway.cli.main import main; sys.exit(main(sys.argv[1:]))"
ABOUT = {"session": "voice-session:3f2a91c0-aaaa", "agent": "maya", "caller": CALLER, "carrier": "twilio"}
AT = "2026-02-06T23:15:04+00:00"
FIELDS: dict[str, dict[str, Any]] = {
    "dialling": {},
    "unanswered": {"reason": "busy"},
    "ringing": {"called": "+12025550100"},
    "refused": {"reason": "caller is not in ALLOWED_CALLERS"},
    "answered": {"attempt": 1},
    "memory": {"facts": 2, "calls": 1, "tier": "everything", "seconds": 0.004, "outcome": "loaded"},
    "turn": {"speaker": "agent", "text": "It is.", "answer": 1, "latency": 0.84},
    "interruption": {"answer": 1, "heard": "It", "unheard": "is."},
    "function_called": {"function": "book"},
    "function_finished": {"function": "book", "ok": True, "seconds": 0.2},
    "engine_lost": {"reason": "closed"},
    "engine_back": {},
    "media_lost": {"reason": "media stream lost"},
    "error": {"what": "call failed", "reason": "KeyError"},
    "hangup": {"reason": "caller hung up", "seconds": 67.0, "turns": 3},
    "step": {"step": "document", "state": "waits", "reason": "no answer"},
    "summary": {"by": "extractive", "document": "d"},
    "finished": {"problem": ""},
}
SHOWN = {
    "dialling": "twilio, by maya",
    "unanswered": "busy",
    "ringing": "twilio, for maya",
    "answered": "again, stream 2",
    "memory": "2 facts, 1 past call, tier everything, 4 ms",
    "turn": "It is.  840 ms",
    "interruption": "heard: It — not: is.",
    "function_finished": "book done, 200 ms",
    "hangup": "caller hung up, 1:07, 3 turns",
    "step": "document waits: no answer",
}


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
    async def running(cls, folder: Path, *arguments: str) -> AsyncIterator["Tail"]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE, "tail", *arguments),
            env={"GATEWAY_ADMIN_TOKEN": ADMIN},
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


@pytest.mark.parametrize("kind", EVENTS)
def test_every_event_is_one_line(kind: str) -> None:
    text = line({"event": kind, "at": AT, **ABOUT, **FIELDS[kind]}, Paint(False))
    assert "\n" not in text
    assert f"  3f2a91c0  {CALLER}  " in text
    assert SHOWN.get(kind, "") in text


def test_lines_are_aligned() -> None:
    """Whatever country a number is of, and without one."""
    callers = [CALLER, "+4915112345678", "+123456789012345", ""]
    texts = [line({"event": "engine_back", "at": AT, **ABOUT, "caller": caller}, Paint(False)) for caller in callers]
    assert len({text.index("engine") for text in texts}) == 1


def test_hostile_words_do_not_steer_the_terminal() -> None:
    said = {"event": "turn", "at": AT, **ABOUT, "speaker": "caller", "text": "a\x1b[2Jb\nc\u202ed"}
    assert line(said, Paint(False)).endswith("a [2Jb c d")


def test_colours_are_for_people() -> None:
    told = {"event": "hangup", "at": AT, **ABOUT, **FIELDS["hangup"]}
    assert "\x1b[" in line(told, Paint(True))
    assert "\x1b[" not in line(told, Paint(False))


def test_choice_knows_what_is_meant() -> None:
    assert choice("") == {}
    assert choice("+1 202 555 0143") == {"caller": "+12025550143"}
    assert choice("3f2a91c0") == {"session": "3f2a91c0"}
    assert choice("voice-session:3f") == {"session": "voice-session:3f"}
    assert choice("maya") == {"agent": "maya"}
    with pytest.raises(SettingsError):
        choice("+12")


@pytest.mark.parametrize("carrier_name", ["telnyx"])
async def test_tail_survives_a_killed_gateway(scene: test_stream_recovery.Scene, tmp_path: Path) -> None:
    """The rest of a call whose gateway was killed is told by the next one; nothing twice, nothing missed."""
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
    assert tail.errors == ["gateway: the gateway is away; waiting for it", "gateway: the gateway is back"]
    events = [json.loads(text) for text in tail.lines]
    kinds = [event["event"] for event in events]
    assert kinds[:2] == ["ringing", "answered"]
    assert kinds.count("hangup") == kinds.count("summary") == 1
    assert len({event["id"] for event in events}) == len(events)
    assert len({event["session"] for event in events}) == 1


async def test_no_gateway_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    assert await asyncio.to_thread(main, ["tail", "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err == (
        "gateway: no gateway answers at http://127.0.0.1:1 (ConnectError); start one, or name another with --url\n"
    )


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
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", "wrong")
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        assert await asyncio.to_thread(main, ["tail", "--url", stage.url]) == 2
    assert "does not take this admin token" in capsys.readouterr().err
