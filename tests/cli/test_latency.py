"""Latency percentiles as text. The command itself is in tests/cli/test_sessions.py."""

from gateway.cli.latency import as_rows, sparkline
from gateway.cli.terminal import as_text
from gateway.response_time import STAGES


def test_latency_has_a_row_per_stage() -> None:
    found = {"turns": 4, "p50": 0.55, "p90": 0.9, "p95": 1.1, "p99": 1.2, "max": 1.2, "course": [0.5, None, 1.0]}
    nothing = {"turns": 0}
    stages = dict.fromkeys(STAGES, nothing) | {"first_frame": found}
    figures = {"turns": 4, "calls": 1, "since": "2026-02-06T23:15:04+00:00", "stages": stages, "elsewhere": nothing}
    first = dict.fromkeys(("p50", "p90", "p95", "p99", "max"), 0.2)
    figures["first_audio"] = {"calls": 1, **first, "course": [0.2]}
    lines = as_text(*as_rows(figures)).splitlines()
    assert lines[0].startswith("Response time: 550 ms median, 1.10 s p95 (4 answers); 1 call since 2026-02-0")
    assert lines[2].split("  ")[0] == "from the last voiced frame to"
    assert lines[3].split()[:8] == ["first", "frame", "sent", "4", "550", "ms", "900", "ms"]
    assert lines[3].endswith("1.10 s  1.20 s  1.20 s  ▅·█")
    assert lines[5].split()[:4] == ["from", "answer", "to", "calls"]
    assert lines[6].split()[:6] == ["first", "audio", "1", "200", "ms", "200"]


def test_times_that_are_counted_from_elsewhere_stand_apart() -> None:
    nothing, elsewhere = {"turns": 0}, {"turns": 2, "p50": 0.06, "p95": 0.08}
    stages = dict.fromkeys(STAGES, nothing)
    figures = {"turns": 0, "calls": 1, "since": "2026-02-06T23:15:04+00:00", "stages": stages, "elsewhere": elsewhere}
    first, second = as_text(*as_rows(figures)).splitlines()
    assert first.startswith("Response time: not measured; 1 call since")
    assert second.endswith("no voiced frame known: 60 ms median, 80 ms p95 (2 answers)")


def test_sparkline_scales_to_the_largest() -> None:
    assert sparkline([0.1, None, 0.8]).plain == "▂·█"
    assert sparkline([]).plain == ""
