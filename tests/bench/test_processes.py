"""The gateway process of the bench: its resource usage, its core, and how it starts."""

import os
import time

import httpx
import pytest

from gateway.bench.processes import COMPARISONS, GatewayProcess, Variant, reserved_core, running_gateway
from gateway.errors import BenchFailed

NO_ENGINE = "ws://127.0.0.1:9"


@pytest.fixture
def this_process():
    return GatewayProcess(os.getpid(), "", min(os.sched_getaffinity(0)))


def test_cpu_time_is_counted(this_process):
    before = this_process.cpu_seconds()
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert 0.03 <= this_process.cpu_seconds() - before


def test_usage_is_read_from_proc(this_process):
    assert this_process.resident_bytes() > 1_000_000
    assert this_process.written_bytes() >= 0
    assert isinstance(this_process.waited_seconds(), float)


def test_load_is_pinned_away_from_the_gateway():
    before = os.sched_getaffinity(0)
    with reserved_core() as core:
        assert core in before
        assert os.sched_getaffinity(0) == (before - {core} or before)
    assert os.sched_getaffinity(0) == before


def test_comparison_pairs_differ_by_one_setting():
    assert [(first.name, second.name) for first, second in COMPARISONS.values()] == [
        ("memory off", "memory on"),
        ("no viewers", "live page and tail"),
    ]


async def test_gateway_runs_until_the_block_ends():
    async with running_gateway(NO_ENGINE, Variant("plain"), core=None) as process:
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{process.url}/health")).json()["calls"] == 0
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_gateway_that_does_not_start_gives_its_last_line():
    wrong = Variant("wrong", environment={"SUMMARY_PROVIDER": "unknown"})
    with pytest.raises(BenchFailed, match="the gateway did not start: .*SUMMARY_PROVIDER"):
        async with running_gateway(NO_ENGINE, wrong, core=None):
            pass
