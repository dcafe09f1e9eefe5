"""
The output of `gateway bench`: a table for people, one JSON object with `--json`.

The object has `limit_ms`, `calls_sustained` (null unless searched for), `measurements` and, for a comparison, `ratio`:
`cpu`, `memory`, `delay_up_p99` and `delay_down_p99` of the second measurement divided by the first. A measurement:

- the load: `variant`, `calls`, `connected`, `replaced`, `seconds`, `turns_per_second` (of each side)
- times, each with `count`, `p50_ms`, `p99_ms`, `max_ms`: `delay_up` (caller to engine), `delay_down`,
  `start_to_settings`, `hangup_to_document`, `words_to_watcher`
- cost: `cpu_ms_per_call_second`, `memory_kib_per_call`, `disk_kib_per_second`
- verdict: `sustained`, `frames` (`sent`, `lost`, `reordered`, `changed`)
- interference: `generator_lag` (times), `core_taken` (a share), `disturbances` (both in words)
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gateway.bench.frame_stamps import FrameCount
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


def comparison_as_json(first: Measurement, second: Measurement) -> dict[str, Any]:
    return as_json([first, second]) | {"ratio": ratios(first, second)}


def ratios(first: Measurement, second: Measurement) -> dict[str, float]:
    """Second measurement divided by the first."""
    pairs = {
        "cpu": (first.cpu_ms_per_call_second, second.cpu_ms_per_call_second),
        "memory": (first.memory_kib_per_call, second.memory_kib_per_call),
        "delay_up_p99": (first.delay_up.p99_ms, second.delay_up.p99_ms),
        "delay_down_p99": (first.delay_down.p99_ms, second.delay_down.p99_ms),
    }
    return {name: round(more / one, 2) if one else 0.0 for name, (one, more) in pairs.items()}


def search_as_text(found: Search) -> str:
    if found.best is None:
        return "\n".join(["calls sustained                   none", "", run_as_text(found.steps[-1])])
    failed = min((step.calls for step in found.steps if not step.sustained), default=0)
    blame = [step for step in found.steps if step.calls == failed and step.disturbed]
    least = " or more: the load generator or the machine was the limit" if blame else ""
    headline = line("calls sustained", f"{found.best.calls}{least}")
    return "\n".join(
        [headline, line("", f"p99 added delay under {LIMIT_MS:.0f} ms, no frame lost"), "", run_as_text(found.best)]
    )


def run_as_text(run: Measurement) -> str:
    """The table of one run."""
    frames = run.frames
    lines = [
        f"{run.calls} calls at once for {run.seconds:g} s ({run.variant}), gateway on one core",
        f"{run.replaced} of them ended during the run, and their callers called again",
        line("", f"{'p50':>9} {'p99':>12}"),
        times("added delay, caller to engine", run.delay_up),
        times("added delay, engine to caller", run.delay_down),
        times("start to Settings", run.start_to_settings),
        times("hangup to document", run.hangup_to_document),
        *([times("words to live viewer", run.words_to_watcher)] if run.words_to_watcher.count else []),
        line("CPU per call", f"{run.cpu_ms_per_call_second:9.2f} ms a second"),
        line("memory per call", f"{run.memory_kib_per_call:9.1f} KiB"),
        line(
            "turns of each side",
            f"{run.turns_per_second:9.1f} a second, {run.disk_kib_per_second:.1f} KiB a second to disk",
        ),
        line("frames sent", f"{frames.sent:9} ({faults(frames)})"),
        times("load generator late by", run.generator_lag),
    ]
    if run.connected != run.calls:
        lines.append(line("calls that came up", f"{run.connected:9} of {run.calls}"))
    return "\n".join([*lines, *(f"note: {text}" for text in run.disturbances)])


def comparison_as_text(first: Measurement, second: Measurement) -> str:
    ratio = ratios(first, second)
    lines = [
        f"{second.variant} to {first.variant}",
        line("CPU per call", f"{ratio['cpu']:9.2f} times"),
        line("memory per call", f"{ratio['memory']:9.2f} times"),
        line("p99 delay, caller to engine", f"{ratio['delay_up_p99']:9.2f} times"),
        line("p99 delay, engine to caller", f"{ratio['delay_down_p99']:9.2f} times"),
    ]
    return "\n\n".join([run_as_text(first), run_as_text(second), "\n".join(lines)])


def line(name: str, value: str) -> str:
    return f"{name:{_NAME_WIDTH}}{value}"


def times(name: str, spread: Spread) -> str:
    if not spread.count:
        return line(name, "not measured")
    return line(name, f"{spread.p50_ms:9.2f} ms {spread.p99_ms:9.2f} ms")


def faults(frames: FrameCount) -> str:
    if frames.faultless:
        return "all arrived once, in order, unchanged"
    return f"{frames.lost} lost, {frames.reordered} out of order, {frames.changed} changed"
