"""The files under deploy/ fit the program."""

import asyncio
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis.asyncio
import yaml

from gateway.cluster.redis_store import RedisStore, connect
from gateway.errors import SharedStoreUnavailable
from gateway.settings import NAMES, Secret, Settings
from tests.ports import free_port
from tests.postgres_server import PostgresServer
from tests.redis_server import redis_binary
from tests.stage import make_carrier, staged, until_it

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
NOT_SETTINGS = {"PGPASSWORD"}  # libpq reads it
ODD_PASSWORD = "p@ss/w:o'r\"d#%41?&$HOME \\"


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


COMPOSE = yaml.safe_load(text("compose.yaml"))
SERVICES = COMPOSE["services"]


# Compose


def test_compose_sets_what_the_gateway_reads():
    names = set(SERVICES["gateway"]["environment"])
    assert names - NOT_SETTINGS < set(NAMES)
    assert {
        "PUBLIC_URL",
        "REDIS_URL",
        "DATABASE_URL",
        "GATEWAY_ADMIN_TOKEN",
        "FORWARDED_ALLOW_IPS",
        *NOT_SETTINGS,
    } < names


@pytest.mark.parametrize("name", SERVICES)
def test_containers_have_no_more_than_they_need(name):
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service.get("cap_add", []) == (["NET_BIND_SERVICE"] if name == "caddy" else [])
    assert {"mem_limit", "cpus", "pids_limit"} < set(service)
    assert ("ports" in service) == (name == "caddy")


def test_stores_are_on_a_network_without_a_way_out():
    networks = {name: service["networks"] for name, service in SERVICES.items()}
    assert networks == {"gateway": ["front", "back"], "redis": ["back"], "postgres": ["back"], "caddy": ["front"]}
    assert COMPOSE["networks"]["back"] == {"internal": True}


def test_proxy_that_compose_runs_is_trusted():
    (subnet,) = COMPOSE["networks"]["front"]["ipam"]["config"]
    assert SERVICES["gateway"]["environment"]["FORWARDED_ALLOW_IPS"] == subnet["subnet"]


def test_images_are_pinned_by_digest():
    images = [service["image"] for service in SERVICES.values() if "image" in service]
    images += re.findall(r"^FROM (\S+)", text("../Dockerfile"), re.MULTILINE)
    assert len(images) == 5
    assert [image for image in images if not re.fullmatch(r"[\w./-]+:\d[\w.-]*@sha256:[0-9a-f]{64}", image)] == []


def test_digests_are_updated_from_the_registry(tmp_path):
    for name in ("Dockerfile", "deploy/compose.yaml", "scripts/pin-images"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text('#!/bin/sh\n[ "$*" ] && echo "sha256:$(echo "$4" | sha256sum | cut -d " " -f 1)"\n')
    docker.chmod(0o755)
    environ = {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    ran = subprocess.run([tmp_path / "scripts" / "pin-images"], env=environ, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr, len(ran.stdout.splitlines())) == (0, "", 4)
    found = re.findall(r"(\S+)@sha256:(\w+)", (tmp_path / "deploy" / "compose.yaml").read_text())
    assert dict(found) == {image: hashlib.sha256(f"{image}\n".encode()).hexdigest() for image, _ in found}


async def test_redis_of_compose_needs_the_password(tmp_path):
    """Its command is run for real. No process shows the password."""
    shell, option, script = SERVICES["redis"]["command"]
    port, programs = free_port(), tmp_path / "bin"
    programs.mkdir()
    (programs / "redis-server").symlink_to(redis_binary())
    script = script.replace("$$", "$").replace("appendonly yes", f"appendonly yes\nport {port}\nbind 127.0.0.1")
    environ = {"PATH": f"{programs}:{os.environ['PATH']}", "REDISCLI_AUTH": ODD_PASSWORD}
    server = await asyncio.create_subprocess_exec(
        shell, option, script, cwd=tmp_path, env=environ, stdout=asyncio.subprocess.DEVNULL
    )
    url = f"redis://127.0.0.1:{port}/0"
    right, wrong = RedisStore(connect(url, Secret(ODD_PASSWORD))), RedisStore(connect(url))
    try:

        async def answers():
            try:
                return await right.get("name") is None
            except SharedStoreUnavailable:
                return False

        await until_it(answers)
        with pytest.raises(SharedStoreUnavailable):
            await wrong.get("name")
        assert "p@ss" not in command_line(server.pid)
        async with staged(tmp_path / "a", make_carrier("twilio"), REDIS_URL=url, REDIS_PASSWORD=ODD_PASSWORD) as stage:
            await until_it(lambda: _node_is_registered(url))
            assert (await stage.http.get("/health")).json()["redis"] == "ok"
    finally:
        await right.close()
        await wrong.close()
        server.terminate()
        await server.wait()


def command_line(pid: int) -> str:
    return subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=True).stdout


async def _node_is_registered(url):
    async with redis.asyncio.Redis.from_url(url, password=ODD_PASSWORD) as client:
        return bool(await client.keys("*alive:*"))


async def test_any_database_password_works(tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    """The address of compose.yaml with a real server; the password is in PGPASSWORD."""
    address = SERVICES["gateway"]["environment"]["DATABASE_URL"]
    assert address == "postgresql://gateway@postgres:5432/gateway"
    postgres.add_user("careful", ODD_PASSWORD.replace("'", "''"))
    address = address.replace("gateway@postgres:5432/gateway", f"careful@127.0.0.1:{postgres.port}/postgres")
    schema = postgres.fresh().partition("?")[2]
    monkeypatch.setenv("PGPASSWORD", ODD_PASSWORD)
    async with staged(tmp_path, make_carrier("twilio"), DATABASE_URL=f"{address}?{schema}") as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("My name is Ana Quibble.")
        await call.hang_up()
        await stage.document()
        assert (await stage.http.get("/health")).json()["database"] == "ok"


# The image


def dockerfile_copies() -> list[tuple[list[str], str]]:
    """Sources and target of each COPY of the stage that builds the program."""
    stage = text("../Dockerfile").partition("\nFROM ")[0]
    return [((words := line.split())[:-1], words[-1]) for line in re.findall(r"(?m)^COPY (.+)$", stage)]


def files_in_the_image() -> Iterator[tuple[Path, Path]]:
    """Each file that COPY takes, and where it puts it: what .dockerignore admits, as Docker sees it."""
    excluded, *lines = [line for line in text("../.dockerignore").split("\n") if line and not line.startswith("#")]
    admitted = [line.removeprefix("!") for line in lines if line.startswith("!")]
    assert (excluded, {*lines} - {f"!{name}" for name in admitted}) == ("*", {"**/__pycache__"})
    for sources, target in dockerfile_copies():
        for source in sources:
            for file in [ROOT / source] if (ROOT / source).is_file() else (ROOT / source).rglob("*"):
                name = file.relative_to(ROOT)
                is_admitted = any(name.is_relative_to(one) for one in admitted) and "__pycache__" not in name.parts
                if file.is_file() and is_admitted:
                    into = Path(target) / name.name if target.endswith("/") else Path(target)
                    yield file, into if (ROOT / source).is_file() else into / file.relative_to(ROOT / source)


def test_image_has_everything_that_the_wheel_needs():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    metadata = [project["project"]["readme"], *project["project"]["license-files"]]
    needed = [*wheel["packages"], *wheel["force-include"], *metadata]
    copied = {into for _, into in files_in_the_image()}
    assert [name for name in needed if not any(into.is_relative_to(name) for into in copied)] == []


def test_wheel_is_built_from_what_the_dockerfile_copies(tmp_path):
    """The steps of the Dockerfile up to the installation of the program, in a folder."""
    for file, into in files_in_the_image():
        (tmp_path / "app" / into).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / "app" / into)
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    command = [str(uv), "build", "--quiet", "--wheel", "--out-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=tmp_path / "app", capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert {"gateway/app.py", "gateway/prompts/maya.md", "gateway/docs/twilio.md"} < {*opened.namelist()}


# Proxies and systemd


@pytest.mark.parametrize(
    ("name", "line"), [("Caddyfile", "respond /metrics 404"), ("nginx.conf", "location = /metrics {")]
)
def test_proxies_keep_metrics_inside(name, line):
    assert line in [one.strip() for one in text(name).splitlines()]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed")
def test_service_is_hardened():
    unit = DEPLOY / "voice-gateway.service"
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    rated = subprocess.run(command, capture_output=True, text=True)
    assert rated.returncode == 0, rated.stdout[-300:]
    exposure = re.search(r"exposure level for \S+: ([\d.]+)", rated.stdout)
    assert exposure and float(exposure[1]) <= 2.0


def test_service_sets_what_the_gateway_reads():
    lines = re.findall(r"^Environment=(.*)$", text("voice-gateway.service"), re.MULTILINE)
    assert {pair.partition("=")[0] for line in lines for pair in line.split()} < set(NAMES)


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("compose.yaml", r"stop_grace_period: (\d+)s"),
        ("voice-gateway.service", r"TimeoutStopSec=(\d+)"),
        ("../docs/operations.md", r"--stop-timeout (\d+)"),
    ],
)
def test_calls_may_drain_before_they_are_killed(name, pattern):
    (seconds,) = re.findall(pattern, text(name))
    assert int(seconds) > Settings().drain_seconds


def test_docs_name_every_file():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [file.name for file in DEPLOY.iterdir() if file.is_file() and f"deploy/{file.name}" not in page] == []


def test_docs_publish_the_port_on_loopback_only():
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("*.md")]
    commands = [line for page in pages for line in page.splitlines() if line.startswith("docker run")]
    assert commands and all("-p 127.0.0.1:8000:8000" in line for line in commands)


def test_every_file_that_compose_mounts_is_there():
    mounted = re.findall(r"\"\./([^:]+):", text("compose.yaml"))
    assert mounted == ["Caddyfile"] and (DEPLOY / mounted[0]).is_file()
