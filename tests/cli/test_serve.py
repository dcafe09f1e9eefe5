"""What `gateway serve` prints at its start."""

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway import settings
from gateway.cli import serve
from gateway.settings import Secret, Settings
from gateway.web.login_sessions import LoginLinks

COMMAND = [str(Path(sys.executable).parent / "gateway"), "serve", "--port", "0"]
TOKEN = "an-admin-token&of-the-tests"


def environ(folder: Path) -> dict[str, str]:
    given = {"DATA_DIR": str(folder / "data"), "VOICE_SESSION_ARCHIVE_DIR": str(folder / "archive")}
    given |= {"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "token"}
    return {"PATH": os.environ["PATH"], "GATEWAY_ADMIN_TOKEN": TOKEN, **given}


def printed(folder: Path, stderr: int, reads: int, until: bytes, **more: str) -> str:
    """What it says before it is stopped."""
    said = b""
    with subprocess.Popen(COMMAND, cwd=folder, env=environ(folder) | more, stderr=stderr) as server:
        os.close(stderr)
        while until not in said:
            piece = os.read(reads, 4096)
            assert piece, f"it stopped after {said!r}"
            said += piece
        server.terminate()  # a shell's background job, as tests may be, would not get a Ctrl-C this soon
        server.wait(20)
    os.close(reads)
    return said.decode()


def test_terminal_shows_a_login_link(tmp_path):
    reads, stderr = pty.openpty()
    said = printed(tmp_path, stderr, reads, b"ALLOWED_CALLERS")
    link = re.search(r"dashboard: http://127\.0\.0\.1:\d+/login\?code=([\w-]+)\r\n", said)
    assert link is not None and LoginLinks(Secret(TOKEN)).read(link[1])[0] and TOKEN not in said
    assert f"works once, within 15 minutes; then run: {COMMAND[0]} login-link" in said


def test_start_without_a_carrier_is_no_fault(tmp_path):
    reads, stderr = os.pipe()
    until = b"no carrier is set up; calls from the browser need none"
    said = printed(tmp_path, stderr, reads, until, TWILIO_ACCOUNT_SID="", TWILIO_AUTH_TOKEN="", MEMORY_VECTORS="false")
    assert '"level":"warning"' not in said


def test_log_names_no_token(tmp_path):
    reads, stderr = os.pipe()
    said = printed(tmp_path, stderr, reads, b"ALLOWED_CALLERS")
    assert "/login" in said and TOKEN not in said and "code=" not in said


def test_settings_of_deepclaw_are_named_once(tmp_path):
    (tmp_path / ".env").write_text("VOICE_PROVIDER=twilio\n")
    reads, stderr = os.pipe()
    said = printed(tmp_path, stderr, reads, b"ALLOWED_CALLERS")
    assert said.count("settings of DeepClaw have no effect") == 1
    assert "VOICE_PROVIDER: every carrier with keys is active" in said


def test_half_a_request_does_not_hold_it_up(tmp_path):
    """Whoever sends it may never send the rest."""
    reads, stderr = os.pipe()
    with subprocess.Popen(COMMAND, cwd=tmp_path, env=environ(tmp_path), stderr=stderr) as server:
        port = _port(reads)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.sendall(b"POST /twilio/incoming HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nCall")
            time.sleep(0.2)  # it is being read
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    os.close(stderr)
    os.close(reads)


def _port(log: int) -> int:
    """Where it listens, as it says itself."""
    said = b""
    while not (found := re.search(rb'http://127\.0\.0\.1:(\d+)"', said)):
        said += os.read(log, 4096)
    return int(found[1])


@pytest.mark.parametrize("sockets", ["picows", "websockets"])
def test_idle_connections_outlive_a_proxys(tmp_path, sockets):
    loaded = settings.load(environ(tmp_path), tmp_path)
    assert serve._server_config(loaded, sockets, worker_folder=None, private_redis="").timeout_keep_alive > 60


def test_proxies_of_the_settings_are_trusted(tmp_path):
    loaded = Settings(
        data_dir=tmp_path / "data",
        voice_session_archive_dir=tmp_path / "archive",
        forwarded_allow_ips="10.0.0.5,172.28.77.0/24",
    )
    config = serve._server_config(loaded, "picows", worker_folder=None, private_redis="")
    config.load()
    trusted = config.loaded_app.trusted_hosts
    assert [host in trusted for host in ("10.0.0.5", "172.28.77.9", "127.0.0.1")] == [True, True, False]
