"""What Prometheus reads: names, labels, and values that add up, over several workers too."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.multiprocess import mark_process_dead

from gateway import metrics

LABEL = r'[a-z_]+="(?:[^"\\]|\\.)*"'
LINE = re.compile(rf"[a-z_]+(?:\{{{LABEL}(?:,{LABEL})*\}})? -?[0-9.e+-]+")
WORKER = """
import os
from gateway import metrics
metrics.BARGE_INS.labels("twilio").inc()
metrics.CALL_SECONDS.labels("twilio", "local").observe(7)
with metrics.gauges({metrics.LIVE_CALLS: lambda: 2, metrics.OLDEST_ENDING: lambda: float(os.environ["AGE"])}):
    metrics.sample()
print(os.getpid())
"""


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_gauges_are_read_when_sampled():
    waiting: list[str] = []
    with metrics.gauges({metrics.LIVE_CALLS: lambda: len(waiting)}):
        metrics.sample()
        assert "\nvoice_gateway_live_calls 0.0\n" in metrics.render()
        waiting.append("one")
        metrics.sample()
        assert "\nvoice_gateway_live_calls 1.0\n" in metrics.render()


def test_gauges_are_let_go_of():
    with metrics.gauges({metrics.LIVE_CALLS: lambda: 7}):
        pass
    with metrics.gauges({metrics.LIVE_CALLS: lambda: 3}):
        metrics.sample()
    metrics.sample()
    assert "\nvoice_gateway_live_calls 3.0\n" in metrics.render()


def test_label_can_not_break_a_line():
    metrics.WATCHDOG.labels('a"b\\c\nd').inc()
    assert r'voice_gateway_watchdog_total{what="a\"b\\c\nd"} 1.0' in metrics.render().splitlines()


def test_everything_is_readable():
    metrics.UNMEASURED_TURNS.labels("local", "engine").inc()
    text = metrics.render()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines and all(LINE.fullmatch(line) for line in lines)
    assert "_created" not in text


def work(folder: Path, age: float) -> int:
    """Run a worker that counts one call; its process id."""
    environ = {metrics.FOLDER_VARIABLE: str(folder), "AGE": str(age)}
    ran = subprocess.run([sys.executable, "-c", WORKER], env=environ, capture_output=True, text=True, timeout=60)
    assert ran.stderr == ""
    return int(ran.stdout)


@pytest.fixture
def workers(tmp_path, monkeypatch):
    monkeypatch.setenv(metrics.FOLDER_VARIABLE, str(tmp_path))
    return [work(tmp_path, age) for age in (4, 9)]


def test_workers_are_added_up(workers):
    found = samples(metrics.render())
    assert found['voice_gateway_barge_ins_total{carrier="twilio"}'] == 2
    assert found['voice_gateway_call_seconds_bucket{carrier="twilio",engine="local",le="15.0"}'] == 2
    assert found['voice_gateway_call_seconds_sum{carrier="twilio",engine="local"}'] == 14
    assert (found["voice_gateway_live_calls"], found["voice_gateway_oldest_ending_seconds"]) == (4, 9)


def test_dead_worker_keeps_its_counts_alone(workers, tmp_path):
    """Counters must not fall, but a process that is gone has no calls."""
    mark_process_dead(workers[1], tmp_path)
    found = samples(metrics.render())
    assert found['voice_gateway_barge_ins_total{carrier="twilio"}'] == 2
    assert (found["voice_gateway_live_calls"], found["voice_gateway_oldest_ending_seconds"]) == (2, 4)
