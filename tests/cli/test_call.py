"""`gateway call` from outside: a WAV file in, a WAV file out, a real gateway on the local engine between."""

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway import extras
from gateway.cli.main import main
from gateway.simulate.call_audio import read_wav, write_wav
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.simulate.synthetic_caller import pico
from gateway.speech.samples import decode
from tests.stage import ADMIN, patient_client, running_gateway, until, until_it


@pytest.fixture
async def url(tmp_path):
    environ = {
        "DATA_DIR": str(tmp_path / "data"),
        "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"),
        "GATEWAY_ADMIN_TOKEN": ADMIN,
        "MEMORY_VECTORS": "false",
    }
    (tmp_path / "gateway.toml").write_text('[agents.maya]\ngreeting = "Hi."\nprompt = "prompts/maya.md"\n')
    async with running_gateway(environ, tmp_path) as url, patient_client(url) as http:

        async def ready():
            return (await http.get("/ready")).is_success

        await until_it(ready)
        yield url


async def test_wav_in_wav_out(url, tmp_path):
    write_wav(tmp_path / "in.wav", pico("Thank you, goodbye."))
    command = [str(Path(sys.executable).with_name("gateway")), "call", "--url", url]
    files = ["--in", str(tmp_path / "in.wav"), "--out", str(tmp_path / "out.wav")]
    process = await asyncio.create_subprocess_exec(*command, *files, **streams(tmp_path))
    transcript, said = (text.decode() for text in await process.communicate())
    assert process.returncode == 0
    connected, ended, found, saved = said.splitlines()
    session = re.fullmatch(r"connected to maya, session voice-session:(\S{36}); Ctrl-C hangs up", connected)
    assert re.fullmatch(r"call ended: agent hung up, 0:\d\d, 3 turns", ended)
    assert found == f"summary and response times: {command[0]} sessions {session[1][:8]} --url {url}"
    assert saved == f"saved {tmp_path}/out.wav"
    assert "  agent      Hi.\n" in transcript and "  caller     Thank you" in transcript
    assert "  model  " not in transcript
    assert re.search(r"  agent  .*  (\d+ ms|\d+\.\d+ s)", transcript)  # the response time
    heard = decode(read_wav(tmp_path / "out.wav"))
    assert abs(heard).max() > 0.1
    [archive] = await until(lambda: list((tmp_path / "archive").glob("*.txt")))
    assert "CALLER: Thank you" in archive.read_text()
    assert [line.partition(":")[0] for line in archive.read_text().splitlines()][:3] == ["AGENT", "CALLER", "AGENT"]


async def test_ctrl_c_hangs_up(url, tmp_path):
    write_wav(tmp_path / "in.wav", b"\xff" * 8000 * 60)
    command = [str(Path(sys.executable).with_name("gateway")), "call", "--url", url, "--in", str(tmp_path / "in.wav")]
    process = await asyncio.create_subprocess_exec(*command, **streams(tmp_path))
    assert b"ringing" in await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    said = (await process.communicate())[1].decode()
    assert process.returncode == 0
    assert "\ncall ended: caller hung up, 0:" in said


def streams(folder):
    return {
        "env": {"GATEWAY_ADMIN_TOKEN": ADMIN},
        "cwd": folder,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }


def test_missing_portaudio_says_what_to_install(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # as if the package were not installed
    assert main(["call"]) == 2
    assert capsys.readouterr().err == (
        "gateway: no microphone can be used here: the package sounddevice is missing; run: "
        f"{extras.how_to_install('local')}; or use --in FILE.wav and --out FILE.wav\n"
    )


def test_mistakes_are_one_line(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    assert main(["call", "--in", "missing.wav"]) == 2
    write_wav(tmp_path / "in.wav", b"\xff" * 160)
    assert main(["call", "--in", "in.wav", "--url", "http://127.0.0.1:9"]) == 2
    with contextlib.suppress(SystemExit):
        main(["call", "--caller", "Anna"])
    assert main(["call", "--in", "in.wav", "--out", "no/out.wav"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("gateway: missing.wav can't be read: No such file or directory")
    assert (
        lines[1] == "gateway: no gateway answers at http://127.0.0.1:9 "
        "(connection refused); start it with `gateway serve`, or give its address with --url"
    )
    assert "'Anna' is not a number like +12025550143" in lines[2]
    assert lines[3] == "gateway: no/out.wav can't be written; choose a folder that you can write to"


def test_token_of_this_gateway_stays_here(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data/admin-token").write_text("kept-token-of-this-gateway\n")
    assert main(["call", "--in", "in.wav", "--url", "http://127.0.0.1:9"]) == 2
    said = "gateway: no admin token; set GATEWAY_ADMIN_TOKEN to that gateway's token\n"
    assert capsys.readouterr().err == said


def test_call_without_a_gateway_makes_no_token(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_ADMIN_TOKEN", raising=False)
    assert main(["call", "--in", "in.wav"]) == 2
    assert "gateway: no gateway has been started with DATA_DIR=data; " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


async def test_another_server_is_told_from_a_gateway(capsys, monkeypatch, tmp_path):
    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>It works!</h1>"})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    write_wav(tmp_path / "in.wav", b"\xff" * 160)
    async with serve_on_loopback(page, lifespan="off") as url:
        assert await asyncio.to_thread(main, ["call", "--in", "in.wav", "--url", url]) == 2
    assert (
        capsys.readouterr().err
        == f"gateway: what answers at {url} is not a gateway; give the gateway's address with --url\n"
    )
