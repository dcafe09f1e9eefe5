"""`gateway call` from outside: a WAV file in, a WAV file out, a real gateway on the local engine between."""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

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
    process = await asyncio.create_subprocess_exec(
        *command, *files, env={"GATEWAY_ADMIN_TOKEN": ADMIN}, cwd=tmp_path, stderr=subprocess.PIPE
    )
    _, said = await process.communicate()
    assert (process.returncode, said.decode()) == (0, "connected; Ctrl-C hangs up\ncall ended\n")
    heard = decode(read_wav(tmp_path / "out.wav"))
    assert abs(heard).max() > 0.1
    [archive] = await until(lambda: list((tmp_path / "archive").glob("*.txt")))
    assert "CALLER: Thank you" in archive.read_text()
    assert [line.partition(":")[0] for line in archive.read_text().splitlines()][:3] == ["AGENT", "CALLER", "AGENT"]


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
    assert lines[1] == "gateway: no gateway answers at http://127.0.0.1:9: ConnectError"
    assert "'Anna' is not a number like +12025550143" in lines[2]
    assert lines[3] == "gateway: no/out.wav can't be written; give a file in a folder of yours"


async def test_another_server_is_told_from_a_gateway(capsys, monkeypatch, tmp_path):
    async def page(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>It works!</h1>"})

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_ADMIN_TOKEN", ADMIN)
    write_wav(tmp_path / "in.wav", b"\xff" * 160)
    async with serve_on_loopback(page, lifespan="off") as url:
        assert await asyncio.to_thread(main, ["call", "--in", "in.wav", "--url", url]) == 2
    assert capsys.readouterr().err == f"gateway: what answers at {url} is no gateway; give its address with --url\n"
