"""Latency percentiles as text. The command itself is in tests/cli/test_sessions.py."""

from gateway.cli.latency import as_rows, sparkline
from gateway.cli.terminal import as_text


def test_latency_has_a_row_per_stage() -> None:
    found = {"turns": 4, "p50": 0.55, "p90": 0.9, "p99": 1.2, "max": 1.2, "course": [0.5, None, 1.0]}
    nothing = {"turns": 0}
    stages = {"transcript": nothing, "llm_request": nothing, "first_token": nothing, "first_audio": nothing}
    figures = {"turns": 4, "calls": 1, "since": "2026-02-06T23:15:04+00:00", "stages": {**stages, "first_frame": found}}
    figures["first_audio"] = {"calls": 1, "p50": 0.2, "p90": 0.2, "p99": 0.2, "max": 0.2, "course": [0.2]}
    lines = as_text(*as_rows(figures)).splitlines()
    assert lines[0].startswith("4 turns in 1 call since 2026-02-0")
    assert lines[2].split("  ")[0] == "from end of speech to"
    assert lines[3].split() == ["first", "frame", "4", "550", "ms", "900", "ms", "1200", "ms", "1200", "ms", "▅", "█"]
    assert lines[5].split()[:4] == ["from", "answer", "to", "calls"]
    assert lines[6].split()[:6] == ["first", "audio", "1", "200", "ms", "200"]


def test_sparkline_scales_to_the_largest() -> None:
    assert sparkline([0.1, None, 0.8]).plain == "▂ █"
    assert sparkline([]).plain == ""
