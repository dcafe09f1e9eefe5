"""
What the bench prints: a table for people, one JSON object for machines.

The JSON object has `limit_ms`, `calls_sustained` (null unless it was searched for), `measurements` (one object a run)
and, for a comparison, `ratio` (websockets to picows). A measurement has `sockets`, `calls`, `connected`, `seconds`,
`sustained`, `delay_up`, `delay_down`, `start_to_settings`, `hangup_to_document`, `generator_lag` (each with `count`,
`p50_ms`, `p99_ms`, `max_ms`), `cpu_ms_per_call_second`, `memory_kib_per_call`, `frames` (`sent`, `lost`, `reordered`,
`changed`), `core_taken` and `disturbances`.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.bench.measures import LIMIT_MS, Measurement, Spread
from gateway.bench.runner import Search

_NAME_WIDTH = 34


def as_json(measurements: Sequence[Measurement], *, calls_sustained: int | None = None) -> dict[str, Any]:
    """See the module's docstring."""
    return {
        "limit_ms": LIMIT_MS,
        "calls_sustained": calls_sustained,
        "measurements": [
            {**asdict(run), "sustained": run.sustained, "disturbances": run.disturbances} for run in measurements
        ],
    }


def comparison_as_json(picows: Measurement, websockets: Measurement) -> dict[str, Any]:
    return as_json([picows, websockets]) | {"ratio": ratios(picows, websockets)}


def ratios(picows: Measurement, websockets: Measurement) -> dict[str, float]:
    """How many times as much the second takes."""
    pairs = {
        "cpu": (picows.cpu_ms_per_call_second, websockets.cpu_ms_per_call_second),
        "memory": (picows.memory_kib_per_call, websockets.memory_kib_per_call),
        "delay_up_p99": (picows.delay_up.p99_ms, websockets.delay_up.p99_ms),
        "delay_down_p99": (picows.delay_down.p99_ms, websockets.delay_down.p99_ms),
    }
    return {name: round(second / first, 2) if first else 0.0 for name, (first, second) in pairs.items()}


def search_as_text(found: Search) -> str:
    if found.best is None:
        return "\n".join(["calls sustained                   none", "", run_as_text(found.steps[-1])])
    failed = min((step.calls for step in found.steps if not step.sustained), default=0)
    blame = [step for step in found.steps if step.calls == failed and step.disturbed]
    least = " or more: the load generator or the machine was the limit" if blame else ""
    headline = _line("calls sustained", f"{found.best.calls}{least}")
    return "\n".join(
        [headline, _line("", f"p99 added delay under {LIMIT_MS:.0f} ms, no frame lost"), "", run_as_text(found.best)]
    )


def run_as_text(run: Measurement) -> str:
    """The table of one run."""
    frames = run.frames
    lines = [
        f"{run.calls} calls at once for {run.seconds:g} s, {run.sockets} sockets, gateway on one core",
        _line("", f"{'p50':>9} {'p99':>12}"),
        _times("added delay, caller to engine", run.delay_up),
        _times("added delay, engine to caller", run.delay_down),
        _times("start to Settings", run.start_to_settings),
        _times("hangup to document", run.hangup_to_document),
        _line("CPU per call", f"{run.cpu_ms_per_call_second:9.2f} ms a second"),
        _line("memory per call", f"{run.memory_kib_per_call:9.1f} KiB"),
        _line("frames sent", f"{frames.sent:9} ({_faults(run)})"),
        _times("load generator late by", run.generator_lag),
    ]
    if run.connected != run.calls:
        lines.append(_line("calls that came up", f"{run.connected:9} of {run.calls}"))
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def comparison_as_text(picows: Measurement, websockets: Measurement) -> str:
    ratio = ratios(picows, websockets)
    lines = [
        "websockets to picows",
        _line("CPU per call", f"{ratio['cpu']:9.2f} times"),
        _line("memory per call", f"{ratio['memory']:9.2f} times"),
        _line("p99 delay, caller to engine", f"{ratio['delay_up_p99']:9.2f} times"),
        _line("p99 delay, engine to caller", f"{ratio['delay_down_p99']:9.2f} times"),
    ]
    return "\n\n".join([run_as_text(picows), run_as_text(websockets), "\n".join(lines)])


def _line(name: str, value: str) -> str:
    return f"{name:{_NAME_WIDTH}}{value}"


def _times(name: str, spread: Spread) -> str:
    if not spread.count:
        return _line(name, "not measured")
    return _line(name, f"{spread.p50_ms:9.2f} ms {spread.p99_ms:9.2f} ms")


def _faults(run: Measurement) -> str:
    frames = run.frames
    if frames.faultless:
        return "every one arrived once, in order, unchanged"
    return f"{frames.lost} lost, {frames.reordered} out of order, {frames.changed} changed"
