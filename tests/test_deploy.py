"""The files under deploy/ fit the program."""

import re
from pathlib import Path

import pytest

from gateway.settings import NAMES, Settings

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
ITS_OWN = {"DOMAIN", "POSTGRES_PASSWORD", "POSTGRES_USER", "POSTGRES_DB"}


def text(name: str) -> str:
    return (DEPLOY / name).read_text(encoding="utf-8")


def test_compose_sets_what_the_gateway_reads():
    names = set(re.findall(r"^ {6}([A-Z_]+): ", text("compose.yaml"), re.MULTILINE))
    assert names - ITS_OWN < set(NAMES)
    assert {"PUBLIC_URL", "REDIS_URL", "DATABASE_URL", "GATEWAY_ADMIN_TOKEN"} < names


@pytest.mark.parametrize(
    ("name", "line"), [("Caddyfile", "respond /metrics 404"), ("nginx.conf", "location = /metrics {")]
)
def test_proxies_keep_metrics_inside(name, line):
    assert line in [one.strip() for one in text(name).splitlines()]


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
    assert [file.name for file in DEPLOY.iterdir() if file.is_file() and f"deploy/{file.name}" not in page] == [
        "Caddyfile"
    ]


def test_every_file_that_compose_mounts_is_there():
    mounted = re.findall(r"\"\./([^:]+):", text("compose.yaml"))
    assert mounted == ["Caddyfile"] and (DEPLOY / mounted[0]).is_file()
